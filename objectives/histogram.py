"""An engine's histograms over a replay: what was observed between two readings, and where its ranks lie."""

from itertools import pairwise

from objectives.measurement import Histogram


def between(before: Histogram | None, after: Histogram | None) -> Histogram | None:
    """What was observed after one reading and up to another.

    None where either is missing, where their buckets differ, and where any count fell: the engine
    restarted.
    """
    if before is None or after is None or before.bounds != after.bounds:
        return None
    counts = tuple(later - earlier for earlier, later in zip(before.counts, after.counts, strict=True))
    if counts[0] < 0 or any(wider < narrower for narrower, wider in pairwise(counts)):
        return None
    return Histogram(bounds=after.bounds, counts=counts, sum=after.sum - before.sum)


def bracket(histogram: Histogram, rank: int) -> tuple[float, float]:
    """The bucket of the rank-th smallest observation, from 1 on: above the first number, at most the second.

    The first bucket has no lower end. Raises ValueError for a rank that no observation has.
    """
    if not 1 <= rank <= histogram.counts[-1]:
        raise ValueError(f"no observation has rank {rank} of {histogram.counts[-1]:g}")
    at = next(at for at, count in enumerate(histogram.counts) if count >= rank)
    return (histogram.bounds[at - 1] if at else float("-inf")), histogram.bounds[at]
