"""Resampling requests in blocks, because requests close in time share a queue and are not independent.

The circular block bootstrap: blocks of consecutive requests are drawn with replacement and laid end to
end until the resample is as long as the sample; the sample is bent into a ring so that its first and
last requests are drawn as often as the others. Requests are in order of their due times.

Sources: H. Künsch, "The jackknife and the bootstrap for general stationary observations", Annals of
Statistics 17(3), 1989 (moving blocks); D. Politis, J. Romano, "A circular block-resampling procedure for
stationary data", 1992 (the ring).
"""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

RESAMPLES = 1000
"""Enough that the ends of a 95 % interval are the 25th and the 975th resample, not the first and the last."""

_BATCH = 2_000_000
"""Most indices held at once (16 MB), so that a long replay costs time and not memory."""


def block_length(series: Array) -> int:
    """How many consecutive requests make one block.

    The larger of n^(1/3), the rate at which the best length grows, and the automatic choice for the
    circular bootstrap; at most n/3. The automatic choice is made on ranks, so infinities (failed
    requests) are fine and one huge latency does not decide it.

    Source: D. Politis, H. White, "Automatic block-length selection for the dependent bootstrap",
    Econometric Reviews 23(1), 2004, section 3.2, constants c = 2 and K = max(5, √log₁₀ n).
    """
    n = len(series)
    floor = max(1, math.ceil(float(np.cbrt(n)) - 1e-9))
    most = max(1, n // 3)
    ranks = np.unique(series, return_inverse=True)[1].astype(np.float64)
    centred = ranks - ranks.mean()
    variance = float(centred @ centred) / n
    if variance == 0 or n < 9:
        return min(floor, most)

    run = max(5, math.ceil(math.sqrt(math.log10(n))))
    lags = min(math.ceil(math.sqrt(n)) + run, n - 1)
    covariance = np.array([variance, *(float(centred[k:] @ centred[:-k]) / n for k in range(1, lags + 1))])
    negligible = np.abs(covariance[1:]) < 2 * variance * math.sqrt(math.log10(n) / n)
    # The last lag that still matters: the first one followed by `run` that do not.
    matters = next((m for m in range(lags - run + 1) if negligible[m : m + run].all()), lags - run)
    reach = min(2 * max(matters, 1), lags)

    lag = np.arange(1, reach + 1)
    window = np.clip(2 * (1 - lag / reach), 0, 1)  # flat to half of the reach, then down to 0
    weighted = window * covariance[1 : reach + 1]
    spectrum = variance + 2 * float(weighted.sum())
    slope = 2 * float((weighted * lag).sum())
    if spectrum <= 0:
        return min(floor, most)
    automatic = float(np.cbrt(1.5 * slope**2 / spectrum**2 * n))
    return min(max(floor, math.ceil(automatic)), most)


def starts(n: int, length: int, seed: int, resamples: int = RESAMPLES) -> Indices:
    """Where each block of each resample begins: (resamples, blocks) of 0 … n-1."""
    blocks = math.ceil(n / length)
    return np.random.default_rng(seed).integers(0, n, size=(resamples, blocks))


def resampled(n: int, length: int, seed: int, resamples: int = RESAMPLES) -> Iterator[Indices]:
    """Batches of resamples, each row the n indices of one resample."""
    first = starts(n, length, seed, resamples)
    offsets = np.arange(length)
    rows = max(1, _BATCH // n)
    for begin in range(0, resamples, rows):
        some = first[begin : begin + rows]
        yield ((some[:, :, None] + offsets) % n).reshape(len(some), -1)[:, :n]


def resampled_sums(values: Array, length: int, seed: int, resamples: int = RESAMPLES) -> Array:
    """The sum of each resample of finite values, by way of block sums: (resamples,)."""
    n = len(values)
    first = starts(n, length, seed, resamples)
    last_length = n - (first.shape[1] - 1) * length
    running = np.concatenate(([0.0], np.cumsum(np.concatenate((values, values[:length])))))
    whole = running[length : length + n] - running[:n]
    cut = running[last_length : last_length + n] - running[:n]
    sums: Array = whole[first[:, :-1]].sum(axis=1) + cut[first[:, -1]]
    return sums
