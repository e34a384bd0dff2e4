"""A plan as a person reads it. Only words here."""

from collections.abc import Iterator

from search_spaces.describe import count_text
from search_spaces.space import Count
from tuner.plan.shapes import DurationReport, FitReport, Foreseen, PlanReport
from tuner.report.page import duration as seconds
from tuner.titles import number
from tuner.trace_words import shown_lines

ROWS = 8
"""Of the predicted front and of choices; `--json` has all."""


def plan_lines(found: PlanReport) -> Iterator[str]:
    """What `tuner plan` prints."""
    yield f"space {found.space}: {found.model}, measuring {found.measured}"
    yield from _size(found)
    yield from _fit(found.fit)
    yield from _front(found)
    yield from _duration(found.duration)
    yield "traffic"
    yield from (f"  {line}" for line in shown_lines(found.trace))
    for remark in found.remarks:
        yield f"! {remark}"


def _size(found: PlanReport) -> Iterator[str]:
    size = found.size
    share = "" if size.valid_share is None else f", {size.valid_share:.1%} of {size.points:,} combinations"
    yield f"configs       {count_text(Count(size.valid, exact=size.exact))} valid{share}"


def _fit(fit: FitReport) -> Iterator[str]:
    if fit.accelerator is None:
        yield "memory        not told: there are no figures for this accelerator"
        return
    which = f"all {fit.looked_at}" if fit.every else f"{fit.looked_at} drawn by chance"
    lost = sum(misfit.configs for misfit in fit.misfits)
    yield f"memory        of {which}, {lost} are expected not to start on {fit.accelerator}"
    for misfit in fit.misfits:
        yield f"  {misfit.configs:>5}  {misfit.reason}; for example {misfit.example}"
    for choice in fit.choices[:ROWS]:
        yield f"         {choice.path}={choice.choice}: {choice.misfits} of {choice.configs} do not start"
    if fit.kv_sequences is not None:
        least, most = fit.kv_sequences
        yield (
            f"KV cache      holds {number(least)} to {number(most)} requests of the traffic's mean length; "
            f"in {fit.short_of_kv} configs fewer than the traffic has under way at once"
        )
    if fit.unknown:
        yield f"              of {fit.unknown} nothing is known: no figures for a model in them"


def _front(found: PlanReport) -> Iterator[str]:
    yield "predicted, by a first-order model that is right to a few tens of per cent; nothing was measured"
    if found.control is not None:
        yield f"  {_foreseen(found, found.control)}"
    for foreseen in found.front[:ROWS]:
        yield f"  {_foreseen(found, foreseen)}"
    if len(found.front) > ROWS:
        yield f"  and {len(found.front) - ROWS} more on the predicted front"
    if not found.front:
        yield "  nothing: an objective is not predicted, or no config is expected to start"


def _foreseen(found: PlanReport, one: Foreseen) -> str:
    told = ", ".join(f"{name} {number(one.objectives[name])} {unit}" for name, unit in found.objectives)
    held = "" if one.holds else " (SLO not expected to hold at the reference load)"
    return f"{told}: {one.title}{held}"


def _duration(took: DurationReport) -> Iterator[str]:
    yield f"time          start {seconds(took.start_s)} ({took.start_from})"
    if took.replay_s is None or took.whole_s is None or took.gpu_hours is None:
        yield f"              replays not known ({took.replay_from})"
        return
    yield f"              replays {seconds(took.replay_s)} a trial ({took.replay_from})"
    on = f"{number(took.gpu_hours)} GPU hours" if took.gpus else "no GPU"
    yield f"              {took.trials} trials: about {seconds(took.whole_s)} one after the other, {on}"
