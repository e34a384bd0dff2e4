"""What a person reads: one line an event, numbers in people's units, what comes next."""

from dataclasses import replace
from pathlib import Path

from cluster.order import Cause, Failed, Measured
from cluster.phase import Phase, PhaseName
from objectives.measurement import Estimate
from search_spaces.measure import Fixed
from tests.tuner import loads, stories
from tests.tuner.test_export import STUDY, TRIAL
from tests.tuner.verdicts import passed, verdict
from tuner.events import UnderWay
from tuner.front import view
from tuner.quality import Checks
from tuner.records import StoredTrial
from tuner.study import Event, Finished, Retried, Started, Waiting
from tuner.terminal import Progress, config_words, front_lines, next_steps


def _said(event: Event) -> str:
    lines: list[str] = []
    Progress(say=lines.append).show(event)
    (line,) = lines
    return line


def test_a_started_trial_says_its_config() -> None:
    assert "control, the engine's defaults" in _said(Started(number=0, config=None, is_control=True))
    line = _said(Started(number=3, config={"speculation": "ngram", "speculation.depth": 4}, is_control=False))
    assert line.endswith("trial 3 started: speculation=ngram speculation.depth=4")


def test_a_failed_trial_says_cause_reason_progress_and_time_left() -> None:
    event = Finished(
        number=2,
        config={},
        is_control=False,
        outcome=Failed(cause=Cause.UNSUPPORTED, reason="no kernel for fp8"),
        unscored=None,
        on_front=False,
        objectives=("goodput_rps",),
        done=3,
        total=8,
        eta_s=301.0,
    )
    assert _said(event).endswith(
        "trial 2 failed, unsupported: no kernel for fp8 [3 of 8 done, about 6 min left]"
    )


def test_booleans_and_nothing_read_as_in_yaml() -> None:
    assert config_words({"a": True, "b": 0.5, "c": "x"}) == "a=true b=0.5 c=x"
    assert config_words({}) == "the engine's defaults"


def test_the_table_has_objectives_with_intervals_and_each_config_on_a_line() -> None:
    text = "\n".join(front_lines(view(STUDY, [TRIAL], passed([TRIAL])), width=120))
    assert "3.25" in text
    assert "3–3.5" in text
    assert "trial 5: prefix_cache=off speculation=ngram speculation.depth=4" in text


def _repeated(number: int, goodput: float, repeats: int | None = None) -> StoredTrial:
    return replace(stories.stored(stories.measured(goodput, 0.04), number), repeats=repeats)


def test_a_repeat_says_whose_config_it_measures() -> None:
    started = Started(number=9, config={"a": 1}, is_control=False, repeats=3)
    assert _said(started).endswith("trial 9 started: (trial 3 again) a=1")
    finished = Finished(
        number=9,
        config={"a": 1},
        is_control=False,
        outcome=stories.measured(),
        unscored=None,
        on_front=True,
        repeats=3,
        objectives=("goodput_rps",),
        done=9,
        total=10,
        eta_s=None,
    )
    assert "trial 9 (trial 3 again) measured: goodput_rps 2 (on the front)" in _said(finished)


def test_the_front_says_what_was_measured_again_and_what_it_showed_at_first() -> None:
    trials = [_repeated(0, 1.0), _repeated(3, 9.0), _repeated(8, 6.0, 3), _repeated(9, 6.0, 3)]
    lines = front_lines(view(replace(stories.study_file(), objectives=("goodput",)), trials), width=120)
    assert "trial 0 (control): the engine's defaults; measured once" in lines
    (told,) = (line for line in lines if line.startswith("trial 3:"))
    assert told.endswith("; measured again twice (trials 8, 9), goodput_rps was 9 at first")


def test_what_held_is_recommended_and_shown_though_a_single_measurement_beats_it() -> None:
    trials = [_repeated(3, 9.0), _repeated(4, 8.0), _repeated(8, 6.0, 3)]
    seen = view(replace(stories.study_file(), objectives=("goodput",), engine="vllm"), trials, passed(trials))
    text = "\n".join(front_lines(seen, width=120))
    assert "recommended: trial 3, the best of those measured again; trial 4 shows more" in text
    assert "trial 3: " in text
    steps = next_steps(seen, runs=Path("runs"), tracking_uri="sqlite:///x", logged=True)
    assert "--trial 3" in steps[-1]


def test_a_config_that_failed_when_measured_again_is_told_with_the_reason() -> None:
    failed = replace(stories.stored(stories.failed(Cause.DIED_UNDER_LOAD, "CUDA error"), 8), repeats=3)
    lines = front_lines(view(stories.study_file(), [_repeated(3, 9.0), _repeated(4, 8.0), failed]))
    assert "trial 3 failed when it was measured again (trial 8): CUDA error" in lines


def test_the_next_commands_verify_and_export_the_best_trial_of_this_very_study() -> None:
    lines = next_steps(
        view(STUDY, [TRIAL], passed([TRIAL])), runs=Path("else"), tracking_uri="sqlite:///x", logged=True
    )
    assert lines[1:] == [
        "next: tuner verify s --trial 5 --runs else",
        "then: tuner export s --trial 5 --to vllm --out deploy/ --runs else",
    ]
    assert "tuner ui --tracking-uri sqlite:///x" in lines[0]


def test_a_quiet_search_says_what_runs_how_far_it_is_and_the_best_so_far() -> None:
    event = Waiting(running_s={6: 42.0}, view=view(STUDY, [TRIAL], passed([TRIAL])), total=8, eta_s=95.0)
    assert _said(event).endswith(
        "running trial 6 for 42 s [1 of 8 done, best goodput_rps 3.25 (trial 5), about 2 min left]"
    )


def test_what_is_waited_for_is_told_with_its_phase_and_a_phase_has_no_line_of_its_own() -> None:
    lines: list[str] = []
    show = Progress(say=lines.append).show
    waiting = Waiting(running_s={6: 42.0, 7: 3.0}, view=view(STUDY, []), total=8, eta_s=None)
    replay = Phase(name=PhaseName.REPLAYING, replay=2, speed=1.25, requests=8, ended=2)
    show(UnderWay(number=6, node="a", phase=replay))
    assert lines == []
    show(waiting)
    assert lines.pop().endswith(
        "running trial 6 for 42 s (replay 2 at speed 1.25, 25%), trial 7 for 3 s [0 of 8 done]"
    )
    show(Retried(number=6, reason="lost node: gone"))
    show(waiting)
    assert "running trial 6 for 42 s, trial 7" in lines[-1]


def test_where_nothing_beat_the_control_it_says_so_and_how_to_go_on() -> None:
    control = replace(TRIAL, number=0, is_control=True, config=None)
    lines = next_steps(
        view(STUDY, [control], passed([control])), runs=Path("runs"), tracking_uri="sqlite:///x", logged=True
    )
    assert "tuner search --study s --resume --trials 2" in lines[1]
    assert lines[2] == "next: tuner verify s --trial 0"


def test_a_log_that_mlflow_lacks_is_not_said_to_be_there() -> None:
    (first, *_) = next_steps(
        view(STUDY, [TRIAL], passed([TRIAL])), runs=Path("runs"), tracking_uri="http://a:b@h", logged=False
    )
    assert first == "MLflow at http://a:***@h does not have it all; it is safe in runs/s"


def _finished(outcome: Measured) -> str:
    return _said(
        Finished(
            number=2,
            config={},
            is_control=False,
            outcome=outcome,
            unscored=None,
            on_front=True,
            objectives=("capacity_rps", "tpot_p95_ms"),
            done=3,
            total=8,
            eta_s=None,
        )
    )


def test_a_measured_trial_says_its_capacity_its_replays_and_what_cuts_saved() -> None:
    assert _finished(loads.measured()).endswith(
        "trial 2 measured: capacity 12 (11.4 to 13.2) requests/s, tpot_p95_ms 40; "
        "4 replays, 2 of them cut, 10 s saved (on the front) [3 of 8 done]"
    )


def test_a_trial_that_the_engine_contradicts_is_marked_as_it_comes_in() -> None:
    line = _finished(loads.measured(disagreements=("tokens differ",)))
    assert "(on the front, client and engine disagree)" in line


def test_a_trial_in_a_closed_loop_says_so_as_it_comes_in() -> None:
    assert "trial 2 measured in a closed loop: tpot_p95_ms 40 (on the front)" in _finished(
        loads.in_closed_loop()
    )


def test_the_front_says_what_a_capacity_is_and_of_what_load_the_rest_is() -> None:
    trials = [
        stories.stored(loads.measured(curve), n) for n, curve in enumerate((loads.BETWEEN, loads.BELOW))
    ]
    trials.append(stories.stored(loads.measured(loads.ABOVE, disagreements=("tokens differ",)), 2))
    lines = front_lines(view(loads.study(), trials), width=140)
    assert lines[:3] == [
        "Front of tea (SIMULATED, not measured)",
        "capacity: the highest offered rate at which the SLO holds, known to 5 %",
        "other columns: the reference load, speed 1.5, 6 requests/s offered",
    ]
    text = "\n".join(lines)
    assert "at least 96" in text
    assert "! trial 2, client and engine disagree: tokens differ" in lines
    assert any(line.startswith("│         2 ! │") for line in lines)
    # Nine replays, of which two and one were cut; 10 and 7 s saved.
    assert "3 trials: 0 failed, 3 measured; 9 replays, 3 of them cut, 17 s saved" in lines


def test_a_capacity_below_the_lowest_load_is_never_shown_as_0() -> None:
    text = "\n".join(
        front_lines(view(loads.study(), [stories.stored(loads.measured(loads.BELOW), 1)]), width=140)
    )
    assert "below 1.5" in text
    assert "│              0 │" not in text


def test_the_capacity_has_a_column_where_it_is_no_objective() -> None:
    study = replace(loads.study(), objectives=("goodput",))
    assert "capacity req/s" in "\n".join(front_lines(view(study, [stories.stored(loads.measured(), 1)])))


def test_the_front_of_a_closed_loop_is_marked_and_speaks_of_no_speed() -> None:
    trial = replace(stories.stored(loads.in_closed_loop(), 0))
    lines = front_lines(view(loads.closed_study(), [trial]))
    assert lines[1] == "closed loop, 8 in flight: no load a user makes"
    assert "speed" not in "\n".join(lines)


def test_a_quiet_search_says_a_best_capacity_that_is_a_bound_as_a_bound() -> None:
    seen = view(loads.study(), [stories.stored(loads.measured(loads.ABOVE), 5)])
    line = _said(Waiting(running_s={6: 42.0}, view=seen, total=8, eta_s=None))
    assert "best capacity_rps at least 96 (trial 5)" in line


def test_the_front_of_a_fixed_load_names_it_and_does_not_count_replays() -> None:
    lines = front_lines(view(loads.study(Fixed()), [stories.stored(stories.measured(), 1)]))
    assert lines[1] == "fixed load: speed 1.5, 6 requests/s offered"
    assert "1 trials: 0 failed, 1 measured" in lines


def test_where_the_control_keeps_up_a_goodput_study_is_told_to_drive_harder_or_look_for_the_capacity() -> (
    None
):
    kept_up = stories.stored(stories.measured(more={"slo_attainment": Estimate(value=1.0)}), 0)
    (note,) = [line for line in front_lines(view(loads.study(Fixed()), [kept_up])) if "--speed" in line]
    assert note.endswith("raise --speed, or measure capacity")
    # The reference load of a search for the capacity is meant to be kept up with.
    met = front_lines(view(loads.study(), [stories.stored(loads.measured(), 0)]))
    assert "--speed" not in "\n".join(met)


def test_the_front_tells_of_quality_and_a_faster_config_that_answers_worse_is_not_on_it() -> None:
    trials = [
        replace(_repeated(0, 1.0), is_control=True),
        replace(_repeated(3, 9.0), arguments={"kv_cache_dtype": "fp8"}),
        replace(_repeated(4, 5.0), arguments={"quantization": "fp8"}),
    ]
    worse, control = trials[1].artefact, trials[0].artefact
    checks = Checks(
        verdicts={worse: verdict(worse, passed=False), control: verdict(control, is_reference=True)},
        unchecked={trials[2].artefact: "HTTP 500: no"},
    )
    study = replace(
        stories.study_file(), objectives=("goodput",), engine="vllm", options={"quality": {"tokens": 32}}
    )
    seen = view(study, trials, checks)
    assert seen.numbers == (0,)
    lines = front_lines(seen, width=120)
    assert "trial 0 quality: the reference" in lines
    assert "trial 4 quality not checked: HTTP 500: no; never recommended" in lines
    (told,) = (line for line in lines if line.startswith("trial 3 quality"))
    assert told == (
        "trial 3 quality failed: the reference's words cost 0.0639 nats a token more, and 0.02 is the most "
        "(NLL +0.0639 (0.0498 to 0.0765), KL 0.0159 (0.0125 to 0.0200) nats a token, "
        "agreement 93.4% (91.7% to 94.8%)); never recommended"
    )


def test_where_nothing_passed_the_check_of_quality_nothing_is_offered_for_export() -> None:
    study = replace(stories.study_file(), objectives=("goodput",), engine="vllm", options={"quality": {}})
    seen = view(study, [_repeated(3, 9.0)])
    steps = next_steps(seen, runs=Path("runs"), tracking_uri="sqlite:///x", logged=True)
    assert seen.recommended is None
    assert steps[-1] == (
        "no trial that was measured has passed the check of quality; tuner front tea says why"
    )
    assert "trial 3 quality not checked: there is no reference to compare it with; never recommended" in (
        front_lines(seen, width=120)
    )


def test_a_simulated_study_says_that_its_quality_was_not_checked_and_recommends_all_the_same() -> None:
    seen = view(replace(stories.study_file(), objectives=("goodput",)), [_repeated(3, 9.0)])
    assert "quality: simulated, not checked" in front_lines(seen, width=120)
    assert seen.recommended is not None
