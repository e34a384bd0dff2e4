"""What leaves the machine says nothing of its folders."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.values import Json
from tuner.service.outside import Outside

_OUTSIDE = Outside({"/srv/my runs", "/root"})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("/srv/my runs/service/jobs/1/space.yaml:3 model", "…/space.yaml:3 model"),
        ("MLflow at sqlite:////var/lib/tuner/mlflow.db; safe", "MLflow at …/mlflow.db; safe"),
        ("no model at runs/m (from /work/main)", "no model at runs/m (from …/main)"),
        ("'/etc/passwd'", "'…/passwd'"),
        ("~/x/y and /root", "…/y and …/"),
        ("https://huggingface.co/a/b", "https://huggingface.co/a/b"),
        ("meta-llama/Llama-3.1-8B at 3/4 of 1/2", "meta-llama/Llama-3.1-8B at 3/4 of 1/2"),
    ],
)
def test_a_path_keeps_its_last_name_and_what_is_none_is_left(text: str, told: str) -> None:
    assert _OUTSIDE.text(text) == told


def test_texts_are_found_wherever_they_are_in_json() -> None:
    value: Json = {"/a/b/c": ["/a/b/c", 1, None, {"x": "see /a/b/c"}], "n": 1.5}
    assert _OUTSIDE.json(value) == {"…/c": ["…/c", 1, None, {"x": "see …/c"}], "n": 1.5}


_NAMES = st.from_regex(r"[A-Za-z0-9_.-]{1,8}", fullmatch=True)


@given(
    st.lists(_NAMES, min_size=2, max_size=6), st.sampled_from(["", "at ", "(", '"', "sqlite:///", "file://"])
)
def test_no_folder_of_an_absolute_path_is_left(parts: list[str], before: str) -> None:
    told = Outside(()).text(f"{before}/{'/'.join(parts)}")
    assert "/" not in told.removesuffix(parts[-1]).removesuffix("…/")
    assert told.endswith(f"…/{parts[-1]}")
