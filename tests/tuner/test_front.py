import dataclasses
import json
from pathlib import Path

from cluster.order import Cause
from tests.tuner import stories
from tuner.front import front_json, offered_rps, read_view, speed, view
from tuner.records import State, write_outcome, write_study


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


def test_a_trace_without_a_rate_or_a_study_without_a_speed_offers_no_number() -> None:
    study = stories.study_file()
    at_once = dataclasses.replace(study, trace_figures={"requests": 2, "rate": None})
    older = dataclasses.replace(study, options={})
    assert (offered_rps(at_once), speed(at_once)) == (None, 1.5)
    assert (offered_rps(older), speed(older)) == (None, None)
