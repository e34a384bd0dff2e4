"""One search of one problem by one arm, and what is kept of it: a row."""

import hashlib
import json
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

import tuner.sampler
from benchmarks.searching.arms import Arm
from benchmarks.searching.evaluation import Crash, Evaluation, Evaluator, Worth
from benchmarks.searching.memory import Memory
from benchmarks.searching.scenarios import Scenario
from objectives.front import non_dominated
from search_spaces import first_order
from search_spaces.space import Config
from tuner.sampler import SpaceExhausted
from tuner.sampler.prior import predictor

BUDGETS = (20, 40, 80)
_NUMBERS = 10_000
"""Trial numbers of one seed: noise is drawn by number, so no two seeds have the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A finished trial."""

    config: Config | None
    """None: the control."""
    worth: Evaluation
    ask_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What is kept of a run."""

    scenario: str
    """Or the problem's name, of an arm that no prior reaches."""
    arm: str
    parallel: int
    seed: int
    problem: str
    """Fingerprint: rows of another problem, or of another engine, are not compared."""
    recommended: Mapping[str, Sequence[Sequence[float]]]
    """By budget: true violation and losses of each config that the arm recommends after so many trials."""
    crashed: str
    """A letter a trial: c crashed, s missed the SLO, . met it, as measured."""
    ask_s: tuple[float, ...]
    """CPU seconds that each proposal took."""
    took_s: float
    sampler: str = ""
    """Digest of the code that proposed."""
    modelled: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    """As `recommended`, of what the arm's own models recommend; empty of an arm that has none."""

    @property
    def key(self) -> tuple[str, str, int, int]:
        return self.scenario, self.arm, self.parallel, self.seed


def run(scenario: Scenario, arm: Arm, parallel: int, seed: int, evaluator: Evaluator, memory: Memory) -> Row:
    """Search up to the largest budget.

    With several trials at once they end in the order in which they were sent out.
    """
    began, version = time.perf_counter(), sampler_digest()
    loaded = evaluator.loaded
    predict = predictor(loaded.space, loaded.workload, loaded.slo) if arm.guided else None
    if predict is not None:
        predict = scenario.prior.of(predict, loaded.space, loaded.slo.attainment, seed)
    trials: list[Trial] = []
    modelled: dict[str, list[list[float]]] = {}
    with arm.open(loaded, predict, seed) as asker:
        control = evaluator.control(_NUMBERS * seed)
        asker.control(control)
        trials.append(Trial(config=None, worth=control, ask_s=0.0))
        flying: deque[tuple[int, Config, float]] = deque()
        asked, spent = 1, False
        while len(trials) < BUDGETS[-1]:
            while len(flying) < parallel and asked < BUDGETS[-1] and not spent:
                before = time.process_time()
                try:
                    number, config = asker.ask()
                except SpaceExhausted:
                    spent = True
                    break
                flying.append((number, config, time.process_time() - before))
                asked += 1
            if not flying:
                break
            number, config, ask_s = flying.popleft()
            worth = evaluator.noisy(config, _NUMBERS * seed + number)
            asker.tell(number, worth)
            trials.append(Trial(config=config, worth=worth, ask_s=ask_s))
            if len(trials) in BUDGETS and (chosen := asker.recommended()) is not None:
                modelled[str(len(trials))] = _true(chosen, memory)
    return Row(
        scenario=told_of(scenario, arm),
        arm=arm.name,
        parallel=parallel,
        seed=seed,
        problem=memory.problem,
        recommended={str(budget): _true(recommended(trials[:budget]), memory) for budget in BUDGETS},
        modelled=modelled,
        crashed="".join(map(_letter, trials)),
        ask_s=tuple(round(trial.ask_s, 4) for trial in trials[1:]),
        took_s=round(time.perf_counter() - began, 1),
        sampler=version,
    )


@cache
def sampler_digest() -> str:
    """Of the source of `tuner.sampler` and of the prior: rows of two versions are not one arm's."""
    digest = hashlib.sha256()
    for file in (*sorted(Path(tuner.sampler.__path__[0]).glob("*.py")), Path(first_order.__file__)):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:8]


def told_of(scenario: Scenario, arm: Arm) -> str:
    """What decides how the arm runs: the scenario, or without a prior the problem alone."""
    return scenario.name if arm.guided else scenario.problem.name


def recommended(trials: Iterable[Trial]) -> list[Config]:
    """The front of what was measured within the SLO; a config measured several times counts with its mean."""
    measured: dict[Config, list[Worth]] = {}
    for trial in trials:
        if trial.config is not None and isinstance(trial.worth, Worth):
            measured.setdefault(trial.config, []).append(trial.worth)
    means = {
        config: np.mean([(worth.violation, *worth.losses) for worth in worths], axis=0)
        for config, worths in measured.items()
    }
    met = {config: mean[1:] for config, mean in means.items() if mean[0] <= 0}
    if not met:
        return []
    kept = non_dominated(np.array(list(met.values())))
    return [config for config, keep in zip(met, kept, strict=True) if keep]


def _true(configs: Iterable[Config], memory: Memory) -> list[list[float]]:
    worths = [memory.true(config) for config in configs]
    return [[worth.violation, *worth.losses] for worth in worths if isinstance(worth, Worth)]


def _letter(trial: Trial) -> str:
    if isinstance(trial.worth, Crash):
        return "c"
    return "." if trial.worth.feasible else "s"


def read_rows(file: Path) -> dict[tuple[str, str, int, int], Row]:
    """Rows by key; the last of a key counts."""
    if not file.exists():
        return {}
    rows = [Row(**json.loads(line)) for line in file.read_text().splitlines()]
    return {row.key: row for row in rows}


def append(file: Path, row: Row) -> None:
    """One line; a process that dies in the middle of it leaves a line that is not read as a row."""
    with file.open("a") as out:
        out.write(json.dumps(asdict(row)) + "\n")
