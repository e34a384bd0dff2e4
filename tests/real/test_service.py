"""A study that is submitted over HTTP, on a real vLLM: it ends as one of the command line does."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.phase import PhaseName
from tuner.service.client import Client

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(900)]

TUNER = Path(sys.executable).with_name("tuner")

SPACE = """
name: real
model: {model}
resources: {{gpus: 0, cpus: 1}}
engine: {{max_model_len: 512, dtype: bfloat16, enforce_eager: true, kv_cache_memory_bytes: 134217728}}
parameters:
  max_num_seqs: {{choices: [8, 16]}}
traffic:
  make: {{requests: 12, rate: 6, input_mean: 60, input_max: 200, output_mean: 8, output_max: 20, seed: 2}}
slo: {{ttft_p90_ms: 10000, tpot_p90_ms: 1000}}
measure: fixed
objectives: [goodput, tpot_p90]
quality: {{prompts: 10, tokens: 4}}
"""


@pytest.fixture
def client(tmp_path: Path, small_model: Path) -> Iterator[Client]:
    """Of `tuner serve` in a folder of its own, which allows the small model's folder."""
    (tmp_path / "allow.yaml").write_text(yaml.safe_dump({"local_models": [str(small_model.parent)]}))
    with (tmp_path / "serve.log").open("wb") as log:
        served = subprocess.Popen(
            [TUNER, "serve", "--port", "0", "--allow-list", "allow.yaml"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={name: value for name, value in os.environ.items() if not name.startswith("TUNER_")},
        )
    assert served.stdout is not None
    try:
        (page,) = [word for word in served.stdout.readline().split() if word.startswith("http")]
        yield Client(page.removesuffix("/docs;"), None)
    finally:
        served.terminate()
        served.wait(60)
        served.stdout.close()


def test_a_study_over_http_ends_as_one_of_the_command_line(
    client: Client, tmp_path: Path, small_model: Path
) -> None:
    space = SPACE.format(model=small_model)
    client.post("/v1/studies", {"space": space, "trials": 2, "name": "s"})
    events = list(client.events("/v1/studies/s/events", None, follow=True))
    texts = "\n".join(str(event.data["text"]) for event in events)
    assert client.get("/v1/studies/s")["state"] == "finished", texts
    assert [event.name for event in events].count("trial_measured") == 2, texts
    assert str(small_model.parent) not in texts
    phases = [event.data for event in events if event.name == "trial_phase" and event.data["trial"] == 0]
    names = [phase["phase"] for phase in phases]
    assert names[:2] == ["sent out", "starting the engine"]
    assert names == sorted(names, key=list(PhaseName).index)
    assert {"warming up", "replaying"} <= set(names)  # what comes last may be over before it is heard of
    assert "importing" in [phase["stage"] for phase in phases]
    assert all(phase["node"] for phase in phases)
    over_http = client.get("/v1/studies/s/front")
    printed = _json("front", "s", cwd=tmp_path)
    assert over_http | {"trace": None} == printed | {"trace": None}
    assert over_http["engine"] == "vllm"
    assert over_http["counts"]["measured"] == 2
    assert not any(trial["simulated"] for trial in over_http["front"])

    (tmp_path / "space.yaml").write_text(space)
    simulated = ("--engine", "simulated", "--trials", "2", "--study", "by-hand")
    by_hand = _json("search", "--space", "space.yaml", *simulated, cwd=tmp_path)
    assert over_http.keys() == by_hand.keys()
    assert over_http["front"][0].keys() == by_hand["front"][0].keys()


def _json(*words: str, cwd: Path) -> dict[str, Any]:
    done = subprocess.run([TUNER, *words, "--json"], cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told
