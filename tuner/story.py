"""A study told in Markdown: how far and how good, what was searched on what traffic, the front, the control,
what failed and why, what to do next. MLflow shows it under the study's name."""

from collections.abc import Iterable, Sequence

from objectives.measurement import Estimate
from objectives.metrics import METRICS
from search_spaces.parameters import every
from tuner.front import FrontView, offered_rps, speed
from tuner.records import State, StoredTrial
from tuner.titles import config_title, interval, space_of

ROWS = 12
"""Of any table: with all of its tables full, a note still fits one tag. front.json has every trial."""
_REASON = 120
"""Characters of a failure's reason; its trial's run has all of it."""


def story(view: FrontView, *, runs: str = "runs") -> str:
    """The note on a study's run. `runs`: the folder given to commands, where it is not the default."""
    flag = "" if runs == "runs" else f" --runs {runs}"
    parts = [
        f"{_simulated(view)}{_standing(view)}",
        _searched(view),
        _traffic(view),
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
    best = next(iter(view.best_first), None)
    if best is None:
        return done
    aim = view.goal.objectives[0]
    beside = f", the control {_aim(view, view.control[0])}" if view.control and not best.is_control else ""
    who = "the control" if best.is_control else f"trial {best.number}"
    unit = METRICS[aim.metric].shown_unit
    return f"{done} Best by {aim.name}: {who}, {_aim(view, best)} {unit}{beside}."


def _aim(view: FrontView, trial: StoredTrial) -> str:
    """A trial's first objective with its interval."""
    return _interval(view.objective_values(trial).get(view.goal.names[0]))


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
    paths = dict.fromkeys(p.path for p in every(space.parameters) if len(p.corners) > 1)
    over = f" over {', '.join(f'`{path}`' for path in paths)}" if paths else ""
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
    ]
    return f"**Traffic:** {', '.join(parts)}."


def _figure(words: str, value: object) -> list[str]:
    return [words.format(value)] if isinstance(value, int | float) else []


def _front(view: FrontView) -> list[str]:
    if not view.front:
        return ["No trial has been measured yet."]
    parts = [_table(view, view.best_first)]
    if view.alike:
        pairs = ", ".join(f"{first} and {second}" for first, second in view.alike[:ROWS])
        more = "" if len(view.alike) <= ROWS else f" and {len(view.alike) - ROWS} more pairs"
        parts.append(f"Their intervals do not tell apart trials {pairs}{more}.")
    parts.append(
        "In brackets: 95 % intervals. Artifact `front.html` draws the front, `front.json` has all of it."
    )
    return parts


def _control(view: FrontView) -> list[str]:
    """The engine's defaults, in the front's columns."""
    return [_table(view, view.control)] if view.control else ["Not measured yet."]


def _failures(view: FrontView) -> list[str]:
    failed = [trial for trial in view.trials if trial.state is State.FAILED]
    groups = [(cause, [t for t in failed if t.cause == cause]) for cause in view.failures]
    unscored = [trial for trial in view.trials if trial.state is State.UNSCORED]
    if unscored:
        groups.append(("no score", unscored))
    rows = [[cause, _numbers(trials), _example(view, trials[0])] for cause, trials in groups]
    return ["## Failures", _markdown(["cause", "trials", "for example"], rows)] if rows else []


def _numbers(trials: Sequence[StoredTrial]) -> str:
    shown = ", ".join(str(trial.number) for trial in trials[:ROWS])
    return shown if len(trials) <= ROWS else f"{shown} and {len(trials) - ROWS} more"


def _example(view: FrontView, trial: StoredTrial) -> str:
    reason = trial.reason or "no reason is known"
    cut = reason if len(reason) <= _REASON else f"{reason[: _REASON - 1]}…"
    return f"trial {trial.number}, {_config(view, trial)}: {cut}"


def _next(view: FrontView, flag: str) -> str:
    name = view.study.name
    look = f"    tuner front {name}{flag}"
    best = next(iter(view.best_first), None)
    if best is None:
        return f"Nothing was measured yet; each trial's `engine.log` says why.\n\n{look}"
    if best.is_control:
        aim = view.goal.objectives[0].name
        return f"No trial beat the engine's defaults on {aim}. Go on with more trials: `--resume`.\n\n{look}"
    if view.study.engine == "simulated":
        return f"Measure what the simulation suggests: search again without `--engine simulated`.\n\n{look}"
    return f"{look}\n    tuner export {name} --trial {best.number} --to vllm --out deploy/{flag}"


def _table(view: FrontView, trials: Sequence[StoredTrial]) -> str:
    units = [METRICS[objective.metric].shown_unit for objective in view.goal.objectives]
    heads = [f"{name} ({unit})" for name, unit in zip(view.goal.names, units, strict=True)]
    rows = [[f"{trial.number}", *_cells(view, trial), _told(view, trial)] for trial in trials[:ROWS]]
    table = _markdown(["trial", *heads, "config"], rows)
    return table if len(trials) <= ROWS else f"{table}\n\n… and {len(trials) - ROWS} more."


def _cells(view: FrontView, trial: StoredTrial) -> Iterable[str]:
    values = view.objective_values(trial)
    return [_interval(values.get(name)) for name in view.goal.names]


def _told(view: FrontView, trial: StoredTrial) -> str:
    """The config, and what became of it where that is not in the columns: a control that failed."""
    title = _config(view, trial)
    return title if trial.reason is None else f"{title} ({trial.cause or 'no score'}: {trial.reason})"


def _config(view: FrontView, trial: StoredTrial) -> str:
    return "the engine's defaults" if trial.is_control else config_title(trial.config or {}, view.study)


def _interval(estimate: Estimate | None) -> str:
    return "–" if estimate is None else interval(estimate)


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(_text(cell) for cell in line) + " |" for line in lines)


def _text(cell: str) -> str:
    """A cell that can neither end its column nor start a tag."""
    return " ".join(cell.split()).replace("|", "\\|").replace("<", "&lt;")
