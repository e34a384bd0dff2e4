"""A trace made from a few figures: arrivals, lengths, shared prefixes, sessions.

What is asked for is what `cluster.traffic.show` finds, within sampling error: lengths keep their mean
under a cap, the rate is met exactly, and a later turn takes one of the arrivals instead of adding one.
"""

import bisect
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Self

import numpy as np
from numpy.random import PCG64, Generator, SeedSequence
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cluster.traffic.request import BLOCK_TOKENS, MAX_TOKENS, Request, TraceError, nearest
from cluster.traffic.trace import Trace, assemble

Floats = NDArray[np.float64]
Variation = Annotated[float, Field(ge=0, le=100)]
MeanTokens = Annotated[float, Field(ge=1, le=MAX_TOKENS)]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]


class Recipe(BaseModel):
    """The figures of a trace to be made. Lengths are tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    requests: Annotated[int, Field(ge=1, le=1_000_000)]
    rate: Annotated[float, Field(ge=1e-3, le=1e6)]
    """Requests per second, turns of sessions included."""
    burstiness: Annotated[float, Field(ge=0.01, le=1e6)] = 1.0
    """Shape of the gamma distribution of the gaps between arrivals: 1 is Poisson, below 1 comes in
    bursts, above 1 is steadier; the gaps' coefficient of variation is 1 / sqrt(burstiness)."""
    input_mean: MeanTokens
    """Mean prompt, over all requests: shared prefix and, in later turns, the session so far included."""
    input_cv: Variation = 0.5
    """Coefficient of variation of the prompts; with turns, that of the first ones. A cap lowers it."""
    input_max: Tokens = MAX_TOKENS
    """No prompt is longer; a session that would be ends there."""
    output_mean: MeanTokens
    output_cv: Variation = 0.5
    output_max: Tokens = MAX_TOKENS
    shared_prefix: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of all prompt tokens that belong to prefixes which sessions have in common."""
    prefixes: Annotated[int, Field(ge=1, le=100_000)] = 1
    """How many different shared prefixes there are. The k-th is used in proportion to 1/k (Zipf)."""
    turns: Annotated[float, Field(ge=1, le=1000)] = 1.0
    """Mean requests of a session (geometric). A later turn's prompt is the earlier one, its answer and
    new text. Sessions that the trace's end cuts off have fewer."""
    think_s: Annotated[float, Field(ge=0, le=1e6)] = 10.0
    """Mean time from one turn's arrival to the next one's, its answer included (exponential)."""
    block_tokens: Annotated[int, Field(ge=1, le=65_536)] = BLOCK_TOKENS
    """Tokens in one block of `hash_ids`: sharing is told in whole blocks."""
    seed: Annotated[int, Field(ge=0)] = 0

    @property
    def prefix_blocks(self) -> float:
        """Mean length of a shared prefix, in blocks."""
        return self.shared_prefix * self.input_mean / self.block_tokens

    @property
    def prefix_tokens(self) -> float:
        """Mean length of a shared prefix, in tokens."""
        return self.shared_prefix * self.input_mean

    @property
    def new_tokens(self) -> float:
        """Mean tokens that a turn adds of its own, so that prompts have the mean asked for.

        A request is on average the `turns`-th of its session (geometric sessions, weighted by their
        length), so its prompt holds the prefix, `turns` pieces of new text and `turns - 1` answers.
        """
        answers = (self.turns - 1) * self.output_mean
        return (self.input_mean - self.prefix_tokens - answers) / self.turns

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for name, mean, cv, cap in (
            ("input", self.input_mean, self.input_cv, self.input_max),
            ("output", self.output_mean, self.output_cv, self.output_max),
        ):
            if mean > cap or (mean == cap and cv > 0):
                raise ValueError(
                    f"{name}_mean {mean:g} must be below {name}_max {cap} (equal only with no cv)"
                )
        if 0 < self.prefix_blocks < 1:
            raise ValueError(
                f"shared_prefix {self.shared_prefix:g} of input_mean {self.input_mean:g} is "
                f"{self.prefix_tokens:.0f} tokens, less than one block: block_tokens must be at most that"
            )
        if self.new_tokens < 1:
            raise ValueError(
                f"input_mean {self.input_mean:g} cannot hold {self.turns:g} turns with answers of "
                f"{self.output_mean:g} tokens: raise it or lower turns, output_mean or shared_prefix"
            )
        longest_prefix = math.ceil(self.prefix_blocks) * self.block_tokens
        if longest_prefix + self.new_tokens > self.input_max:
            raise ValueError(
                f"input_max {self.input_max} leaves too little beside a shared prefix of {longest_prefix} "
                f"tokens: raise it or lower shared_prefix"
            )
        return self


def recipe_from(mapping: Mapping[str, object], *, where: str = "recipe") -> Recipe:
    """The recipe that a mapping describes.

    Args:
        mapping: figures by name, as YAML, JSON or a command line gives them.
        where: what to call it in faults.

    Raises:
        TraceError: with every fault, and the nearest name for a key that there is not.
    """
    try:
        return Recipe.model_validate(mapping)
    except ValidationError as error:
        faults: list[str] = []
        for fault in error.errors():
            key = ".".join(str(part) for part in fault["loc"])
            if fault["type"] == "extra_forbidden":
                meant = nearest(key, list(Recipe.model_fields))
                hint = f"is it {meant!r}?" if meant else f"there are {', '.join(Recipe.model_fields)}"
                faults.append(f"{where}: unknown key {key!r}: {hint}")
            elif fault["type"] == "missing":
                faults.append(f"{where}: {key} is missing")
            elif fault["type"] == "value_error":
                faults.append(f"{where}: {fault['ctx']['error']}")
            else:
                faults.append(f"{where}: {key}: {fault['msg']}, got {fault['input']!r}")
        raise TraceError(faults) from error


def make_trace(recipe: Recipe) -> Trace:
    """The trace of a recipe. The same recipe gives the same trace, to the digest.

    Each figure draws from its own stream, so changing one leaves the draws of the others alone.
    """
    streams = [Generator(PCG64(child)) for child in SeedSequence(recipe.seed).spawn(5)]
    arrivals, lengths, answers, sessions, popularity = streams
    at = _arrivals(recipe, arrivals)
    longest_prefix = math.ceil(recipe.prefix_blocks) * recipe.block_tokens
    own = _lengths(lengths, recipe.new_tokens, _own_deviation(recipe), recipe.input_max - longest_prefix)
    outputs = _lengths(answers, recipe.output_mean, recipe.output_cv * recipe.output_mean, recipe.output_max)
    prefixes = _prefixes(recipe, popularity)
    fresh = recipe.prefixes * math.ceil(recipe.prefix_blocks)
    placed: list[Request | None] = [None] * recipe.requests
    # A session's later turns take arrivals ahead; those still free when their time comes start sessions.
    for number, first in enumerate(slot for slot in range(recipe.requests) if placed[slot] is None):
        prefix = next(prefixes)
        ids = list(prefix)
        length = len(prefix) * recipe.block_tokens + next(own)
        slot: int | None = first
        while slot is not None:
            output = next(outputs)
            missing = math.ceil(length / recipe.block_tokens) - len(ids)
            ids += range(fresh, fresh + missing)
            fresh += missing
            placed[slot] = Request(
                arrival_s=float(at[slot]),
                input_length=length,
                output_length=output,
                hash_ids=tuple(ids),
                session_id=f"s{number}" if recipe.turns > 1 else None,
            )
            length += output + next(own)
            slot = _next_turn(recipe, sessions, at, placed, slot, length)
    return assemble((request for request in placed if request), block_tokens=recipe.block_tokens)


def _arrivals(recipe: Recipe, random: Generator) -> Floats:
    """(requests,) seconds, ascending from 0: gamma gaps, stretched so that their mean is exact."""
    gaps = random.gamma(recipe.burstiness, size=recipe.requests - 1)
    at = np.concatenate(([0.0], np.cumsum(gaps)))
    total = at[-1]
    return at * ((recipe.requests - 1) / recipe.rate / total) if total > 0 else at


def _next_turn(
    recipe: Recipe,
    random: Generator,
    at: Floats,
    placed: list[Request | None],
    slot: int,
    length: int,
) -> int | None:
    """The arrival that the session's next turn takes: the free one nearest to when it is due.

    None where the session ends: by chance, at the longest prompt allowed, or at the trace's end.
    """
    if random.random() >= 1 - 1 / recipe.turns:
        return None
    due = at[slot] + random.exponential(recipe.think_s)
    if due > at[-1] or length > recipe.input_max:
        return None
    after = max(bisect.bisect_left(at, due), slot + 1)
    right = next((i for i in range(after, len(placed)) if placed[i] is None), None)
    left = next((i for i in range(after - 1, slot, -1) if placed[i] is None), None)
    if left is None or right is None:
        return right if left is None else left
    return left if due - at[left] < at[right] - due else right


def _prefixes(recipe: Recipe, random: Generator) -> Iterator[range]:
    """Block ids of the shared prefix that each session begins with, session after session.

    A mean that is no whole number of blocks is met by taking now one block more, now one less.
    """
    weights = 1 / np.arange(1, recipe.prefixes + 1)
    cumulated = np.cumsum(weights / weights.sum())
    whole = math.floor(recipe.prefix_blocks)
    longest = math.ceil(recipe.prefix_blocks)
    while True:
        which = min(int(np.searchsorted(cumulated, random.random(), side="right")), recipe.prefixes - 1)
        blocks = whole + (random.random() < recipe.prefix_blocks - whole)
        yield range(which * longest, which * longest + blocks)


def _own_deviation(recipe: Recipe) -> float:
    """Standard deviation of the text of one's own: what the prompts' leaves beside the prefix's."""
    if recipe.turns > 1:
        return recipe.input_cv * recipe.new_tokens
    part = recipe.prefix_blocks - math.floor(recipe.prefix_blocks)
    prefix = recipe.block_tokens**2 * part * (1 - part)
    return math.sqrt(max((recipe.input_cv * recipe.input_mean) ** 2 - prefix, 0.0))


def _lengths(random: Generator, mean: float, deviation: float, cap: int) -> Iterator[int]:
    """Whole numbers from 1 to `cap`, one after the other: lognormal above 1, of the mean asked for.

    Fractions are rounded up or down by chance in their proportion, which keeps the mean; the lognormal
    is moved up by what the cap takes away.
    """
    above, most = mean - 1, cap - 1.0
    if above < 1e-6 or deviation == 0:
        sigma, mu = 0.0, math.log(above) if above > 0 else -math.inf
    else:
        sigma = math.sqrt(math.log1p((deviation / above) ** 2))
        mu = _capped_location(above, sigma, most)
    while True:
        for value in np.exp(mu + sigma * random.standard_normal(1024)):
            yield 1 + math.floor(min(float(value), most) + random.random())


def _capped_location(mean: float, sigma: float, cap: float) -> float:
    """The mu at which E[min(X, cap)] is `mean`, X being lognormal(mu, sigma). By bisection."""
    low = math.log(mean) - sigma**2 / 2  # where it would be without a cap
    high = math.log(cap) + 10 * sigma
    for _ in range(100):
        mu = (low + high) / 2
        low, high = (mu, high) if _capped_mean(mu, sigma, cap) < mean else (low, mu)
    return (low + high) / 2


def _capped_mean(mu: float, sigma: float, cap: float) -> float:
    """E[min(X, cap)] of X lognormal: the part below the cap, plus the cap for the part above."""
    z = (math.log(cap) - mu) / sigma
    return math.exp(mu + sigma**2 / 2) * _normal_cdf(z - sigma) + cap * _normal_cdf(-z)


def _normal_cdf(z: float) -> float:
    return math.erfc(-z / math.sqrt(2)) / 2
