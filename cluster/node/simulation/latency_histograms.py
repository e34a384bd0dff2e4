"""The latency histograms that vLLM would have after a play, in vLLM's own buckets."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from objectives.measurement import Histogram, Sample

# vllm/v1/metrics/loggers.py, 0.32.0.
_TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0),
    *(80.0, 160.0, 640.0, 2560.0, math.inf),
)
_STEP = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0),
    *(80.0, math.inf),
)
_E2E = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0),
    *(960.0, 1920.0, 7680.0, math.inf),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """When the chunks of all requests came: those of the first request, of the second, and so on."""

    due_s: NDArray[np.float64]
    """(requests,)."""
    tokens: NDArray[np.int64]
    """(requests,) output tokens."""
    chunk_s: NDArray[np.float64]
    """(chunks,)."""
    ends: Sequence[int]
    """(requests,) index after each request's last chunk."""


def with_histograms(samples: Sequence[Sample], timed: Timed) -> list[Sample]:
    """The same samples, with histograms in the first, from before any request, and in the last, after all."""
    ends = np.asarray(timed.ends)
    starts = np.concatenate(([0], ends[:-1]))
    first, last = timed.chunk_s[starts], timed.chunk_s[ends - 1]
    later = np.ones(len(timed.chunk_s), dtype=bool)
    later[starts] = False
    gaps = np.diff(timed.chunk_s, prepend=0.0)[later]
    before, *between, after = samples
    none = np.zeros(0)
    return [
        replace(
            before,
            ttft_histogram=_histogram(none, _TTFT),
            itl_histogram=_histogram(none, _STEP),
            tpot_histogram=_histogram(none, _STEP),
            e2e_histogram=_histogram(none, _E2E),
        ),
        *between,
        replace(
            after,
            ttft_histogram=_histogram(first - timed.due_s, _TTFT),
            itl_histogram=_histogram(gaps, _STEP),
            tpot_histogram=_histogram((last - first) / np.maximum(timed.tokens - 1, 1), _STEP),
            e2e_histogram=_histogram(last - timed.due_s, _E2E),
        ),
    ]


def _histogram(observed: NDArray[np.float64], bounds: tuple[float, ...]) -> Histogram:
    """vLLM's buckets hold their upper ends."""
    counts = np.bincount(np.searchsorted(bounds, observed, side="left"), minlength=len(bounds))
    return Histogram(
        bounds=bounds, counts=tuple(counts.cumsum().astype(float).tolist()), sum=float(observed.sum())
    )
