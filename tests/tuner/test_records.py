import dataclasses
import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.order import Cause, Failed, Measured, Ran, Step
from objectives.measurement import Estimate, LoadPoint, Measurement, Mode
from tests.tuner import stories
from tuner.records import (
    RecordError,
    State,
    StoredTrial,
    read_outcome,
    read_study,
    read_trials,
    write_outcome,
    write_study,
)
from tuner.series import read_records, read_samples


def test_a_measured_trial_comes_back_as_it_went_to_disk(tmp_path: Path) -> None:
    outcome = stories.measured(more={"e2e_p99_s": Estimate(value=math.inf, low=1.0)})
    trial = stories.stored(outcome)
    folder = write_outcome(tmp_path, trial, outcome)
    assert read_outcome(folder) == trial
    assert read_records(folder / "requests.parquet") == outcome.records
    assert read_samples(folder / "counters.parquet") == outcome.samples
    assert (folder / "engine.log").read_text() == "up\n"
    assert (folder / "command.txt").read_text() == "serve --max-num-seqs 16\n"


def test_a_failed_trial_comes_back_with_its_cause_and_no_number(tmp_path: Path) -> None:
    outcome = stories.failed(Cause.OUT_OF_MEMORY, "no KV blocks left")
    folder = write_outcome(tmp_path, stories.stored(outcome), outcome)
    trial = read_outcome(folder)
    assert (trial.state, trial.cause, trial.reason) == (
        State.FAILED,
        Cause.OUT_OF_MEMORY,
        "no KV blocks left",
    )
    assert trial.measurement is None
    assert read_records(folder / "requests.parquet") == ()


_FINITE = st.floats(0, 1e6)
_ESTIMATES = st.builds(
    Estimate, value=st.floats(allow_nan=False), low=st.none() | _FINITE, high=st.none() | _FINITE
)
_METRICS = st.dictionaries(st.sampled_from(["goodput_rps", "tpot_p95_s", "e2e_p99_s"]), _ESTIMATES)
_POINTS = st.builds(
    LoadPoint,
    speed=_FINITE,
    offered_rps=st.none() | _FINITE,
    requests=st.integers(1, 9),
    misses=st.integers(0, 9),
    held=st.booleans(),
    cut_s=st.none() | _FINITE,
    took_s=_FINITE,
    saved_s=_FINITE,
    metrics=_METRICS,
)
_MEASUREMENTS = st.builds(
    Measurement,
    metrics=_METRICS,
    requests=st.integers(1, 9),
    failed_requests=st.integers(0, 9),
    duration_s=_FINITE,
    accepted_per_position=st.none() | st.lists(_FINITE).map(tuple),
    warnings=st.lists(st.text()).map(tuple),
    disagreements=st.lists(st.text()).map(tuple),
    mode=st.sampled_from(Mode),
    curve=st.lists(_POINTS, max_size=4).map(tuple),
)


@settings(deadline=None, max_examples=50)  # every example waits for the disk
@given(measurement=_MEASUREMENTS, points=st.lists(_POINTS, max_size=3))
def test_whatever_was_measured_comes_back(measurement: Measurement, points: list[LoadPoint]) -> None:
    steps = tuple(Step(point=point, records=(), samples=()) for point in points)
    outcome = dataclasses.replace(stories.measured(), measurement=measurement, steps=steps)
    trial = stories.stored(outcome)
    with TemporaryDirectory() as folder:
        read = read_outcome(write_outcome(Path(folder), trial, outcome))
    assert read == trial
    assert read.measurement == measurement
    assert read.step_speeds == tuple(point.speed for point in points)


def _step(speed: float, request: int) -> Step:
    point = LoadPoint(speed=speed, offered_rps=1.0, requests=1, misses=0, held=True, took_s=1.0)
    record = dataclasses.replace(stories.RECORDS[0], request=request)
    return Step(point=point, records=(record,), samples=stories.SAMPLES[:request])


@pytest.mark.parametrize("outcome", [stories.measured(), stories.failed(Cause.STUCK)])
def test_every_further_replay_is_kept_in_the_order_it_was_played(
    tmp_path: Path, outcome: Measured | Failed
) -> None:
    steps = (_step(2.0, 1), _step(1.5, 2))
    outcome = dataclasses.replace(outcome, steps=steps)
    folder = write_outcome(tmp_path, stories.stored(outcome), outcome)
    assert read_outcome(folder).step_speeds == (2.0, 1.5)
    for number, step in enumerate(steps, 1):
        assert read_records(folder / f"steps/{number:02d}-requests.parquet") == step.records
        assert read_samples(folder / f"steps/{number:02d}-counters.parquet") == step.samples
    assert len(list((folder / "steps").iterdir())) == 4


def test_a_trial_of_one_replay_has_no_folder_for_others(tmp_path: Path) -> None:
    outcome = stories.measured()
    assert not (write_outcome(tmp_path, stories.stored(outcome), outcome) / "steps").exists()


def test_a_trial_of_before_there_was_a_capacity_is_read_as_a_fixed_load(tmp_path: Path) -> None:
    outcome = stories.measured()
    folder = write_outcome(tmp_path, stories.stored(outcome), outcome)
    raw = json.loads((folder / "outcome.json").read_text())
    del raw["step_speeds"]
    for name in ("mode", "curve", "disagreements"):
        del raw["measurement"][name]
    (folder / "outcome.json").write_text(json.dumps(raw))
    assert read_outcome(folder) == stories.stored(outcome)
    assert stories.stored(outcome).measurement == stories.measurement()


def test_the_requests_file_can_be_read_without_this_code(tmp_path: Path) -> None:
    outcome = stories.measured()
    folder = write_outcome(tmp_path, stories.stored(outcome), outcome)
    table = pq.read_table(folder / "requests.parquet").to_pydict()
    assert table["chunk_s"] == [[0.25, 0.5, 0.75], []]
    # request 0: first chunk 0.25 s after due; 4 tokens in the 0.5 s after it; request 1 never left.
    assert table["ttft_s"] == [0.25, math.inf]
    assert table["tpot_s"] == [0.125, math.inf]


def test_the_outcome_is_strict_json_even_with_infinite_metrics(tmp_path: Path) -> None:
    outcome = stories.measured(more={"e2e_p99_s": Estimate(value=math.inf)})
    folder = write_outcome(tmp_path, stories.stored(outcome), outcome)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    json.loads((folder / "outcome.json").read_text(), parse_constant=refuse)


def test_no_secret_reaches_the_disk(tmp_path: Path) -> None:
    secrets = ("hf_abcdefgh12", "of-the-driver")
    ran = Ran(log="using token hf_abcdefgh12 via http://me:hunter2@proxy\n", command=("serve", "--a", "b"))
    outcome = Failed(
        cause=Cause.DIED_AT_START, reason="of-the-driver refused by http://me:hunter2@proxy", ran=ran
    )
    order = stories.order(HF_TOKEN="hf_abcdefgh12", HTTP_PROXY="http://me:hunter2@proxy", LANG="C")
    trial = StoredTrial.of(
        order,
        outcome,
        config={},
        is_control=False,
        attempts=1,
        started=stories.MORNING,
        finished=stories.MORNING,
        tuner_version="0",
        secrets=secrets,
    )
    write_outcome(tmp_path, trial, outcome, secrets=secrets)
    write_study(tmp_path, stories.study_file())
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        content = path.read_bytes()
        assert b"hunter2" not in content, path
        assert b"hf_abcdefgh12" not in content, path
        assert b"of-the-driver" not in content, path


def test_half_written_and_foreign_folders_are_not_trials(tmp_path: Path) -> None:
    outcome = stories.measured()
    write_outcome(tmp_path, stories.stored(outcome, 2), outcome)
    write_outcome(tmp_path, stories.stored(outcome, 1), outcome)
    (tmp_path / "trials" / ".0003.part").mkdir()
    (tmp_path / "trials" / "notes").mkdir()
    assert [trial.number for trial in read_trials(tmp_path)] == [1, 2]


def test_a_part_that_a_killed_driver_left_is_written_anew(tmp_path: Path) -> None:
    left = tmp_path / "trials" / ".0007.part"
    left.mkdir(parents=True)
    (left / "outcome.json").write_text("{")
    outcome = stories.measured()
    folder = write_outcome(tmp_path, stories.stored(outcome), outcome)
    assert read_outcome(folder).number == 7
    assert not left.exists()


def test_a_trial_is_never_written_over(tmp_path: Path) -> None:
    outcome = stories.measured()
    write_outcome(tmp_path, stories.stored(outcome), outcome)
    with pytest.raises(OSError, match="0007"):
        write_outcome(tmp_path, stories.stored(stories.failed()), stories.failed())
    assert read_trials(tmp_path)[0].state is State.MEASURED


def test_a_study_without_trials_has_none(tmp_path: Path) -> None:
    assert read_trials(tmp_path) == ()


def test_a_study_file_comes_back_as_written_save_for_passwords(tmp_path: Path) -> None:
    study = stories.study_file()
    write_study(tmp_path / "tea", study)
    options = {**study.options, "storage": "postgresql://me:***@host/db"}
    expected = dataclasses.replace(study, options=options)
    assert read_study(tmp_path / "tea") == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "study.json: cannot be read"),
        ("[]", "expected an object, got list"),
        ('{"schema": 1}', "KeyError"),
        ('{"schema": 99}', "schema 99, this version reads 1"),
    ],
)
def test_a_damaged_study_file_is_named_with_what_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "study.json").write_text(text)
    with pytest.raises(RecordError, match=words):
        read_study(tmp_path)


def test_a_missing_study_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no such file"):
        read_study(tmp_path)
