"""Models by hub id or by path: paths become absolute wherever a config names one, and must be there."""

from pathlib import Path

import pytest

from search_spaces.arguments import Rendered
from tuner.mistakes import Mistake
from tuner.models import local_model, localised


def test_a_hub_id_is_left_as_it_is() -> None:
    assert local_model("meta-llama/Llama-3.1-8B-Instruct") == "meta-llama/Llama-3.1-8B-Instruct"


def test_a_folder_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models" / "m").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert local_model("models/m") == str(tmp_path / "models" / "m")


@pytest.mark.parametrize("path", ["./m", "/nowhere/m", "runs/models/m"])
def test_a_path_that_is_not_there_is_a_mistake(path: str) -> None:
    with pytest.raises(Mistake, match="no model at"):
        local_model(path)


def test_the_small_model_that_is_not_there_names_the_command_that_makes_it() -> None:
    with pytest.raises(Mistake, match="tuner prepare"):
        local_model("runs/models/SmolLM2-135M-nowhere")


def test_a_draft_model_inside_the_speculative_config_becomes_absolute_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("target", "draft"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    config = Rendered(
        model="./target",
        arguments={
            "speculative_config": {"model": "./draft", "num_speculative_tokens": 3},
            "seed": 4,
        },
        environment={},
        gpus=0,
    )
    found = localised(config)
    assert found.model == str(tmp_path / "target")
    assert found.arguments == {
        "speculative_config": {"model": str(tmp_path / "draft"), "num_speculative_tokens": 3},
        "seed": 4,
    }
