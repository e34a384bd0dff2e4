import io

import pytest
from rich.console import Console

from cluster.order import Outcome
from cluster.phase import Phase, PhaseName
from tests.tuner import stories
from tuner.events import Event, Finished, FrontMoved, Retried, Started, UnderWay, Waiting
from tuner.front import view
from tuner.live import LiveState, picture, search_progress
from tuner.live_plot import CONTROL, DOMINATED, FRONT, Place, plot_lines


class Clock:
    """Tells the time that it is set to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def finished(
    number: int, outcome: Outcome, *, eta_s: float | None = None, repeats: int | None = None
) -> Finished:
    return Finished(
        number=number,
        config={},
        is_control=number == 0,
        outcome=outcome,
        unscored=None,
        on_front=False,
        repeats=repeats,
        objectives=("goodput_rps", "tpot_p95_ms"),
        done=number + 1,
        total=8,
        eta_s=eta_s,
    )


def told(state: LiveState, *, width: int = 120, height: int = 40, colour: bool = False) -> str:
    console = Console(
        file=io.StringIO(), width=width, record=True, force_terminal=colour, no_color=not colour
    )
    console.print(picture(state, width=width, height=height))
    return console.export_text(styles=colour)


def replay(number: int, ended: int | None = None) -> Phase:
    return Phase(name=PhaseName.REPLAYING, replay=number, speed=1.25, requests=20, ended=ended)


def taken(*events: Event, clock: Clock | None = None) -> LiveState:
    state = LiveState(clock=clock or Clock())
    for event in events:
        state.take(event)
    return state


def test_what_runs_is_shown_with_its_time_beside_what_trials_take() -> None:
    clock = Clock()
    state = taken(Started(number=0, config=None, is_control=True), clock=clock)
    clock.now += 90
    state.take(finished(0, stories.measured()))
    state.take(Started(number=1, config={"speculation": "ngram"}, is_control=False))
    clock.now += 30
    text = told(state)
    assert "00:30 of about 01:30" in text
    assert "speculation=ngram" in text
    assert "trial 0" not in text


@pytest.mark.parametrize("colour", [False, True])
def test_what_runs_is_shown_with_its_node_and_phase_and_since_when_it_is_in_it(colour: bool) -> None:
    clock = Clock()
    state = taken(
        Started(number=1, config={"speculation": "ngram"}, is_control=False),
        UnderWay(number=1, node="gpu-a", phase=Phase(name=PhaseName.STARTING, stage="loading weights")),
        Started(number=2, config={"speculation": "off"}, is_control=False),
        UnderWay(number=2, node="gpu-b", phase=replay(3)),
        clock=clock,
    )
    clock.now += 30
    state.take(UnderWay(number=2, node="gpu-b", phase=replay(3, ended=9)))
    state.take(UnderWay(number=1, node="gpu-a", phase=Phase(name=PhaseName.WARMING_UP)))
    clock.now += 12
    head, _, first, second, *_ = (line.rstrip() for line in told(state, colour=colour).splitlines())
    assert first.split()[:4] == ["trial", "1", "00:42", "gpu-a"]
    assert "warming up" in first
    assert "00:12 speculation=ngram" in " ".join(first.split())
    # Further in a phase is still the same phase.
    assert "gpu-b replay 3 at speed 1.25, 45% 00:42 speculation=off" in " ".join(second.split())
    assert ("\x1b[" in head) is colour


def test_a_trial_that_told_nothing_yet_or_was_sent_again_has_no_phase() -> None:
    state = taken(Started(number=1, config={"a": 1}, is_control=False))
    assert "sent out" in told(state)
    state.take(UnderWay(number=1, node=None, phase=replay(1)))
    assert "replay 1" in told(state)
    state.take(Retried(number=1, reason="lost node: gone"))
    assert "sent out" in told(state)
    state.take(UnderWay(number=7, node=None, phase=replay(1)))  # of no trial that runs
    assert "replay 1" not in told(state)


def test_where_nodes_are_not_told_apart_or_the_terminal_is_narrow_there_is_no_node() -> None:
    events = (
        Started(number=1, config={"a": 1}, is_control=False),
        UnderWay(number=1, node="gpu-a", phase=replay(1)),
    )
    assert "node" in told(taken(*events))
    assert "node" not in told(taken(*events), width=80)
    assert "node" not in told(taken(events[0], UnderWay(number=1, node=None, phase=replay(1))))


def test_the_head_tells_how_far_it_is_what_failed_the_best_and_the_time_left() -> None:
    clock = Clock()
    state = taken(
        finished(0, stories.measured(2.0)),
        FrontMoved(numbers=(0,)),
        finished(1, stories.failed()),
        finished(2, stories.measured(3.0, 0.05), eta_s=600),
        FrontMoved(numbers=(0, 2)),
        clock=clock,
    )
    clock.now += 120
    head = told(state).splitlines()[0]
    assert "3 of 8 trials done" in head
    assert "1 failed" in head
    assert "best trial 2: goodput_rps 3, tpot_p95_ms 50" in head
    assert "about 8 min left" in head


def test_less_is_best_of_an_objective_that_is_minimised() -> None:
    state = taken(
        finished(1, stories.measured()), finished(2, stories.measured()), FrontMoved(numbers=(1, 2))
    )
    state.objectives = ("tpot_p95_ms",)
    state.values = {1: {"tpot_p95_ms": 30.0}, 2: {"tpot_p95_ms": 20.0}}
    assert state.best == 2


def test_waiting_brings_the_time_left_up_to_date() -> None:
    clock = Clock()
    state = taken(Waiting(running_s={}, view=view(stories.study_file(), []), total=8, eta_s=300), clock=clock)
    clock.now += 60
    assert "about 4 min left" in told(state)


def test_a_repeat_is_said_to_be_one_and_is_no_point_of_its_own() -> None:
    state = taken(Started(number=3, config={"a": 1}, is_control=False, repeats=1))
    assert "trial 1 again: a=1" in told(state)
    state.take(finished(3, stories.measured(), repeats=1))
    assert state.values == {}


def test_a_low_terminal_has_no_plot_and_a_narrow_one_no_line_that_wraps() -> None:
    events = (
        finished(0, stories.measured()),
        Started(number=1, config={"name": "x" * 300}, is_control=False),
        UnderWay(number=1, node="n" * 50, phase=replay(1, ended=4)),
    )
    assert "│" in told(taken(*events))
    assert "│" not in told(taken(*events), height=20)
    assert all(len(line) <= 40 for line in told(taken(*events), width=40).splitlines())


def test_marks_stand_where_the_values_are() -> None:
    places = [
        Place(x=0.0, y=0.0, mark=DOMINATED),
        Place(x=10.0, y=5.0, mark=FRONT),
        Place(x=5.0, y=2.5, mark=CONTROL),
    ]
    lines = plot_lines(places, x_name="goodput", y_name="tpot", width=25, height=5)
    assert "tpot over goodput" in lines[0]
    # "5 │" and "0 │" take three columns, 21 are left once the margin is taken.
    rows = [line.split("│", 1)[1] for line in lines[1:6]]
    across = len(rows[0])
    assert rows[0].rstrip()[-1] == FRONT
    assert len(rows[0].rstrip()) == across
    assert rows[2].index(CONTROL) == (across - 1) // 2
    assert rows[4][0] == DOMINATED
    assert lines[1].startswith("5 │")
    assert lines[5].startswith("0 │")
    assert lines[-1].split() == ["0", "10"]


def test_the_front_is_drawn_over_what_it_dominates_and_one_trial_still_makes_a_plot() -> None:
    crowd = [Place(x=1.0, y=1.0, mark=FRONT), Place(x=1.0, y=1.0, mark=DOMINATED)]
    text = "\n".join(plot_lines(crowd, x_name="x", y_name="y", width=30, height=3)[1:])
    assert FRONT in text
    assert DOMINATED not in text
    assert plot_lines([], x_name="x", y_name="y", width=30, height=3) == []


def test_where_there_is_no_terminal_lines_are_plain() -> None:
    said: list[str] = []
    with search_progress(io.StringIO(), said.append) as show:
        show(Started(number=1, config={"a": 1}, is_control=False))
        show(UnderWay(number=1, node=None, phase=replay(1)))
    assert len(said) == 1
    assert said[0].endswith("trial 1 started: a=1")


@pytest.mark.parametrize("no_colour", [True, False])
def test_in_a_terminal_lines_scroll_above_what_is_alive(
    monkeypatch: pytest.MonkeyPatch, no_colour: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    if no_colour:
        monkeypatch.setenv("NO_COLOR", "1")
    stream, said = Terminal(), list[str]()
    with search_progress(stream, said.append) as show:
        show(Started(number=1, config={"a": "[red]x"}, is_control=False))
        show("a remark")
    text = stream.getvalue()
    assert said == []
    assert "trial 1 started: a=[red]x" in text
    assert "a remark" in text
    assert "\x1b[?25h" in text  # the cursor is there
    if no_colour:
        assert "\x1b[3" not in text  # 30 to 39 are colours


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    said: list[str] = []
    with search_progress(Terminal(), said.append) as show:
        show("hello")
    assert len(said) == 1
