"""Rows to a table and a plot. Each number is the median over seeds, then over scenarios."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from benchmarks.searching.evaluation import Worth
from benchmarks.searching.runs import BUDGETS, Row
from benchmarks.searching.truth import Attainable

_AFTER = 10
"""Trials after which a search should know what crashes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What one row is worth."""

    shares: tuple[float, ...]
    """Of the attainable hypervolume, by budget."""
    modelled: tuple[float, ...]
    """The same of what the arm's own models recommend: of what it measured, where it has none."""
    goodput: tuple[float, ...]
    """Best true goodput within the SLO over the best attainable, by budget."""
    crashed: float
    crashed_later: float
    violating: float
    """Share of what is recommended at the last budget that truly misses the SLO."""
    ask_s: float
    ask_max_s: float


def score(row: Row, attainable: Attainable) -> Score:
    """Of the losses, goodput is the first, negative."""
    best = -min(losses[0] for losses in attainable.losses)
    shares, modelled, goodput, violating = [], [], [], 0.0
    for budget in BUDGETS:
        worths = _worths(row.recommended[str(budget)])
        met = [worth for worth in worths if worth.feasible]
        shares.append(attainable.share(worths))
        told = row.modelled.get(str(budget))
        modelled.append(shares[-1] if told is None else attainable.share(_worths(told)))
        goodput.append(max((-worth.losses[0] for worth in met), default=0.0) / best)
        violating = 1 - len(met) / len(worths) if worths else 0.0
    later = row.crashed[_AFTER:]
    return Score(
        shares=tuple(shares),
        modelled=tuple(modelled),
        goodput=tuple(goodput),
        crashed=row.crashed.count("c") / len(row.crashed),
        crashed_later=later.count("c") / max(len(later), 1),
        violating=violating,
        ask_s=median(row.ask_s),
        ask_max_s=max(row.ask_s),
    )


def _worths(rows: Sequence[Sequence[float]]) -> list[Worth]:
    return [Worth(violation=violation, losses=tuple(losses)) for violation, *losses in rows]


def table(rows: Sequence[Row], attainable: Mapping[str, Attainable], arms: Sequence[str]) -> str:
    """Markdown: a line an arm and number of trials at once; then the shares by scenario."""
    scores = {row.key: score(row, attainable[row.scenario]) for row in rows}
    lines = [
        "| arm | at once | runs | share after 20 | 40 | 80 | by its models after 20 | 40 | 80 | "
        "goodput after 20 | 40 | 80 | crashed | after ten | truly violating | ask, median s | max s |",
        "| --- |" + " --- |" * 16,
    ]
    for arm in arms:
        for parallel in sorted({row.parallel for row in rows if row.arm == arm}):
            chosen = [row for row in rows if row.arm == arm and row.parallel == parallel]
            over = _Over(chosen, scores)
            cells = [arm, str(parallel), str(len(chosen))]
            cells += [f"{share:.2f}" for share in over.middles(lambda s: s.shares)]
            # What a sampler without models would say is what it measured.
            has_models = all(row.modelled for row in chosen)
            told = over.middles(lambda s: s.modelled)
            cells += [f"{share:.2f}" if has_models else "" for share in told]
            cells += [f"{share:.2f}" for share in over.middles(lambda s: s.goodput)]
            cells += [
                f"{share:.0%}" for share in over.means(lambda s: (s.crashed, s.crashed_later, s.violating))
            ]
            cells += [f"{over.middles(lambda s: (s.ask_s,))[0]:.2f}"]
            cells += [f"{max(scores[row.key].ask_max_s for row in chosen):.2f}"]
            lines.append(f"| {' | '.join(cells)} |")
    versions = {row.sampler for row in rows if row.arm.startswith("ehvi")}
    if len(versions) > 1:
        lines += ["", f"Rows of `ehvi` come from {len(versions)} versions of its code."]
    lines += [
        "",
        "| scenario | arm, one at once | seeds | share after 20 | 40 | 80 | by its models, 20 | 40 | 80 |",
        "| --- |" + " --- |" * 8,
    ]
    for name in attainable:
        for arm in arms:
            chosen = [r for r in rows if (r.scenario, r.arm, r.parallel) == (name, arm, 1)]
            if chosen:
                shares = [median(scores[r.key].shares[i] for r in chosen) for i in range(len(BUDGETS))]
                told = [median(scores[r.key].modelled[i] for r in chosen) for i in range(len(BUDGETS))]
                has_models = all(row.modelled for row in chosen)
                cells = [f"{s:.2f}" for s in shares] + [f"{s:.2f}" if has_models else "" for s in told]
                lines.append(f"| {name} | {arm} | {len(chosen)} | {' | '.join(cells)} |")
    lines += ["", "| scenario | configs evaluated | points of the true front | reference: goodput, TPOT ms |"]
    lines.append("| --- | --- | --- | --- |")
    for name, found in attainable.items():
        goodput, tpot = -found.reference[0], found.reference[1] * 1e3
        lines.append(f"| {name} | {found.evaluated} | {len(found.losses)} | {goodput:.1f}, {tpot:.1f} |")
    return "\n".join(lines)


class _Over:
    """Numbers of rows over their scenarios, each scenario counting once."""

    def __init__(self, rows: Iterable[Row], scores: Mapping[tuple[str, str, int, int], Score]) -> None:
        self._by_scenario: dict[str, list[Score]] = defaultdict(list)
        for row in rows:
            self._by_scenario[row.scenario].append(scores[row.key])

    def middles(self, numbers: Callable[[Score], Sequence[float]]) -> list[float]:
        """Medians over scenarios of medians over seeds."""
        rows = [zip(*map(numbers, scores), strict=True) for scores in self._by_scenario.values()]
        medians = [[median(column) for column in columns] for columns in rows]
        return [median(column) for column in zip(*medians, strict=True)]

    def means(self, numbers: Callable[[Score], Sequence[float]]) -> list[float]:
        rows = [zip(*map(numbers, scores), strict=True) for scores in self._by_scenario.values()]
        averages = [[fmean(column) for column in columns] for columns in rows]
        return [fmean(column) for column in zip(*averages, strict=True)]


def plot(rows: Sequence[Row], attainable: Mapping[str, Attainable], arms: Sequence[str], file: Path) -> None:
    """The share of the attainable hypervolume by budget, a line an arm."""
    import matplotlib  # slow to load, and only needed here

    matplotlib.use("Agg")
    from matplotlib import pyplot

    scores = {row.key: score(row, attainable[row.scenario]) for row in rows}
    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for index, arm in enumerate(arms):
        chosen = [row for row in rows if row.arm == arm and row.parallel == 1]
        if not chosen:
            continue
        shares = _Over(chosen, scores).middles(lambda s: s.shares)
        ours = arm.startswith("ehvi")
        axes.plot(
            BUDGETS,
            shares,
            marker="o",
            linestyle="--" if ours and arm != "ehvi" else "-",
            linewidth=2.5 if arm == "ehvi" else 1.2,
            color=pyplot.get_cmap("tab20")(index),
            label=arm,
        )
    axes.set(xlabel="trials, the control included", ylabel="share of the attainable hypervolume", ylim=(0, 1))
    axes.set_xticks(BUDGETS)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, ncols=2)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=130)
    pyplot.close(figure)
