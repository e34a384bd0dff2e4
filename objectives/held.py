"""Whether a promised number holds on other traffic: one-sided tests with a stated rate of false alarms. Pure.

A promise is the number of one noisy run, and of one stretch of traffic. Under the null hypothesis that it
is true, the run that it was made by is one more draw from what the verifying runs are drawn from, each with
traffic of its own. So a new observation is looked at beside the mean of R others: their difference has the
variance of one of them times 1 + 1/R, and Student's distribution with R - 1 degrees of freedom (the
prediction interval of one future observation: G. Hahn, W. Meeker, "Statistical Intervals", 1991). Numbers
are compared as logarithms of ratios to the control on the same traffic, which takes most of what the
traffic does out of them.

docs/verify.md says what is promised and what the tests were found to do.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, stdtrit

from objectives.measurement import Estimate
from objectives.statistics import CONFIDENCE, wilson

SLIGHT = 1.01
"""A ratio nearer to 1 than this breaks no promise: told or not, nobody would act on it."""

_CENTRAL = (1 + CONFIDENCE) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one promise came to."""

    estimate: Estimate
    """Of the ratio (1: as promised) or of the share, with its 95 % interval."""
    bound: float | None
    """The best that it can still be, at the level of the test: the end that decides. None: nothing can be
    told, and then it is not held."""
    noticed: float | None
    """What the estimate would have had to be, at this spread, to be told not held."""
    held: bool


def ratio_held(
    verified: Sequence[float],
    promised: float,
    *,
    more_is_better: bool,
    level: float,
    least: float = 0.0,
    within: float | None = None,
) -> Verdict:
    """Whether a ratio is as good as was promised.

    Args:
        verified: logarithms, one a run (a pair of runs), each on traffic of its own.
        promised: logarithm of the promised one.
        more_is_better: of the number.
        level: chance of a false alarm, one-sided.
        least: smallest standard deviation of one run that is believed: of numbers that come in steps, where
            runs may agree by chance.
        within: standard deviation of `verified[0] - promised` as far as it is known without a second run.
            Used where there is one run only. None: not known.

    Raises ValueError without a run, or for a logarithm that is not finite.
    """
    logs = np.array(verified, dtype=np.float64)
    if not len(logs) or not np.isfinite([*logs, promised]).all():
        raise ValueError(f"finite logarithms of one or more runs, got {verified} against {promised}")
    n, centre = len(logs), float(logs.mean()) - promised
    if n > 1:
        deviation: float | None = max(float(logs.std(ddof=1)), least) * math.sqrt(1 + 1 / n)
    else:
        deviation = None if within is None else max(within, least * math.sqrt(2))
    if deviation is None:
        return Verdict(estimate=Estimate(value=_exp(centre)), bound=None, noticed=None, held=False)
    central, reach = (quantile(p, n) * deviation for p in (_CENTRAL, 1 - level))
    best = centre + reach if more_is_better else centre - reach
    slight = math.log(SLIGHT)
    held = best >= -slight if more_is_better else best <= slight
    return Verdict(
        estimate=Estimate(value=_exp(centre), low=_exp(centre - central), high=_exp(centre + central)),
        bound=_exp(best),
        noticed=_exp(-slight - reach if more_is_better else slight + reach),
        held=held,
    )


def share_held(shares: Sequence[float], requests: int, wanted: float, *, level: float) -> Verdict:
    """Whether a share of requests is at least what it is to be.

    The bound is the better of two: Student's over the runs, which knows how bursts and traffic make them
    differ, and the score interval's of all requests together (`objectives.statistics.wilson`), which
    knows how little a few requests say and stands in where the runs agree by chance or there is only one.

    Args:
        shares: one a run, each on traffic of its own.
        requests: of one run.
        wanted: the least share.
        level: chance of a false alarm, one-sided.

    Raises ValueError without a run or a request.
    """
    if not shares or requests < 1:
        raise ValueError(f"shares of one or more requests, got {shares} of {requests}")
    values = np.array(shares, dtype=np.float64)
    n, mean = len(values), float(values.mean())
    error = float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else 0.0

    def ends(p: float) -> tuple[float, float]:
        """Of the interval whose upper end is exceeded with a chance of 1 - p."""
        low, high = wilson(mean, n * requests, confidence=2 * p - 1)
        reach = quantile(p, n) * error
        return max(min(low, mean - reach), 0.0), min(max(high, mean + reach), 1.0)

    low, high = ends(_CENTRAL)
    best = ends(1 - level)[1]
    # The score interval of a share ends at `wanted` where the share lies this far below it.
    score = float(ndtri(1 - level)) * math.sqrt(wanted * (1 - wanted) / (n * requests))
    return Verdict(
        estimate=Estimate(value=mean, low=low, high=high),
        bound=best,
        noticed=max(wanted - max(score, quantile(1 - level, n) * error), 0.0),
        held=best >= wanted - 1e-9,
    )


def run_mean(values: Sequence[float], *, logarithmic: bool) -> Estimate:
    """The mean of runs with Student's 95 % interval: of one run without an interval.

    Args:
        values: finite.
        logarithmic: the geometric mean, of positive values.
    """
    points = np.log(values) if logarithmic else np.array(values, dtype=np.float64)
    n, mean = len(points), float(points.mean())
    back = _exp if logarithmic else float
    if n < 2:
        return Estimate(value=back(mean))
    half = quantile(_CENTRAL, n) * float(points.std(ddof=1)) / math.sqrt(n)
    return Estimate(value=back(mean), low=back(mean - half), high=back(mean + half))


def quantile(p: float, runs: int) -> float:
    """Student's quantile of so many runs; the normal's of one, whose spread is not estimated from runs."""
    return float(stdtrit(runs - 1, p)) if runs > 1 else float(ndtri(p))


def _exp(value: float) -> float:
    """Few runs that differ much reach beyond what a float holds."""
    return math.exp(value) if value < 700 else math.inf
