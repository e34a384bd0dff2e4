"""How many trials a search needs, on the simulated engine: our sampler, whole and in part, and others.

    python -m benchmarks.search --quick              # two scenarios, three seeds, six arms: some minutes
    python -m benchmarks.search                      # seven scenarios, twelve seeds, all arms: some hours
    python -m benchmarks.search --report             # table and plot of what is there

Stop it at any time; the same command goes on where it was. Rows and true worths are kept under
`runs/benchmarks/search`. What is searched is in `searching/scenarios.py`, by what in `searching/arms.py`.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from benchmarks.searching.arms import ARMS, Arm
from benchmarks.searching.evaluation import Evaluator
from benchmarks.searching.memory import Memory
from benchmarks.searching.report import plot, table
from benchmarks.searching.runs import Row, append, read_rows, run, told_of
from benchmarks.searching.scenarios import SCENARIOS, Scenario
from benchmarks.searching.truth import Attainable, explore

FOLDER = Path("runs/benchmarks/search")
PICTURE = Path("docs/images/search-budget.png")
QUICK_ARMS = ("ehvi", "ehvi, no prior", "tpe", "random", "optuna tpe", "optuna tpe multivariate")
SEEDS = 12

_One = TypeVar("_One")


def main() -> None:
    parser = argparse.ArgumentParser(description="Trials that a search needs, by arm.")
    parser.add_argument(
        "--quick", action="store_true", help="two scenarios, three seeds, six arms, one at once"
    )
    parser.add_argument("--seeds", type=int, help=f"instead of {SEEDS}, or of 3")
    parser.add_argument("--arms", help="names, separated by semicolons")
    parser.add_argument("--scenarios", help="numbers, separated by commas, from 0")
    parser.add_argument("--at-once", type=int, help="only with so many trials at once: 1 or 4")
    parser.add_argument("--again", action="store_true", help="run rows anew that are there; the last counts")
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where rows are kept")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    chosen = parser.parse_args()
    scenarios = _scenarios(chosen.scenarios, chosen.quick)
    arms = _arms(chosen.arms, chosen.quick)
    seeds = range(chosen.seeds or (3 if chosen.quick else SEEDS))
    bench = _Bench(chosen.folder, chosen.quick)
    if not chosen.report:
        for scenario in scenarios:
            bench.prepare(scenario)
        at_once = 1 if chosen.quick else chosen.at_once
        plan = list(_plan(scenarios, arms, seeds, at_once))
        bench.play(plan, again=chosen.again)
    rows = [row for scenario in scenarios for row in bench.rows_of(scenario, arms)]
    rows = [row for row in rows if chosen.at_once in (None, row.parallel)]
    named = {row.scenario for row in rows}
    attainable = {one.name: bench.attainable(one) for one in scenarios if one.name in named}
    print(table(rows, attainable, [arm.name for arm in arms]))
    if rows and not chosen.quick:
        plot(rows, attainable, [arm.name for arm in arms], chosen.picture)


_Task = tuple[Scenario, Arm, int, int]
"""With how many trials at once, and which seed."""


def _plan(
    scenarios: Sequence[Scenario], arms: Sequence[Arm], seeds: Sequence[int], at_once: int | None
) -> Iterator[_Task]:
    """Seed after seed, so that what is there after a while is even over scenarios and arms."""
    for seed in seeds:
        for scenario in scenarios:
            for arm in arms:
                for parallel in arm.parallel:
                    if at_once in (None, parallel):
                        yield scenario, arm, parallel, seed


class _Bench:
    """Where rows and true worths are kept."""

    def __init__(self, folder: Path, quick: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._truth, self._file = folder / "truth.sqlite", folder / "rows.jsonl"
        self._quick = quick
        self._loaded: dict[str, tuple[Evaluator, Memory]] = {}
        self.rows = read_rows(self._file)

    def prepare(self, scenario: Scenario) -> None:
        """Find the problem's true front, unless it is there."""
        evaluator, memory = self._opened(scenario)
        name = scenario.problem.name
        draws, most = (150, 1000) if self._quick else (300, 4000)
        explore(
            memory, evaluator.loaded.space, draws=draws, most=most, say=lambda text: _say(f"{name}: {text}")
        )

    def play(self, plan: Sequence[_Task], *, again: bool) -> None:
        began = datetime.now(UTC)
        for done, (scenario, arm, parallel, seed) in enumerate(plan, 1):
            evaluator, memory = self._opened(scenario)
            key = told_of(scenario, arm), arm.name, parallel, seed
            there = self.rows.get(key)
            if there is not None and there.problem == memory.problem and not again:
                continue
            row = run(scenario, arm, parallel, seed, evaluator, memory)
            append(self._file, row)
            self.rows[row.key] = row
            minutes = (datetime.now(UTC) - began).total_seconds() / 60
            _say(f"{done} of {len(plan)}, {minutes:.0f} min: {', '.join(map(str, row.key))}, {row.took_s} s")

    def rows_of(self, scenario: Scenario, arms: Sequence[Arm]) -> Iterator[Row]:
        """Rows that tell of the scenario: its own, and those of its problem that no prior reached."""
        told = {(told_of(scenario, arm), arm.name) for arm in arms}
        found = [row for row in self.rows.values() if (row.scenario, row.arm) in told]
        problem = self._opened(scenario)[1].problem if found else ""
        yield from (replace(row, scenario=scenario.name) for row in found if row.problem == problem)

    def attainable(self, scenario: Scenario) -> Attainable:
        _, memory = self._opened(scenario)
        return Attainable.of(memory)

    def _opened(self, scenario: Scenario) -> tuple[Evaluator, Memory]:
        name = scenario.problem.name
        if name not in self._loaded:
            evaluator = Evaluator(scenario.problem.load())
            self._loaded[name] = evaluator, Memory(self._truth, evaluator)
        return self._loaded[name]


def _scenarios(numbers: str | None, quick: bool) -> Sequence[Scenario]:
    if numbers is None:
        return SCENARIOS[:2] if quick else SCENARIOS
    known = {str(number): scenario for number, scenario in enumerate(SCENARIOS)}
    return _named(numbers.split(","), known, "scenario")


def _arms(names: str | None, quick: bool) -> Sequence[Arm]:
    if names is None:
        return [ARMS[name] for name in QUICK_ARMS] if quick else list(ARMS.values())
    return _named(names.split(";"), ARMS, "arm")


def _named(names: Iterable[str], known: Mapping[str, _One], kind: str) -> list[_One]:
    """Those of these names. Ends the program where one is not known."""
    asked = [name.strip() for name in names]
    for name in asked:
        if name not in known:
            raise SystemExit(f"error: no {kind} '{name}'; there are: {'; '.join(known)}")
    return [known[name] for name in asked]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
