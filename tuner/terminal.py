"""What a person sees in a terminal: a line an event, a table of the front, what comes next. Words only."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cluster.order import Failed, Measured
from cluster.phase import Phase
from objectives.measurement import Estimate, Measurement, Mode
from objectives.metrics import METRICS, published
from search_spaces.values import Scalar
from tuner.bracket import below_text, bracket, capacity_text, is_capacity, replays, resolution_text, side_of
from tuner.events import UnderWay
from tuner.front import FrontView
from tuner.loads import load_text, measured_text, mode
from tuner.records import StoredTrial
from tuner.redaction import without_passwords
from tuner.remeasure import times_text
from tuner.study import Done, Event, Finished, FrontMoved, Noted, Retried, Started, Waiting
from tuner.titles import doubt_mark
from tuner.verify.words import verified_words

_BESIDE = (
    "slo_attainment",
    "ttft_p95_ms",
    "accepted_tokens_per_target_step",
    "batch_occupancy",
    "prefix_hit_rate",
)
"""Columns shown beside the objectives: what explains them, kept few enough for a terminal."""

_HEADINGS = {
    "capacity_rps": "capacity req/s",
    "capacity_tokens_per_s": "capacity tok/s",
    "capacity_speed": "capacity, speed",
    "goodput_rps": "goodput req/s",
    "goodput_tokens_per_s": "goodput tok/s",
    "slo_attainment": "SLO met",
    "accepted_tokens_per_target_step": "tok/step",
    "batch_occupancy": "slots",
    "prefix_hit_rate": "prefix hits",
}
_KEPT_UP = 0.99
"""SLO attainment of a control that the traffic does not load."""

_SHARES = ("slo_attainment", "batch_occupancy", "prefix_hit_rate")


@dataclass
class Progress:
    """Turns a search's events into plain lines, with the clock and the time left."""

    say: Callable[[str], None]
    started: float = field(default_factory=time.perf_counter)
    phases: dict[int, Phase] = field(default_factory=dict)
    """Of trials under way, by number."""

    def show(self, event: Event | str) -> None:
        """Say one line, a phase not before it is waited for; a string is said as it is."""
        if isinstance(event, UnderWay):
            self.phases[event.number] = event.phase
        elif isinstance(event, Started | Finished | Retried):
            self.phases.pop(event.number, None)
        line = event if isinstance(event, str) else _event_line(event, self.phases)
        if line:
            self.say(f"[{clock(time.perf_counter() - self.started)}] {line}")


def _event_line(event: Event, phases: Mapping[int, Phase]) -> str | None:
    match event:
        case Started():
            what = "control, the engine's defaults" if event.is_control else config_words(event.config)
            return f"trial {event.number} started: {_again(event.repeats)}{what}"
        case Finished():
            return f"trial {event.number} {_again(event.repeats)}{_outcome_words(event)}{_left(event)}"
        case Waiting():
            return _waiting_words(event, phases)
        case Retried():
            return f"trial {event.number} is run again: {event.reason}"
        case Noted():
            return event.text
        case FrontMoved():
            return f"front is now trial {', '.join(map(str, event.numbers))}"
        case UnderWay() | Done():
            return None


def _again(repeats: int | None) -> str:
    return "" if repeats is None else f"(trial {repeats} again) "


def _waiting_words(event: Waiting, phases: Mapping[int, Phase]) -> str:
    running = ", ".join(
        f"trial {number} for {seconds:.0f} s" + (f" ({phases[number].text})" if number in phases else "")
        for number, seconds in event.running_s.items()
    )
    best = event.view.recommended
    objective = METRICS[event.view.goal.objectives[0].metric]
    found = ""
    if best is not None and best.measurement is not None:
        value = objective.show(best.measurement.metrics[objective.name])
        text = _number(objective.shown, value, best.measurement)
        found = f", best {objective.shown} {text} (trial {best.number})"
    left = "" if event.eta_s is None else f", about {about(event.eta_s)} left"
    return f"running {running} [{len(event.view.trials)} of {event.total} done{found}{left}]"


def _outcome_words(event: Finished) -> str:
    match event.outcome:
        case Measured(measurement=measured):
            text = f"{_measured(measured)}: {_measured_words(measured, event.objectives)}"
            if event.unscored:
                text = f"has no score: {event.unscored}"
            marks = [
                *(["on the front"] if event.on_front else []),
                *(["client and engine disagree"] if measured.disagreements else []),
                *([event.untrusted] if event.untrusted else []),
            ]
            return text + (f" ({', '.join(marks)})" if marks else "")
        case Failed(cause=cause, reason=reason):
            return f"failed, {cause}: {reason}"


def _measured(measurement: Measurement) -> str:
    return "measured in a closed loop" if measurement.mode is Mode.CLOSED else "measured"


def _measured_words(measurement: Measurement, objectives: tuple[str, ...]) -> str:
    """The capacity wherever one was looked for, the objectives, and what the replays took."""
    shown = published(measurement)
    capacity = capacity_text(measurement)
    named = [name for name in objectives if name in shown and (name != "capacity_rps" or capacity is None)]
    words = [
        *([] if capacity is None else [f"capacity {capacity}"]),
        *(f"{name} {_number(name, shown[name], measurement)}" for name in named),
    ]
    return ", ".join(words) + ("" if capacity is None else f"; {replays([measurement]).text}")


def _left(event: Finished) -> str:
    left = "" if event.eta_s is None or event.done >= event.total else f", about {about(event.eta_s)} left"
    return f" [{event.done} of {event.total} done{left}]"


def config_words(config: Mapping[str, Scalar] | None) -> str:
    """`quantisation=int8 speculation=ngram speculation.depth=4`."""
    if not config:
        return "the engine's defaults"
    return " ".join(f"{path}={_value(value)}" for path, value in config.items())


def _value(value: Scalar) -> str:
    return (
        f"{value:g}"
        if isinstance(value, float)
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
    )


def front_lines(seen: FrontView, *, width: int | None = None) -> list[str]:
    """The front as a table, the control beside it, then what failed and who can't be told apart."""
    metrics = [METRICS[item.metric].shown for item in seen.goal.objectives]
    if any(bracket(trial.measurement) for trial in seen.trials) and not any(map(is_capacity, metrics)):
        metrics.append("capacity_rps")
    columns = [*metrics, *(name for name in _BESIDE if name not in metrics)]
    table = Table()
    table.add_column("trial", justify="right")
    for name in columns:
        table.add_column(_HEADINGS.get(name, name.replace("_", " ")), justify="right")
    # What is recommended may be off the front for one that was measured once.
    beside = [*([seen.recommended] if seen.recommended else []), *seen.control]
    rows = list({trial.number: trial for trial in (*seen.best_first, *beside)}.values())
    for trial in rows:
        table.add_row(*_row(trial, columns))
    if not seen.front:
        table.caption = (
            "no trial has passed the check of quality" if seen.refused else "no trial was measured"
        )
    page = StringIO()
    Console(file=page, width=width or max(Console().width, 100), force_terminal=False).print(table)
    out = [
        f"Front of {seen.study.name}{_simulated(seen)}",
        *_load(seen),
        *page.getvalue().rstrip().splitlines(),
    ]
    out += [f"trial {_name(trial)}: {_what(trial)}{_times(seen, trial)}" for trial in rows]
    out += _recommended(seen)
    out += _verified(seen, rows)
    out += _quality(seen, rows)
    out += _failed_again(seen)
    counts = ", ".join(f"{count} {state}" for state, count in sorted(seen.counts.items()))
    took = replays(trial.measurement for trial in seen.trials)
    out.append(
        f"{len(seen.trials)} trials: {counts}"
        + (f"; {took.text}" if mode(seen.study) is Mode.CAPACITY else "")
    )
    out += [f"  {count} failed, {cause}" for cause, count in sorted(seen.failures.items())]
    if seen.alike:
        pairs = ", ".join(f"{a} and {b}" for a, b in seen.alike)
        out.append(f"their intervals do not tell apart trials {pairs}")
    out += _disagreements(rows)
    out += sorted({f"note: {text}" for trial in seen.front for text in _warnings(trial)})
    out += [f"note: {text}" for text in _unsaturated(seen)]
    return out


def _times(seen: FrontView, trial: StoredTrial) -> str:
    """How often a config was measured, and what it showed when it was chosen."""
    promise = seen.promise(trial.number)
    if trial.measurement is None:
        return ""
    if not promise.fresh:
        return "; measured once"
    name = METRICS[seen.goal.objectives[0].metric].shown
    first = published(promise.first.measurement).get(name) if promise.first.measurement else None
    was = "" if first is None else f", {name} was {_number(name, first, promise.first.measurement)} at first"
    again = ", ".join(str(repeat.number) for repeat in promise.fresh)
    many = "trial" if len(promise.fresh) == 1 else "trials"
    return f"; measured again {times_text(len(promise.fresh))} ({many} {again}){was}"


def _verified(seen: FrontView, rows: Sequence[StoredTrial]) -> list[str]:
    """What became of the promises on other traffic: the numbers to count on."""
    return [
        f"trial {trial.number} {verified_words(found)}"
        for trial in rows
        if (found := seen.verified.get(trial.number)) is not None
    ]


def _recommended(seen: FrontView) -> list[str]:
    """What is recommended, where that is not plainly the best of the table."""
    best, chosen = next(iter(seen.best_first), None), seen.recommended
    if best is None or chosen is None or best.number == chosen.number:
        return []
    return [
        f"recommended: trial {chosen.number}, the best of those measured again; "
        f"trial {best.number} shows more, and was measured once"
    ]


def _quality(seen: FrontView, rows: Sequence[StoredTrial]) -> list[str]:
    """What is known of the quality of the table's trials, and which others that kept off the front."""
    if seen.study.engine == "simulated":
        return ["quality: simulated, not checked"]
    shown = {trial.number: trial for trial in (*rows, *seen.refused)}
    return [
        f"trial {trial.number} {text}" + ("" if seen.trusted(trial) else "; never recommended")
        for trial in shown.values()
        if (text := seen.quality_text(trial)) is not None
    ]


def _failed_again(seen: FrontView) -> list[str]:
    """Configs that were measured and failed later: why they are not on the front."""
    return [
        f"trial {promise.first.number} {promise.standing.reason}"
        for promise in seen.promises
        if promise.first.measurement is not None and promise.standing.state is not promise.first.state
    ]


def _load(seen: FrontView) -> list[str]:
    """What the numbers are of."""
    load = load_text(seen.study)
    if mode(seen.study) is not Mode.CAPACITY:
        return [measured_text(seen.study)]
    known = resolution_text(trial.measurement for trial in seen.trials)
    what = "capacity: the highest offered rate at which the SLO holds"
    resolution = "" if known is None else f", known to {known}"
    return [f"{what}{resolution}", *([f"other columns: the reference load, {load}"] if load else [])]


def _disagreements(trials: list[StoredTrial]) -> list[str]:
    """Which trials' numbers to distrust, and why."""
    return [
        f"! trial {trial.number}, client and engine disagree: {text}"
        for trial in trials
        if trial.measurement is not None
        for text in trial.measurement.disagreements
    ]


def _unsaturated(seen: FrontView) -> list[str]:
    """What to say where the control kept up, so that no config can show more goodput."""
    if mode(seen.study) is Mode.CLOSED or not any(name.startswith("goodput") for name in seen.goal.names):
        return []
    met = [trial.measurement.value("slo_attainment") for trial in seen.control if trial.measurement]
    if not any(share is not None and share >= _KEPT_UP for share in met):
        return []
    return [
        "the control met the SLO at this speed, so goodput is held at the offered rate; raise --speed, "
        "or measure capacity"
    ]


def _simulated(seen: FrontView) -> str:
    return " (SIMULATED, not measured)" if seen.study.engine == "simulated" else ""


def _warnings(trial: StoredTrial) -> tuple[str, ...]:
    return () if trial.measurement is None else trial.measurement.warnings


def _row(trial: StoredTrial, columns: list[str]) -> list[str]:
    shown = {} if trial.measurement is None else published(trial.measurement)
    cells = [_cell(name, shown.get(name), trial.measurement) for name in columns]
    return [_name(trial), *cells]


def _name(trial: StoredTrial) -> str:
    return f"{trial.number}" + (" (control)" if trial.is_control else "") + doubt_mark(trial)


def _what(trial: StoredTrial) -> str:
    if trial.cause:
        return f"failed, {trial.cause}: {trial.reason}"
    return "the engine's defaults" if trial.is_control else config_words(trial.config)


def _cell(name: str, estimate: Estimate | None, measurement: Measurement | None) -> str:
    if estimate is None:
        return "?"
    text = _number(name, estimate, measurement)
    if (estimate.low is None and estimate.high is None) or side_of(measurement, name) == "below":
        return text
    low, high = ("?" if end is None else _plain(name, end) for end in (estimate.low, estimate.high))
    return f"{text}\n{low}–{high}"


def _number(name: str, estimate: Estimate, measurement: Measurement | None) -> str:
    """The value; a capacity with one end is said to be at least that, or below it."""
    side = side_of(measurement, name)
    if side == "below":
        return f"below {below_text(measurement, name)}"
    return f"{side} {_plain(name, estimate.value)}".lstrip()


def _plain(name: str, value: float) -> str:
    if name in _SHARES:
        return f"{value:.0%}"
    if not math.isfinite(value):
        return "∞"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def next_steps(seen: FrontView, *, runs: Path, tracking_uri: str, logged: bool) -> list[str]:
    """Where the study is, and the commands that come next.

    Args:
        tracking_uri: MLflow's; its password is not shown.
        logged: whether MLflow has everything.
    """
    flag = "" if runs == Path("runs") else f" --runs {runs}"
    shown = without_passwords(tracking_uri)
    own = tracking_uri == f"sqlite:///{runs.resolve() / 'mlflow.db'}"
    if logged:
        where = flag if own else f" --tracking-uri {shown}"
        lines = [f"MLflow has it at {shown}; open it with: tuner ui{where}"]
    else:
        lines = [f"MLflow at {shown} does not have it all; it is safe in {runs / seen.study.name}"]
    best = seen.recommended
    name = seen.study.name
    if best is None and seen.refused:
        return [
            *lines,
            f"no trial that was measured has passed the check of quality; tuner front {name}{flag} says why",
        ]
    if best is None:
        return [*lines, f"nothing was measured; the engine's logs are in {runs / name}/trials"]
    if best.is_control:
        more = 2 * len(seen.trials)
        lines.append(
            f"no trial beat the engine's defaults on {seen.goal.objectives[0].name}; more may: "
            f"tuner search --study {name} --resume --trials {more}{flag}"
        )
    if seen.study.engine == "vllm":
        lines += [
            f"next: tuner verify {name} --trial {best.number}{flag}",
            f"then: tuner export {name} --trial {best.number} --to vllm --out deploy/{flag}",
        ]
    return lines


def clock(seconds: float) -> str:
    """`07:42`."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes:02d}:{rest:02d}"


def about(seconds: float) -> str:
    """`50 s`, `12 min`: rounded up, as a forecast is."""
    return f"{math.ceil(seconds / 60)} min" if seconds >= 90 else f"{math.ceil(seconds / 10) * 10} s"
