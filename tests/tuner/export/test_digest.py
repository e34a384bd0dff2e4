"""What was changed in an export folder by hand is told, whatever it was."""

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.values import Json
from tuner.export.digest import PROVENANCE, disagreements, read_provenance, sealed
from tuner.mistakes import Mistake

FILES = {"config.yaml": "max-num-seqs: 16\n", "README.md": "# hello\n"}
SAID: dict[str, Json] = {"trial": 3, "measured": {"goodput_rps": 2.5}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / PROVENANCE).write_text(json.dumps(sealed(SAID, FILES)))
    return tmp_path


def test_a_folder_as_it_was_exported_agrees(folder: Path) -> None:
    assert disagreements(folder) == ()


def test_the_digest_of_a_file_is_what_any_tool_computes() -> None:
    expected = hashlib.sha256(b"max-num-seqs: 16\n").hexdigest()
    files = sealed(SAID, FILES)["files"]
    assert isinstance(files, dict)
    assert files["config.yaml"] == expected


def test_one_batch_limit_changed_is_told_with_the_file(folder: Path) -> None:
    (folder / "config.yaml").write_text("max-num-seqs: 17\n")
    assert disagreements(folder) == ("config.yaml was changed after it was exported",)


def test_a_promise_changed_in_the_provenance_is_told(folder: Path) -> None:
    path = folder / PROVENANCE
    path.write_text(path.read_text().replace("2.5", "9.5"))
    assert disagreements(folder) == (f"{PROVENANCE} was changed after it was exported",)


def test_a_file_that_is_missing_or_new_is_told(folder: Path) -> None:
    (folder / "README.md").unlink()
    (folder / "compose.override.yaml").write_text("services: {}\n")
    assert disagreements(folder) == (
        "README.md was exported and is missing",
        "compose.override.yaml is no file of this export",
    )


def test_the_users_own_dot_files_are_not_looked_at(folder: Path) -> None:
    (folder / ".env").write_text("HF_TOKEN=secret\n")
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("ref\n")
    assert disagreements(folder) == ()


def test_layout_and_order_of_the_json_are_no_change(folder: Path) -> None:
    path = folder / PROVENANCE
    path.write_text(json.dumps(dict(reversed(json.loads(path.read_text()).items())), indent=7))
    assert disagreements(folder) == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "is no export"),
        ("{", "cannot be read"),
        ("[]", "expected an object"),
        ('{"trial": 3}', "has no digests to hold the folder to; export it again"),
    ],
)
def test_a_folder_that_can_not_be_held_to_anything_is_a_mistake(
    tmp_path: Path, text: str | None, told: str
) -> None:
    if text is not None:
        (tmp_path / PROVENANCE).write_text(text)
    with pytest.raises(Mistake, match=told):
        disagreements(tmp_path)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text().filter(lambda name: name not in ("files", "digest")), _JSON, max_size=4))
def test_what_was_sealed_holds_after_json_carried_it(
    tmp_path_factory: pytest.TempPathFactory, said: dict[str, Json]
) -> None:
    folder = tmp_path_factory.mktemp("sealed")
    (folder / PROVENANCE).write_text(json.dumps(sealed(said, {}), indent=1), encoding="utf-8")
    assert disagreements(folder) == ()
    assert read_provenance(folder) == sealed(said, {})
