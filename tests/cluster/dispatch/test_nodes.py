"""Two real nodes with two made-up GPUs each: who runs where, what is fetched, what is left when one dies."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ray

from cluster.node.command import installed_version
from cluster.node.processes import descendants
from tests.cluster.dispatch.raylets import LEAST_STORE, free_ports, node
from tests.cluster.hub import hub

pytestmark = [pytest.mark.slow]

_ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class _Story:
    scenes: list[dict[str, Any]]
    downloads: Counter[str]
    sharing: list[list[str]]
    """What became of trials that ran at once on node one, when all else was over."""
    met: list[dict[str, Any]]
    """What their engines were given."""


def _environment(here: Path, name: str, url: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "HF_"))}
    return kept | {
        "HOME": str(here),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "HF_HOME": str(here / f"hub-{name}"),
        "HF_ENDPOINT": url,
        "HF_HUB_DISABLE_XET": "1",
        "TUNER_TEST_FLAG": str(here / "waiting"),
    }


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Story]:
    """All scenes; node two is killed once a trial waits there."""
    here = tmp_path_factory.mktemp("nodes")
    with ExitStack() as stack:
        seen = stack.enter_context(hub())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-")))
        (port,) = free_ports(1)
        has = ("--num-gpus=2", "--num-cpus=2", f"--object-store-memory={LEAST_STORE}")
        shared = ("--node-ip-address=127.0.0.1", "--dashboard-agent-listen-port=0", *has)
        first = ("--head", f"--port={port}", f"--temp-dir={folder}", "--include-dashboard=false")
        one = _environment(here, "one", seen.url)
        stack.enter_context(node(one, here / "one.log", *first, "--node-name=one", *shared))
        second = (f"--address=127.0.0.1:{port}", "--node-name=two")
        two = _environment(here, "two", seen.url)
        started = stack.enter_context(node(two, here / "two.log", *second, *shared))
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.dispatch.nodes_driver", f"127.0.0.1:{port}"],
            cwd=_ROOT,
            env=one,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline = time.monotonic() + 240
        while not (here / "waiting").exists() and driver.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        for process in descendants(started):
            os.kill(process.pid, signal.SIGKILL)
        os.kill(started, signal.SIGKILL)
        out, errors = driver.communicate(timeout=240)
        assert driver.returncode == 0, errors
        sharing = subprocess.run(
            [sys.executable, "-m", "tests.cluster.dispatch.sharing_driver", f"127.0.0.1:{port}", here, "2"],
            cwd=_ROOT,
            env=one,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert sharing.returncode == 0, sharing.stderr
        met = [json.loads(file.read_text()) for file in (here / "meeting").glob("*.json")]
        scenes = [json.loads(line) for line in out.splitlines()]
        yield _Story(scenes, seen.downloads, json.loads(sharing.stdout), met)


def test_nodes_say_what_they_have(story: _Story) -> None:
    said = story.scenes[0]
    version = installed_version()
    assert said["facts"] == [
        ["one", 2, 2, ray.__version__, version, "to be fetched"],
        ["two", 2, 2, ray.__version__, version, "to be fetched"],
    ]
    assert said["room"] == [4, 2, 0]
    assert said["nodes"] == ["one", "two"]


def test_small_trials_share_nodes_and_never_a_gpu_nor_a_folder(story: _Story) -> None:
    said = story.scenes[1]
    places, folders, began, ended = [], set(), [], []
    for name, cause, reason in said["outcomes"]:
        assert cause == "unsupported"
        device, start, end, folder = reason.split()
        places.append((name, device))
        folders.add(folder)
        began.append(float(start))
        ended.append(float(end))
    assert sorted(places) == [("one", "0"), ("one", "1"), ("two", "0"), ("two", "1")]
    assert len(folders) == 4
    assert said["groups"] == 0


def test_a_trial_of_two_gpus_has_both_of_one_node(story: _Story) -> None:
    ((name, _, reason),) = story.scenes[2]["outcomes"]
    assert name == "two"
    assert sorted(reason.split()[0].split(",")) == ["0", "1"]


def test_a_node_fetches_a_model_once_however_many_trials_wait_for_it(story: _Story) -> None:
    said = story.scenes[3]
    assert Counter(name for name, _, _ in said["outcomes"]) == {"one": 2, "two": 2}
    assert all(cause == "unsupported" for _, cause, _ in said["outcomes"])
    assert story.downloads == {"config.json": 2, "model.safetensors": 2}  # once for each node
    for name in ("one", "two"):
        assert f"node {name} fetches tea/small" in said["remarks"]
        assert any(text.startswith(f"node {name} has tea/small, after ") for text in said["remarks"])


def test_a_model_that_the_hub_does_not_have_is_the_configs_fault(story: _Story) -> None:
    ((_, cause, reason),) = story.scenes[4]["outcomes"]
    assert cause == "invalid argument"
    assert "the hub does not give tea/none" in reason


def test_a_folder_that_no_node_has_is_looked_for_on_all_and_told(story: _Story) -> None:
    ((_, cause, reason),) = story.scenes[5]["outcomes"]
    assert (cause, reason) == ("invalid argument", "no folder /nowhere/model on this node")
    assert len(story.scenes[5]["remarks"]) == 2


def test_a_killed_node_loses_what_ran_and_what_waited_there_and_holds_no_gpus(story: _Story) -> None:
    said = story.scenes[6]
    assert [(name, cause) for name, cause, _ in said["outcomes"]] == [("two", "lost node")] * 2
    assert said["groups"] == 0
    after = story.scenes[7]
    assert after["outcomes"] == [["one", "unsupported", "no such scheme"]]
    assert after["nodes"] == ["one"]


def test_what_is_cancelled_gives_its_gpus_back(story: _Story) -> None:
    assert story.scenes[8] == {"groups": 0}


def test_engines_that_run_at_once_on_a_node_share_no_gpu_port_cache_nor_temporary_folder(
    story: _Story,
) -> None:
    assert story.sharing == [["measured", "one", "warm"]] * 2
    assert {one["CUDA_VISIBLE_DEVICES"] for one in story.met} == {"0", "1"}
    for name in ("port", "name", "TMPDIR", "VLLM_CACHE_ROOT"):
        assert len({one[name] for one in story.met}) == 2, name
    assert not any(Path(one["TMPDIR"]).exists() for one in story.met)
