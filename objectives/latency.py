"""Latencies of a replay's requests as arrays, in order of due times. Failed requests are infinitely late."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from objectives.bootstrap import Array
from objectives.measurement import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """Gaps between the output tokens of all requests: `count[i]` gaps of `gap_s[i]` in request `owner[i]`."""

    gap_s: Array
    count: Array
    owner: NDArray[np.int64]
    """Index into the records they were taken from."""


def latencies(records: Sequence[Record]) -> dict[str, Array]:
    """TTFT, TPOT and E2E of each request, in seconds.

    TPOT is left out of its array where no token followed the first chunk, so it can be shorter.
    """
    tpot = np.array([record.tpot_s for record in records], dtype=np.float64)
    return {
        "ttft": np.array([record.ttft_s for record in records], dtype=np.float64),
        "tpot": tpot[~np.isnan(tpot)],
        "e2e": np.array([record.e2e_s for record in records], dtype=np.float64),
    }


def token_gaps(records: Sequence[Record]) -> Gaps:
    """Gaps between output tokens.

    Tokens that arrive together, as accepted drafts do, share the time since the chunk before: a chunk of k
    tokens after g seconds is k gaps of g / k. Nothing is made of the first chunk. A failed request has as
    many infinite gaps as the tokens it was asked for would have had (at least one, where that is unknown).
    """
    gap_s: list[Array] = []
    count: list[Array] = []
    owner: list[NDArray[np.int64]] = []
    for index, record in enumerate(records):
        if record.ok:
            tokens = np.array(record.chunk_tokens, dtype=np.float64)
            at = np.array(record.chunk_s, dtype=np.float64)
            grew = np.diff(tokens, prepend=0) > 0
            counts = np.diff(tokens[grew])
            gaps = np.diff(at[grew]) / counts
        else:
            missing = record.tokens_asked - 1 if record.tokens_asked > 0 else 1
            counts = np.full(min(missing, 1), float(missing))
            gaps = np.full(len(counts), math.inf)
        gap_s.append(gaps)
        count.append(counts)
        owner.append(np.full(len(gaps), index, dtype=np.int64))
    return Gaps(gap_s=np.concatenate(gap_s), count=np.concatenate(count), owner=np.concatenate(owner))
