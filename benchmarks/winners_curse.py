"""What searches promised of their winners against what verification found: how large the winner's curse is.

    python -m benchmarks.winners_curse runs/STUDY… [--json]

Each study is searched, its winner verified (`tuner verify STUDY --trial N`), and its folder given here. Of
every config that was verified, a row for each objective: what the trial that chose it showed, what the
search promised in the end (the mean of its fresh measurements, where it has any), and what was verified on
held-out traffic. Ratios are over the control on the same traffic, so that heavier traffic is nobody's
curse: below 1 (of a latency above 1) the number was too good. Their intervals are those of the
verification, 95 %. At the end, of the first objective, which winners are chosen by: how much of its number
was left, over the studies, with Student's interval of so many.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from objectives.goal import Objective
from objectives.held import run_mean
from objectives.measurement import Estimate
from objectives.metrics import METRICS
from tuner.front import FrontView, read_view
from tuner.records import StoredTrial
from tuner.titles import interval, number
from tuner.verify.verification import Kept, Verification


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One objective of one verified config."""

    study: str
    trial: int
    simulated: bool
    objective: str
    unit: str
    better: str
    chosen_by: float
    """In the trial that it was chosen by."""
    promised: Estimate
    fresh: int
    """Measurements after it was chosen that the promise is the mean of; 0: it is what it was chosen by."""
    verified: Estimate
    ratio: Estimate
    """Verified over promised."""
    ratio_to_choice: float
    """Verified over what it was chosen by."""
    held: bool


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("studies", nargs="+", type=Path, help="folders of studies with a verified trial")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows = [row for folder in asked.studies for row in rows_of(folder)]
    if asked.json:
        json.dump([asdict(row) for row in rows], sys.stdout, indent=2)
        print()
        return
    print("\n".join(table(rows)))


def rows_of(folder: Path) -> Iterator[Row]:
    """Every objective of every config of a study that was verified, by its latest verification."""
    seen = read_view(folder)
    objectives = {objective.name: objective for objective in seen.goal.objectives}
    for trial, found in sorted(seen.verified.items()):
        for kept in found.promises:
            if kept.kind == "objective":
                row = _row(seen, trial, found, kept, objectives[kept.name])
                if row is not None:
                    yield row


def _row(seen: FrontView, trial: int, found: Verification, kept: Kept, objective: Objective) -> Row | None:
    if kept.promised is None or kept.verified is None or kept.ratio is None:
        return None
    promise = seen.promise(trial)
    chosen_by = _shown(promise.first, objective)
    if chosen_by is None:
        return None
    return Row(
        study=found.study,
        trial=trial,
        simulated=found.simulated,
        objective=kept.name,
        unit=kept.unit,
        better=kept.better,
        chosen_by=chosen_by,
        promised=kept.promised,
        fresh=len(promise.fresh),
        verified=kept.verified,
        ratio=kept.ratio,
        # The control and the traffic are in `ratio` already; between promise and choice neither differs.
        ratio_to_choice=kept.ratio.value * kept.promised.value / chosen_by,
        held=kept.held,
    )


def _shown(trial: StoredTrial, objective: Objective) -> float | None:
    estimate = None if trial.measurement is None else trial.measurement.metrics.get(objective.metric)
    return None if estimate is None else METRICS[objective.metric].show(estimate).value


def table(rows: list[Row]) -> list[str]:
    """As Markdown, with the size of the curse below it."""
    lines = [
        "| study | trial | objective | chosen by | promised | verified | verified / promised | "
        "verified / chosen by | held |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        mark = " (simulated)" if row.simulated else ""
        promised = f"{number(row.promised.value)} (mean of {row.fresh} fresh)" if row.fresh else "the same"
        lines.append(
            f"| {row.study}{mark} | {row.trial} | {row.objective}, {row.unit} | {number(row.chosen_by)} | "
            f"{promised} | {interval(row.verified)} | ×{interval(row.ratio)} | "
            f"×{number(row.ratio_to_choice)} | {'yes' if row.held else 'no'} |"
        )
    return [*lines, "", *curse(rows)]


def curse(rows: list[Row]) -> Iterator[str]:
    """What was left of the first objective, over the configs that were verified; one sentence each."""
    first = list({(row.study, row.trial): row for row in reversed(rows)}.values())
    for what, values in (
        ("what a config was chosen by", [gain(row, row.ratio_to_choice) for row in first]),
        ("what was promised", [gain(row, row.ratio.value) for row in first]),
    ):
        if values:
            mean = run_mean(values, logarithmic=True)
            yield f"of {what}, ×{interval(mean)} was left: {len(values)} configs, first objective"


def gain(row: Row, ratio: float) -> float:
    """The ratio as more is better: below 1 the number was too good to be true."""
    return ratio if row.better == "more" else 1 / ratio


if __name__ == "__main__":
    main()
