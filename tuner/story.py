"""A study told in Markdown: how far and how good, what was searched on what traffic, the front, the control,
what failed and why, what to do next. MLflow shows it under the study's name."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from cluster.traffic.workload import Sessions
from objectives.metrics import METRICS
from search_spaces.measure import Capacity
from tuner.bracket import estimate_text, replays
from tuner.front import FrontView
from tuner.loads import closed_text, measure_of, offered_rps, sessions, speed
from tuner.quality_words import FAILED, UNCHECKED, quality_state
from tuner.records import State, StoredTrial, StudyFile
from tuner.remeasure import times_text
from tuner.runs_table import runs_tables
from tuner.titles import config_title, doubt_mark, number, space_of, varied

ROWS = 8
"""Of any table: with all of its tables full, a note still fits one tag. front.json has every trial."""
_REASON = 120
"""Characters of a failure's reason; its trial's run has all of it."""


def story(view: FrontView, *, runs: str = "runs", experiment: str | None = None) -> str:
    """The note on a study's run.

    Args:
        runs: the folder given to commands, where it is not the default.
        experiment: MLflow's id of the experiment that has its tables of runs; None leads to none.
    """
    flag = "" if runs == "runs" else f" --runs {runs}"
    parts = [
        f"{_simulated(view)}{_standing(view)}{_tables(view, experiment)}",
        _searched(view),
        _traffic(view),
        *_load(view),
        "## Front",
        *_front(view),
        "## Control",
        *_control(view),
        *_failures(view),
        "## Next",
        _next(view, flag),
    ]
    return "\n\n".join(parts) + "\n"


def _simulated(view: FrontView) -> str:
    return "" if view.study.engine != "simulated" else "**SIMULATED, not measured.** "


def _standing(view: FrontView) -> str:
    """The study in two lines: MLflow folds what comes after them."""
    counts = ", ".join(f"{count} {state}" for state, count in view.counts.items())
    done = f"Trials finished: {len(view.trials)} ({counts})."
    best = view.recommended
    if best is None:
        return done
    aim = view.goal.objectives[0]
    beside = f", the control {_aim(view, view.control[0])}" if view.control and not best.is_control else ""
    who = "the control" if best.is_control else f"trial {best.number}"
    unit = METRICS[aim.metric].shown_unit
    fresh = len(view.promise(best.number).fresh)
    held = f"measured again {times_text(fresh)}" if fresh else "measured once"
    return f"{done} Best by {aim.name}: {who}, {_aim(view, best)} {unit}{beside}; {held}."


def _tables(view: FrontView, experiment: str | None) -> str:
    """Where the trials are a table."""
    if experiment is None:
        return ""
    front, trials = runs_tables(view.study)
    return f" Tables: [the front]({front.place(experiment)}), [all trials]({trials.place(experiment)})."


def _aim(view: FrontView, trial: StoredTrial) -> str:
    """A trial's first objective with its interval."""
    return estimate_text(trial.measurement, view.goal.objectives[0].metric)


def _searched(view: FrontView) -> str:
    study = view.study
    aims = " and ".join(
        f"{objective.name} ({'up' if objective.direction == 'maximise' else 'down'})"
        for objective in view.goal.objectives
    )
    limits = ", ".join(
        f"{name.partition('_')[0].upper()} at most {limit:g} ms" for name, limit in study.slo.limits().items()
    )
    slo = f"{limits} for {study.slo.attainment:.0%} of requests" if limits else "none, so every answer counts"
    return (
        f"**Searched:** space `{study.space_name}`{_what_varies(view)}, for {aims}, "
        f"sampler {study.sampler}, seed {study.seed}. **SLO:** {slo}."
    )


def _what_varies(view: FrontView) -> str:
    space = space_of(view.study)
    if space is None:
        return ""
    paths = ", ".join(f"`{path}`" for path in varied(view.study))
    over = f" over {paths}" if paths else ""
    return f" of {_text(space.model)}{over}"


def _traffic(view: FrontView) -> str:
    study = view.study
    figures = study.trace_figures
    parts = [
        f"trace {_text(study.trace)} ({study.trace_digest[:12]})",
        *_figure("{:g} requests", figures.get("requests")),
        *_figure("{:.0f} tokens in", figures.get("input_mean")),
        *_figure("{:.0f} tokens out on average", figures.get("output_mean")),
        *_figure("{:.0%} of prompt tokens shared", figures.get("prefix_share")),
        *_figure("recorded at {:.3g} requests/s", figures.get("rate")),
        *_figure("played at speed {:g}", speed(study)),
        *_figure("so {:.3g} requests/s offered", offered_rps(study)),
        *(["turns leaving after the answer before them (sessions causal)"] if _causal(study) else []),
    ]
    return f"**Traffic:** {', '.join(parts)}."


def _causal(study: StudyFile) -> bool:
    return speed(study) is not None and sessions(study) is Sessions.CAUSAL


def _load(view: FrontView) -> list[str]:
    """What kind of load the numbers are of; for a capacity how it was found and what that took."""
    measure = measure_of(view.study)
    closed = closed_text(view.study)
    if closed is not None:
        return [
            f"**Load:** {closed}. Requests leave when others end, not when they were recorded, and latency "
            "counts from a request's turn, so waiting for it is not seen."
        ]
    if not isinstance(measure, Capacity):
        return []
    took = replays(trial.measurement for trial in view.trials)
    cut = (
        f", {took.cut} of them cut as soon as their verdict was certain, which saved {number(took.saved_s)} s"
        if took.cut
        else ""
    )
    return [
        "**Capacity:** the highest offered rate at which the SLO holds. Within one engine start the trace is "
        "replayed at its own speed, the reference load that other numbers are of, then at speeds that close "
        f"in on the capacity to {100 * measure.resolution:g} %. {took.played} replays{cut}. `curves.html` "
        "draws latency against rate."
    ]


def _figure(words: str, value: object) -> list[str]:
    return [words.format(value)] if isinstance(value, int | float) else []


def _front(view: FrontView) -> list[str]:
    if not view.front and view.refused:
        return ["No trial that was measured has passed the check of quality.", *_quality(view)]
    if not view.front:
        return ["No trial has been measured yet."]
    crowds = _crowds(view)
    alike = {trial.number: count for trial, count in crowds}
    parts = [_table(view, [trial for trial, _ in crowds], alike)]
    rivals = [pair for pair in view.alike if alike.keys() >= set(pair)]
    if rivals:
        pairs = ", ".join(f"{first} and {second}" for first, second in rivals[:ROWS])
        more = "" if len(rivals) <= ROWS else f" and {len(rivals) - ROWS} more pairs"
        parts.append(f"Their intervals do not tell apart trials {pairs}{more}.")
    parts += _again(view)
    parts += _quality(view)
    doubts = {
        trial.number: trial.measurement.disagreements[0]
        for trial in view.trials
        if trial.measurement and trial.measurement.disagreements
    }
    if doubts:
        parts.append(
            f"! In {_trials(list(doubts))} client and engine disagree, for example: "
            f"{_text(_cut(next(iter(doubts.values()))))}."
        )
    if any(alike.values()):
        parts.append("(+2) behind a trial: two more have these numbers.")
    parts.append(
        "In brackets: 95 % intervals. Artifact `front.html` draws the front, `front.json` has all of it."
    )
    return parts


def _crowds(view: FrontView) -> list[tuple[StoredTrial, int]]:
    """One trial of the front for each of its numbers as they are told, the best first, and how many more have
    them. The one that is recommended stands for its own, else the best."""
    groups: dict[tuple[str, ...], list[StoredTrial]] = {}
    for trial in view.best_first:
        told = tuple(cell.partition(" (")[0] for cell in _cells(view, trial))
        groups.setdefault(told, []).append(trial)
    best = view.recommended
    return [
        (best if best is not None and best in group else group[0], len(group) - 1)
        for group in groups.values()
    ]


def _again(view: FrontView) -> list[str]:
    """Whose numbers are of fresh measurements."""
    fresh = [(promise.first.number, len(promise.fresh)) for promise in view.promises if promise.fresh]
    if not fresh:
        return []
    told = ", ".join(f"{first} ({times_text(times)})" for first, times in fresh[:ROWS])
    more = "" if len(fresh) <= ROWS else f" and {len(fresh) - ROWS} more"
    return [
        f"Measured again after they were chosen: trial {told}{more}; their numbers are those of the fresh "
        "measurements. All others were measured once."
    ]


def _quality(view: FrontView) -> list[str]:
    """How what is recommended answers beside the reference, and whose answers keep it from that."""
    if view.study.engine == "simulated":
        return ["Quality: simulated, not checked."]
    told = [] if view.recommended is None else [view.recommended]
    lines = [_quality_of(view, trial) for trial in told]
    for state in (FAILED, UNCHECKED):
        those = [t for t in view.refused if quality_state(view.study, t, view.checks) == state]
        if those:
            numbers = _trials([trial.number for trial in those])
            lines.append(f"{numbers}: quality {state}, so never recommended; {_quality_of(view, those[0])}")
    return ["\n".join(f"- {line}" for line in lines)]


def _quality_of(view: FrontView, trial: StoredTrial) -> str:
    return f"trial {trial.number} {_text(_cut(view.quality_text(trial) or ''))}"


def _control(view: FrontView) -> list[str]:
    """The engine's defaults, in the front's columns."""
    return [_table(view, view.control)] if view.control else ["Not measured yet."]


def _failures(view: FrontView) -> list[str]:
    failed = [trial for trial in view.trials if trial.state is State.FAILED]
    groups = [(cause, [t for t in failed if t.cause == cause]) for cause in view.failures]
    unscored = [trial for trial in view.trials if trial.state is State.UNSCORED]
    if unscored:
        groups.append(("no score", unscored))
    rows = [
        [cause, _numbers([trial.number for trial in trials]), _example(view, trials[0])]
        for cause, trials in groups
    ]
    return ["## Failures", _markdown(["cause", "trials", "for example"], rows)] if rows else []


def _trials(numbers: Sequence[int]) -> str:
    return f"trial{'' if len(numbers) == 1 else 's'} {_numbers(numbers)}"


def _numbers(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:ROWS]))
    return shown if len(numbers) <= ROWS else f"{shown} and {len(numbers) - ROWS} more"


def _example(view: FrontView, trial: StoredTrial) -> str:
    return f"trial {trial.number}, {_config(view, trial)}: {_cut(trial.reason or 'no reason is known')}"


def _cut(text: str) -> str:
    return text if len(text) <= _REASON else f"{text[: _REASON - 1]}…"


def _next(view: FrontView, flag: str) -> str:
    name = view.study.name
    look = f"    tuner front {name}{flag}"
    best = view.recommended
    if best is None and view.refused:
        return f"No trial that was measured has passed the check of quality; this says why:\n\n{look}"
    if best is None:
        return f"Nothing was measured yet; each trial's `engine.log` says why.\n\n{look}"
    if best.is_control:
        aim = view.goal.objectives[0].name
        return f"No trial beat the engine's defaults on {aim}. Go on with more trials: `--resume`.\n\n{look}"
    if view.study.engine == "simulated":
        return f"Measure what the simulation suggests: search again without `--engine simulated`.\n\n{look}"
    return (
        f"{look}\n    tuner verify {name} --trial {best.number}{flag}\n"
        f"    tuner export {name} --trial {best.number} --to vllm --out deploy/{flag}"
    )


def _table(
    view: FrontView, trials: Sequence[StoredTrial], alike: Mapping[int, int] = MappingProxyType({})
) -> str:
    units = [METRICS[objective.metric].shown_unit for objective in view.goal.objectives]
    heads = [f"{name} ({unit})" for name, unit in zip(view.goal.names, units, strict=True)]
    rows = [
        [f"{_number(trial, alike)}{doubt_mark(trial)}", *_cells(view, trial), _told(view, trial)]
        for trial in trials[:ROWS]
    ]
    table = _markdown(["trial", *heads, "config"], rows)
    left = sum(1 + alike.get(trial.number, 0) for trial in trials[ROWS:])
    return f"{table}\n\n… and {left} more." if left else table


def _number(trial: StoredTrial, alike: Mapping[int, int]) -> str:
    more = alike.get(trial.number, 0)
    return f"{trial.number} (+{more})" if more else str(trial.number)


def _cells(view: FrontView, trial: StoredTrial) -> Iterable[str]:
    return [estimate_text(trial.measurement, objective.metric) for objective in view.goal.objectives]


def _told(view: FrontView, trial: StoredTrial) -> str:
    """The config, and what became of it where that is not in the columns: a control that failed."""
    title = _config(view, trial)
    return title if trial.reason is None else f"{title} ({trial.cause or 'no score'}: {trial.reason})"


def _config(view: FrontView, trial: StoredTrial) -> str:
    return "the engine's defaults" if trial.is_control else config_title(trial.config or {}, view.study)


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(_text(cell) for cell in line) + " |" for line in lines)


def _text(cell: str) -> str:
    """A cell that can neither end its column nor start a tag."""
    return " ".join(cell.split()).replace("|", "\\|").replace("<", "&lt;")
