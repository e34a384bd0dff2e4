"""`tuner verify --endpoint` as a user meets it, against a server that asks for a key."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.node.test_running_server import KEY, order, punctual, server
from tests.tuner.verify.conftest import Run

__all__ = ["order", "punctual", "server"]

Serving = tuple[str, list[tuple[str, str]]]


def measured_for_real(runs: Path, model: Path) -> None:
    """Says of the simulated study that it was none, of a model whose tokenizer is at hand."""
    study = json.loads((runs / "s" / "study.json").read_text())
    study["engine"] = "vllm"
    study["space_text"] = study["space_text"].replace("meta-llama/Llama-3.1-8B-Instruct", str(model))
    (runs / "s" / "study.json").write_text(json.dumps(study))
    for path in (runs / "s" / "trials").glob("*/outcome.json"):
        raw: dict[str, Any] = json.loads(path.read_text())
        raw["ran"] |= {"engine": "vllm", "version": "0.98.0"}
        path.write_text(json.dumps(raw))


def test_a_server_is_held_to_what_can_be_told_of_it_and_its_key_is_kept_secret(
    run: Run, server: Serving, order: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, asked = server
    measured_for_real(tmp_path / "runs", tmp_path)
    monkeypatch.setenv("MY_KEY", KEY)
    words = ("verify", "s", "--trial", "1", "--pairs", "1", "--endpoint", f"{url}/v1", "--rate", "1000")
    refused = run(*words)
    assert refused.exit_code == 2
    assert asked == []  # without the user's word nothing is sent
    result = run(*words, "--may-load", "--key-variable", "MY_KEY", "--json")
    # Nobody has checked the quality of a study that never ran, and that is no pass.
    assert result.exit_code == 3, result.output
    found = json.loads(result.stdout)
    assert found["source"] == "endpoint"
    assert found["version"] == "0.99.0"
    assert "another engine than the promise is of: 0.99.0, not 0.98.0" in found["notes"]
    assert found["not_judged"] == ["goodput: it takes the full load, which a server in use is not put under"]
    names = [kept["name"] for kept in found["promises"]]
    assert names == ["tpot_p95", "ttft_p95_ms", "tpot_p95_ms", "slo_attainment"]
    assert not any(kept["against_control"] for kept in found["promises"])
    assert sum(method == "POST" for method, _ in asked) == 40 + 2
    kept = [path for path in (tmp_path / "runs" / "servers").rglob("*") if path.is_file()]
    assert any(path.name == "verification.json" for path in kept)
    assert all(KEY.encode() not in path.read_bytes() for path in kept)
    assert KEY not in result.output
    assert not (tmp_path / "runs" / "s" / "verify").exists()
