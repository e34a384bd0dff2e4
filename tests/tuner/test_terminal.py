"""What a person reads: one line an event, numbers in people's units, what comes next."""

from dataclasses import replace
from pathlib import Path

from cluster.order import Cause, Failed
from tests.tuner.test_export import STUDY, TRIAL
from tuner.front import view
from tuner.study import Event, Finished, Started, Waiting
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
    text = "\n".join(front_lines(view(STUDY, [TRIAL]), width=120))
    assert "3.25" in text
    assert "3–3.5" in text
    assert "trial 5: prefix_cache=off speculation=ngram speculation.depth=4" in text


def test_the_next_command_exports_the_best_trial_of_this_very_study() -> None:
    lines = next_steps(view(STUDY, [TRIAL]), runs=Path("else"), tracking_uri="sqlite:///x", logged=True)
    assert "tuner export s --trial 5 --to vllm --out deploy/ --runs else" in lines[1]
    assert "tuner ui --tracking-uri sqlite:///x" in lines[0]


def test_a_quiet_search_says_what_runs_how_far_it_is_and_the_best_so_far() -> None:
    event = Waiting(running_s={6: 42.0}, view=view(STUDY, [TRIAL]), total=8, eta_s=95.0)
    assert _said(event).endswith(
        "running trial 6 for 42 s [1 of 8 done, best goodput_rps 3.25 (trial 5), about 2 min left]"
    )


def test_where_nothing_beat_the_control_it_says_so_and_how_to_go_on() -> None:
    control = replace(TRIAL, number=0, is_control=True, config=None)
    lines = next_steps(view(STUDY, [control]), runs=Path("runs"), tracking_uri="sqlite:///x", logged=True)
    assert "tuner search --study s --resume --trials 2" in lines[1]
    assert lines[2] == "next: tuner export s --trial 0 --to vllm --out deploy/"


def test_a_log_that_mlflow_lacks_is_not_said_to_be_there() -> None:
    (first, *_) = next_steps(
        view(STUDY, [TRIAL]), runs=Path("runs"), tracking_uri="http://a:b@h", logged=False
    )
    assert first == "MLflow at http://a:***@h does not have it all; it is safe in runs/s"
