"""Whether two independent numbers differ, from their intervals. Pure.

Two intervals that overlap may well tell two numbers apart, so "they overlap" is no test. The interval of the
difference is made of the four ends (the method of variance estimates recovery): each way it reaches as far as
the root of the squared reaches of the two that push that way.

Source: G. Zou, A. Donner, "Construction of confidence limits about effect measures: a general approach",
Statistics in Medicine 27, 2008.
"""

import math

from objectives.measurement import Estimate


def difference_of(a: Estimate, b: Estimate) -> Estimate:
    """a - b with its 95 % interval; an end is None where one that it needs is. Both values are finite."""
    value = a.value - b.value
    low = _reach(a.value, a.low, b.value, b.high)
    high = _reach(a.value, a.high, b.value, b.low)
    return Estimate(
        value=value,
        low=None if low is None else value - low,
        high=None if high is None else value + high,
    )


def ratio_of(a: Estimate, b: Estimate) -> Estimate:
    """a / b with its 95 % interval, by the difference of their logarithms.

    An end of 0 or below has no logarithm and counts as not known. Raises ValueError for a value that is not
    above 0.
    """
    logs = difference_of(_log(a), _log(b))
    return Estimate(
        value=math.exp(logs.value),
        low=None if logs.low is None else math.exp(logs.low),
        high=None if logs.high is None else math.exp(logs.high),
    )


def told(contrast: Estimate, equal: float) -> bool | None:
    """Whether the interval leaves out the value of no difference (0, or 1 of a ratio).

    None where an end is not known and the other does not tell already.
    """
    if contrast.low is not None and contrast.low > equal:
        return True
    if contrast.high is not None and contrast.high < equal:
        return True
    return None if contrast.low is None or contrast.high is None else False


def _reach(a: float, a_end: float | None, b: float, b_end: float | None) -> float | None:
    return None if a_end is None or b_end is None else math.hypot(a_end - a, b_end - b)


def _log(one: Estimate) -> Estimate:
    if not 0 < one.value < math.inf:
        raise ValueError(f"a ratio is of numbers above 0, got {one.value}")
    low, high = (None if end is None or end <= 0 else math.log(end) for end in (one.low, one.high))
    return Estimate(value=math.log(one.value), low=low, high=high)
