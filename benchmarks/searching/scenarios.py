"""What is searched: problems with space, traffic, limits and engine of their own; and the priors told."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from benchmarks.searching.priors import Prior
from benchmarks.searching.reality import Reality
from cluster.node.simulation.speculation import Acceptance
from cluster.traffic.make import make_trace, recipe_from
from cluster.traffic.workload import Workload
from objectives.goal import Goal
from objectives.slo import Slo
from search_spaces.accelerators import GIB
from search_spaces.load import load_space
from search_spaces.space import Space

_SPACES = Path(__file__).parent / "spaces"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One service whose settings are searched."""

    name: str
    space: str
    """File among `spaces/`."""
    traffic: Mapping[str, float]
    """Of `cluster.traffic.make`."""
    speed: float
    slo: Mapping[str, float]
    noise: float
    """Standard deviation of the log of a trial's factor on all step times."""
    reality: Reality

    def load(self) -> "Loaded":
        space = replace(load_space(str(_SPACES / self.space)), slo=self.slo)
        workload = Workload(trace=make_trace(recipe_from(self.traffic)), speed=self.speed)
        return Loaded(problem=self, space=space, workload=workload)


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A problem with its files read and its trace made."""

    problem: Problem
    space: Space
    workload: Workload

    @cached_property
    def goal(self) -> Goal:
        return Goal.of(self.space.objectives)

    @cached_property
    def slo(self) -> Slo:
        return Slo.from_limits(self.problem.slo)


CHAT = {
    "requests": 200,
    "rate": 8.0,
    "input_mean": 1200,
    "input_max": 7000,
    "output_mean": 200,
    "output_max": 1000,
    "shared_prefix": 0.4,
    "block_tokens": 16,
    "prefixes": 4,
    "turns": 2,
    "think_s": 6.0,
}
"""Sessions of two turns that begin with one of four system prompts."""

SUMMARISE = {
    "requests": 150,
    "rate": 1.0,
    "input_mean": 5000,
    "input_cv": 0.6,
    "input_max": 15000,
    "output_mean": 250,
    "output_max": 1000,
}
"""Long documents that nobody has sent before."""

CODE = {
    "requests": 150,
    "rate": 20.0,
    "burstiness": 0.25,
    "input_mean": 1500,
    "input_max": 7000,
    "output_mean": 60,
    "output_max": 400,
    "shared_prefix": 0.6,
    "block_tokens": 16,
    "prefixes": 20,
}
"""Short completions in bursts, from twenty repositories."""

PROBLEMS = {
    problem.name: problem
    for problem in (
        Problem(
            name="8b-chat",
            space="8b.yaml",
            traffic=CHAT,
            speed=7.0,
            slo={"ttft_p70_ms": 4000, "tpot_p70_ms": 30},
            noise=0.04,
            reality=Reality(
                bandwidth=0.85,
                compute=0.8,
                step=1.3,
                rest=2 * GIB,
                acceptance={"eagle3": Acceptance(rate=0.62), "ngram": Acceptance(rate=0.6, found=0.25)},
            ),
        ),
        Problem(
            name="8b-summarise",
            space="8b.yaml",
            traffic=SUMMARISE,
            speed=16.0,
            slo={"ttft_p70_ms": 15000, "tpot_p70_ms": 60},
            noise=0.02,
            reality=Reality(
                bandwidth=0.9,
                compute=1.15,
                step=0.9,
                rest=4 * GIB,
                acceptance={"ngram": Acceptance(rate=0.8, found=0.6), "eagle3": Acceptance(rate=0.55)},
            ),
        ),
        Problem(
            name="8b-code",
            space="8b.yaml",
            traffic=CODE,
            speed=3.0,
            slo={"ttft_p70_ms": 5000, "tpot_p70_ms": 60},
            noise=0.08,
            reality=Reality(
                bandwidth=0.8,
                compute=0.9,
                step=1.4,
                draft_step=1.5,
                rest=3 * GIB,
                acceptance={"ngram": Acceptance(rate=0.75, found=0.5), "eagle3": Acceptance(rate=0.7)},
            ),
        ),
        Problem(
            name="70b-chat",
            space="70b.yaml",
            traffic=CHAT,
            speed=3.0,
            slo={"ttft_p70_ms": 6000, "tpot_p70_ms": 45},
            noise=0.04,
            reality=Reality(
                bandwidth=0.9,
                compute=0.85,
                step=1.2,
                rest=3 * GIB,
                acceptance={"eagle3": Acceptance(rate=0.65), "Llama-3.1-8B-Instruct": Acceptance(rate=0.85)},
            ),
        ),
        Problem(
            name="70b-code",
            space="70b.yaml",
            traffic=CODE,
            speed=1.0,
            slo={"ttft_p70_ms": 12000, "tpot_p70_ms": 80},
            noise=0.01,
            reality=Reality(
                bandwidth=1.05,
                compute=1.2,
                step=1.6,
                draft_step=1.3,
                rest=2 * GIB,
                acceptance={"ngram": Acceptance(rate=0.7, found=0.5), "eagle3": Acceptance(rate=0.7)},
            ),
        ),
        Problem(
            name="3b-chat",
            space="3b.yaml",
            traffic=CHAT,
            speed=4.0,
            slo={"ttft_p70_ms": 5000, "tpot_p70_ms": 45},
            noise=0.04,
            reality=Reality(
                bandwidth=0.85,
                compute=0.7,
                step=1.5,
                rest=1 * GIB,
                acceptance={"eagle3": Acceptance(rate=0.6), "Llama-3.2-1B-Instruct": Acceptance(rate=0.75)},
            ),
        ),
    )
}
"""By name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A problem, and the prior that a search of it is given."""

    problem: Problem
    prior: Prior

    @property
    def name(self) -> str:
        return f"{self.problem.name}, prior {self.prior.name}"


def _scenario(problem: str, prior: Prior = Prior()) -> Scenario:  # noqa: B008 - frozen
    return Scenario(problem=PROBLEMS[problem], prior=prior)


_WRONG = Prior(off=1.4)

SCENARIOS = (
    _scenario("8b-chat"),
    _scenario("70b-chat", _WRONG),
    _scenario("8b-code", Prior(reversed="quantisation", reference="bf16")),
    _scenario("3b-chat"),
    _scenario("8b-summarise", _WRONG),
    _scenario("70b-code", Prior(reversed="speculation", reference="off")),
    _scenario("8b-chat", Prior(reversed="speculation", reference="off")),
)
"""The first six are one each; the last is the first one's problem again, so that priors can be compared."""
