"""One trial's latency against rate as an SVG: small enough to lie in every trial's run."""

import io
import math
import warnings
from typing import TYPE_CHECKING

from objectives.measurement import Estimate
from objectives.metrics import METRICS, latency_metric
from tuner.bracket import bracket, capacity_text
from tuner.curve import DRAWN, Rated, curve, limit_ms, spans_decades
from tuner.records import StoredTrial, StudyFile
from tuner.titles import trial_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BLUE, _SKY, _VERMILION, _GREY = "#0072b2", "#56b4e9", "#d55e00", "#6b7280"


def curve_svg(trial: StoredTrial, study: StudyFile) -> str | None:
    """The picture; None for a trial that was not replayed at two rates at least.

    A panel a latency with p50 and p95 and their 95 % intervals, and one for SLO attainment; the capacity as
    a line with its interval, and shaded the rates at which the SLO did not hold.
    """
    replays = curve(trial.measurement)
    if not replays:
        return None
    # Slow to import, and only a trial with a curve needs it.
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    page = io.StringIO()
    # Names are drawn as they are: a config may hold a dollar sign, or letters that the font lacks.
    with mpl.rc_context({"svg.hashsalt": study.id, "text.parse_math": False}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        figure = Figure(figsize=(11, 7), layout="constrained")
        FigureCanvasSVG(figure)
        figure.suptitle(_title(trial, study), fontsize=11)
        *latencies, last = figure.subplots(2, 2).flat
        for axes, latency in zip(latencies, DRAWN, strict=True):
            _latency(axes, replays, latency, study)
        _attainment(last, replays, study)
        end = 1.05 * replays[-1].rps
        for axes in (*latencies, last):
            _capacity(axes, trial, end, named=axes is last)
            axes.set_xlim(0, end)
            axes.set_xlabel("offered requests/s")
            axes.grid(alpha=0.25)
            axes.legend(fontsize=8, loc="best")
        figure.savefig(page, format="svg", metadata={"Date": None})
    return page.getvalue()


def _title(trial: StoredTrial, study: StudyFile) -> str:
    text = capacity_text(trial.measurement)
    simulated = (trial.ran.engine or study.engine) == "simulated"
    lines = [
        f"{study.name} · {trial_title(trial, study)}",
        *([f"capacity: {text}"] if text else []),
        *(["SIMULATED, not measured"] if simulated else []),
    ]
    return "\n".join(line if len(line) <= 120 else f"{line[:119]}…" for line in lines)


def _latency(axes: "Axes", replays: tuple[Rated, ...], latency: str, study: StudyFile) -> None:
    from matplotlib.ticker import LogLocator

    values: list[float] = []
    for percentile, colour in ((50, _SKY), (95, _BLUE)):
        metric = latency_metric(latency, percentile)
        whole = [(replay.rps, shown) for replay in replays if (shown := replay.shown(metric))]
        if not whole:
            continue
        values += [shown.value for _, shown in whole]
        axes.errorbar(
            [rps for rps, _ in whole],
            [shown.value for _, shown in whole],
            yerr=list(zip(*(_bars(shown) for _, shown in whole), strict=True)),
            color=colour,
            marker="o",
            markersize=4,
            capsize=2,
            elinewidth=0.8,
            label=f"p{percentile}",
        )
    limit = limit_ms(study.slo, latency_metric(latency, 95))
    if limit is not None:
        axes.axhline(limit, color=_GREY, linestyle="--", linewidth=1, label=f"SLO: {limit:g} ms")
    if spans_decades(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
    elif values:
        axes.set_ylim(bottom=0)
    axes.set(ylabel=f"{latency.upper()} (ms)")


def _attainment(axes: "Axes", replays: tuple[Rated, ...], study: StudyFile) -> None:
    metric = "slo_attainment"
    whole = [(replay.rps, shown) for replay in replays if (shown := replay.shown(metric))]
    cut = [replay for replay in replays if replay.point.cut_s is not None]
    axes.plot([rps for rps, _ in whole], [shown.value for _, shown in whole], color=_BLUE, marker="o")
    if cut:
        axes.plot(
            [replay.rps for replay in cut],
            [replay.most_met for replay in cut],
            linestyle="none",
            marker="v",
            markerfacecolor="none",
            color=_BLUE,
            label="cut: at most",
        )
    wanted = study.slo.attainment
    axes.axhline(wanted, color=_GREY, linestyle="--", linewidth=1, label=f"SLO: {wanted:.0%}")
    axes.set(ylabel="SLO attainment")


def _capacity(axes: "Axes", trial: StoredTrial, end: float, *, named: bool) -> None:
    """The capacity, and the rates from the first failure to the picture's end; `named` in the legend."""
    found = bracket(trial.measurement)
    if found is None or trial.measurement is None:
        return
    hidden = "" if named else "_"  # matplotlib leaves such labels out
    if found.failed is not None and found.failed.offered_rps is not None:
        axes.axvspan(found.failed.offered_rps, end, color=_VERMILION, alpha=0.07, label=f"{hidden}SLO broken")
    estimate = trial.measurement.metrics.get("capacity_rps")
    if found.held is None or estimate is None:
        return
    shown = METRICS["capacity_rps"].show(estimate)
    axes.axvline(shown.value, color=_VERMILION, linewidth=1.2, label=f"{hidden}capacity")
    if shown.low is not None and shown.high is not None:
        label = f"{hidden}its 95 % interval"
        axes.axvspan(shown.low, shown.high, color=_VERMILION, alpha=0.15, label=label)


def _bars(shown: Estimate) -> tuple[float, float]:
    """Down to `low` and up to `high`; nothing on a side without an end."""
    low, high = (0.0 if end is None else abs(shown.value - end) for end in (shown.low, shown.high))
    return low, high if math.isfinite(high) else 0.0
