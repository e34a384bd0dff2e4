import dataclasses
import json
from pathlib import Path

from cluster.order import Cause
from objectives.measurement import Estimate
from tests.tuner import loads, stories
from tuner.front import front_json, held, read_view, view
from tuner.records import State, StoredTrial, write_outcome, write_study


def test_what_failed_or_has_no_score_is_never_on_the_front() -> None:
    unscored = dataclasses.replace(stories.stored(stories.measured(9.0, 0.001), 2), state=State.UNSCORED)
    trials = [
        stories.stored(stories.measured(1.0, 0.05), 0),
        stories.stored(stories.failed(), 1),
        unscored,
    ]
    front = view(stories.study_file(), trials)
    assert front.numbers == (0,)
    assert front.counts == {"measured": 1, "failed": 1, "unscored": 1}


def test_the_front_is_read_from_disk_with_the_control_beside_it(tmp_path: Path) -> None:
    write_study(tmp_path, stories.study_file())
    for number, goodput in enumerate((1.0, 3.0)):
        outcome = stories.measured(goodput, 0.04)
        write_outcome(tmp_path, stories.stored(outcome, number), outcome)
    shown = json.loads(json.dumps(front_json(read_view(tmp_path))))
    assert shown["study"] == "tea"
    assert shown["engine"] == "simulated"
    assert [trial["number"] for trial in shown["front"]] == [1]
    # 4 requests/s as recorded, played 1.5 times as fast
    assert (shown["trace_digest"], shown["speed"], shown["offered_rps"]) == ("ab" * 32, 1.5, 6.0)
    (control,) = shown["control"]
    assert control["state"] == "measured"
    # 0.04 s inside, 40 ms where people read
    assert control["metrics"]["tpot_p95_ms"] == 40.0


def test_failures_are_grouped_by_cause_commonest_first() -> None:
    causes = [Cause.UNSUPPORTED, Cause.OUT_OF_MEMORY, Cause.OUT_OF_MEMORY]
    trials = [stories.stored(stories.failed(cause), n) for n, cause in enumerate(causes)]
    failures = view(stories.study_file(), trials).failures
    assert list(failures.items()) == [("out of memory", 2), ("unsupported", 1)]


def test_trials_on_the_front_whose_intervals_overlap_are_named_in_pairs() -> None:
    # Goodput ± 0.5: 3.0 and 3.4 overlap; 6.0 stands apart. TPOT has no upper end, so it overlaps always.
    trials = [
        stories.stored(stories.measured(3.0, 0.02), 1),
        stories.stored(stories.measured(3.4, 0.03), 2),
        stories.stored(stories.measured(6.0, 0.04), 3),
    ]
    seen = view(stories.study_file(), trials)
    assert seen.numbers == (1, 2, 3)
    assert seen.alike == ((1, 2),)


def test_the_best_first_is_by_the_first_objective_not_by_number() -> None:
    trials = [
        stories.stored(stories.measured(3.0, 0.02), 1),
        stories.stored(stories.measured(6.0, 0.04), 2),
        stories.stored(stories.measured(4.0, 0.03), 3),
    ]
    seen = view(stories.study_file(), trials)
    assert [trial.number for trial in seen.best_first] == [2, 3, 1]


def test_the_json_has_the_capacity_with_its_bracket_and_the_whole_curve() -> None:
    outcome = loads.measured(loads.BETWEEN, disagreements=("tokens differ",))
    measurement = dataclasses.replace(outcome.measurement, warnings=("no steady state",))
    trial = stories.stored(dataclasses.replace(outcome, measurement=measurement), 1)
    shown = json.loads(json.dumps(front_json(view(loads.study(), [trial])), allow_nan=False))
    assert (shown["mode"], shown["measure"]["resolution"]) == ("capacity", 0.05)
    assert shown["replays"] == {"played": 4, "cut": 2, "saved_s": 10.0}
    (found,) = shown["front"]
    assert found["capacity"] == {
        "text": "12 (11.4 to 13.2) requests/s",
        "side": None,
        "held_rps": 12.0,
        "failed_rps": 12.6,
        "resolution": found["capacity"]["resolution"],
    }
    assert round(found["capacity"]["resolution"], 9) == 0.05
    assert found["disagreements"] == ["tokens differ"]
    assert found["warnings"] == ["no steady state"]
    assert [(p["offered_rps"], p["held"], p["cut_s"]) for p in found["curve"]] == [
        (6.0, True, None),
        (12.0, True, None),
        (12.6, False, 5.0),
        (24.0, False, 2.0),
    ]
    # A p95 that too many failures leave without an upper end: JSON has no infinity.
    assert found["curve"][0]["metrics"]["e2e_p95_ms"]["high"] is None
    assert found["curve"][3]["metrics"] == {}


def test_the_json_of_a_closed_loop_has_its_concurrency_and_no_rate() -> None:
    trial = stories.stored(loads.in_closed_loop(), 1)
    shown = front_json(view(loads.closed_study(), [trial]))
    names = ("mode", "sessions", "concurrency", "speed", "offered_rps")
    assert tuple(shown[name] for name in names) == ("closed loop", "recorded", 8, None, None)


def test_the_slo_holds_at_exactly_its_share_and_where_nothing_was_measured_nobody_knows() -> None:
    study = loads.study()  # wants 95 %

    def trial(attainment: float) -> StoredTrial:
        return stories.stored(stories.measured(more={"slo_attainment": Estimate(value=attainment)}))

    assert held(study, trial(57 / 60)) is True
    assert held(study, trial(56 / 60)) is False
    assert held(study, stories.stored(stories.failed())) is None
