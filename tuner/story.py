"""A study told in Markdown: where it stands, the front, the control, what failed and why, what to do next."""

from collections.abc import Iterable, Sequence

from objectives.measurement import Estimate
from objectives.metrics import METRICS
from tuner.front import FrontView
from tuner.records import State, StoredTrial
from tuner.titles import config_title

ROWS = 20
"""Of any table; front.json has them all."""


def story(view: FrontView, *, runs: str = "runs") -> str:
    """The note on a study's run. `runs`: the folder given to commands, where it is not the default."""
    flag = "" if runs == "runs" else f" --runs {runs}"
    parts = [
        _heading(view),
        _standing(view),
        "## Front",
        *_front(view),
        "## Control",
        *_control(view),
        *_failures(view),
        "## Next",
        *_next(view, flag),
    ]
    return "\n\n".join(parts) + "\n"


def _heading(view: FrontView) -> str:
    simulated = " (SIMULATED: computed, not measured)" if view.study.engine == "simulated" else ""
    return f"# {_text(view.study.name)}{simulated}"


def _standing(view: FrontView) -> str:
    study = view.study
    counts = ", ".join(f"{count} {state}" for state, count in view.counts.items())
    digest = study.trace_digest[:12]
    return (
        f"Space `{study.space_name}`, objectives {' and '.join(study.objectives)}, sampler {study.sampler}, "
        f"trace `{study.trace}` ({digest}). {len(view.trials)} trials finished: {counts}."
    )


def _front(view: FrontView) -> list[str]:
    if not view.front:
        return ["No trial has been measured yet."]
    parts = [_table(view, view.front)]
    if view.alike:
        pairs = ", ".join(f"{first} and {second}" for first, second in view.alike[:ROWS])
        parts.append(f"Their intervals do not tell apart trials {pairs}.")
    parts.append("`front.html` draws it, `front.json` has all of its numbers.")
    return parts


def _control(view: FrontView) -> list[str]:
    """The engine's defaults, in the front's columns."""
    return [_table(view, view.control)] if view.control else ["Not measured yet."]


def _failures(view: FrontView) -> list[str]:
    failed = [trial for trial in view.trials if trial.state is not State.MEASURED]
    if not failed:
        return []
    rows = [[cause, str(count), _example(failed, cause)] for cause, count in view.failures.items()]
    unscored = [trial for trial in failed if trial.state is State.UNSCORED]
    if unscored:
        rows.append(["no score", str(len(unscored)), f"trial {unscored[0].number}: {unscored[0].reason}"])
    return ["## Failures", _markdown(["cause", "trials", "for example"], rows)]


def _example(failed: Sequence[StoredTrial], cause: str) -> str:
    first = next(trial for trial in failed if trial.cause == cause)
    return f"trial {first.number}: {first.reason}"


def _next(view: FrontView, flag: str) -> list[str]:
    name = view.study.name
    lines = [f"tuner front {name}{flag}"]
    best = next((trial for trial in view.front if not trial.is_control), None)
    if best is not None and view.study.engine != "simulated":
        lines.append(f"tuner export {name} --trial {best.number} --to vllm --out deploy/{flag}")
    return ["\n".join(f"    {line}" for line in lines)]


def _table(view: FrontView, trials: Sequence[StoredTrial]) -> str:
    units = [METRICS[objective.metric].shown_unit for objective in view.goal.objectives]
    heads = [f"{name} ({unit})" for name, unit in zip(view.goal.names, units, strict=True)]
    rows = [[f"{trial.number}", *_cells(view, trial), _config(trial)] for trial in trials[:ROWS]]
    table = _markdown(["trial", *heads, "config"], rows)
    return table if len(trials) <= ROWS else f"{table}\n\n… and {len(trials) - ROWS} more."


def _cells(view: FrontView, trial: StoredTrial) -> Iterable[str]:
    values = view.objective_values(trial)
    return [_interval(values.get(name)) for name in view.goal.names]


def _config(trial: StoredTrial) -> str:
    if trial.is_control:
        title = "the engine's defaults"
        return title if trial.reason is None else f"{title} ({trial.cause or 'no score'}: {trial.reason})"
    return config_title(trial.config or {})


def _interval(estimate: Estimate | None) -> str:
    if estimate is None:
        return "–"
    if estimate.low is None and estimate.high is None:
        return f"{estimate.value:.4g}"
    low, high = ("?" if end is None else f"{end:.4g}" for end in (estimate.low, estimate.high))
    return f"{estimate.value:.4g} ({low} to {high})"


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(_text(cell) for cell in line) + " |" for line in lines)


def _text(cell: str) -> str:
    """A cell that can neither end its column nor start a tag."""
    return " ".join(cell.split()).replace("|", "\\|").replace("<", "&lt;")
