"""Promises and verifications survive being written down."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.tuner.verify.promises import PROMISED, pairs
from tuner.mistakes import Mistake
from tuner.records import RecordError
from tuner.verify.judge import judged
from tuner.verify.promised import promised_from, promised_json
from tuner.verify.stored import VERIFY, latest_verification, verification_json, write_verification
from tuner.verify.verification import Played, Quality, Verification

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


def verification(trial: int = 3, finished: datetime = NOON) -> Verification:
    kept, unjudged = judged(PROMISED, pairs(8.0, 0.02))
    return Verification(
        study="s",
        trial=trial,
        source="study",
        held=True,
        why="all held",
        promises=kept,
        not_judged=unjudged,
        level=0.01,
        rate=0.05,
        pairs=4,
        quality=Quality(passed=True, words="passed"),
        stress=(),
        traffic=Played(words="made", held_out=True, digests=("a", "b"), speed=1.0, requests=200),
        engine="vllm",
        version="0.32.0",
        hardware="CPU",
        simulated=False,
        started=NOON - timedelta(hours=1),
        finished=finished,
        tuner_version="0.1.0",
    )


def test_a_promise_reads_back_as_it_was() -> None:
    raw = json.loads(json.dumps(promised_json(PROMISED), allow_nan=False))
    assert promised_from(raw, "here") == PROMISED


@pytest.mark.parametrize("raw", [None, [], {"study": "s"}, {**promised_json(PROMISED), "more": 1}])
def test_what_is_no_promise_is_told_with_its_place(raw: object) -> None:
    with pytest.raises(Mistake, match=r"^deploy/provenance.json: says not what is promised"):
        promised_from(raw, "deploy/provenance.json")  # type: ignore[arg-type]


def test_the_verification_that_was_finished_last_counts(tmp_path: Path) -> None:
    for name, found in (
        ("trial-0003", verification(finished=NOON)),
        ("trial-0003-2", verification(finished=NOON + timedelta(days=1))),
        ("trial-0004", verification(trial=4, finished=NOON + timedelta(days=2))),
    ):
        write_verification(tmp_path / VERIFY / name, found)
    assert latest_verification(tmp_path, 3) == verification(finished=NOON + timedelta(days=1))
    assert latest_verification(tmp_path, 5) is None


def test_one_that_cannot_be_read_is_told_and_not_passed_over(tmp_path: Path) -> None:
    write_verification(tmp_path / VERIFY / "trial-0003", verification())
    path = tmp_path / VERIFY / "trial-0003" / "verification.json"
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 9'))
    with pytest.raises(RecordError, match="this version reads 1"):
        latest_verification(tmp_path, 3)


def test_json_has_no_infinity() -> None:
    json.dumps(verification_json(verification()), allow_nan=False)
