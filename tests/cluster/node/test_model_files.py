"""What a node has of a model, and how it comes by the rest."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.node.model_files import ModelMissing, ModelName, ModelState, fetch, models_of, state_of
from search_spaces.values import Json
from tests.cluster.hub import MODEL, Hub, hub

_ASK = """
import json, sys
from cluster.node.model_files import ModelMissing, ModelName, fetch, state_of
said = []
for name in sys.argv[1:]:
    model = ModelName(name)
    said.append(state_of(model).value)
    try:
        fetch((model,))
    except ModelMissing as missing:
        said.append([str(missing), missing.everywhere])
    said.append(state_of(model).value)
print(json.dumps(said))
"""


def _asked(home: Path, url: str, *models: str, offline: bool = False) -> list[object]:
    """By a process of its own: the hub's library reads its environment when it is imported."""
    environment = {
        **os.environ,
        "HF_HOME": str(home),
        "HF_ENDPOINT": url,
        "HF_HUB_OFFLINE": str(int(offline)),
        "HF_HUB_DISABLE_XET": "1",
    }
    words = [sys.executable, "-c", _ASK, *models]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=True)
    said: list[object] = json.loads(done.stdout)
    return said


def test_a_model_is_fetched_once_and_only_what_is_served_of_it(tmp_path: Path) -> None:
    with hub() as seen:
        assert _asked(tmp_path, seen.url, MODEL, MODEL) == ["to be fetched", "cached", "cached", "cached"]
        assert seen.downloads == {"config.json": 1, "model.safetensors": 1}
        # Without the hub it is there all the same.
        assert _asked(tmp_path, seen.url, MODEL, offline=True) == ["cached", "cached"]


def test_what_the_hub_does_not_have_no_node_will_get(tmp_path: Path) -> None:
    with hub() as seen:
        before, (reason, everywhere), after = _answers(tmp_path, seen, "tea/none", offline=False)
    assert (before, after, everywhere) == ("to be fetched", "to be fetched", True)
    assert reason.startswith("the hub does not give tea/none: ")


def test_a_hub_out_of_reach_is_this_nodes_fault(tmp_path: Path) -> None:
    with hub() as seen:
        before, (reason, everywhere), after = _answers(tmp_path, seen, MODEL, offline=True)
    assert (before, after, everywhere) == ("to be fetched", "to be fetched", False)
    assert reason.startswith(f"{MODEL} is not here and cannot be fetched: ")
    assert "\n" not in reason


def _answers(home: Path, seen: Hub, model: str, *, offline: bool) -> tuple[str, tuple[str, bool], str]:
    before, told, after = _asked(home, seen.url, model, offline=offline)
    assert isinstance(told, list)
    return str(before), (str(told[0]), bool(told[1])), str(after)


def test_a_folder_is_there_or_it_is_not(tmp_path: Path) -> None:
    there, missing = ModelName(str(tmp_path)), ModelName(str(tmp_path / "none"))
    assert state_of(there) is ModelState.CACHED
    assert state_of(missing) is ModelState.MISSING
    fetch((there,))
    with pytest.raises(ModelMissing, match="no folder") as raised:
        fetch((there, missing))
    assert not raised.value.everywhere
    again = pickle.loads(pickle.dumps(raised.value))
    assert (str(again), again.everywhere) == (str(raised.value), False)


def test_everything_that_an_engine_loads_is_named_once() -> None:
    arguments: dict[str, Json] = {
        "revision": "v2",
        "tokenizer": "org/words",
        "speculative_config": {"method": "eagle3", "model": "org/draft"},
    }
    assert models_of("org/model", arguments) == (
        ModelName("org/model", "v2"),
        ModelName("org/words"),
        ModelName("org/draft"),
    )
    assert models_of("org/model", {"tokenizer": "org/model"}) == (ModelName("org/model"),)
    assert models_of("org/model", {"speculative_config": {"model": "ngram"}}) == (ModelName("org/model"),)
