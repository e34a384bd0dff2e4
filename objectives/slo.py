"""Limits on latency, and the share of requests that must meet them. Pure."""

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from objectives.measurement import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Per-request limits in seconds (None: no limit) and the share of requests that must meet them all.

    `ttft_p95_ms: 500` in a space means `ttft_s=0.5` with `attainment=0.95`. With several limits, 95 % of
    the requests must meet all of them at once: a request that is fast to start and slow to go on is missed.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    attainment: float = 0.95

    @classmethod
    def from_limits(cls, limits: Mapping[str, float]) -> "Slo":
        """Read limits as a space has them: `{"ttft_p95_ms": 500, "tpot_p95_ms": 40}`.

        Without any, every answered request meets the SLO.

        Raises:
            ValueError: an unknown key, a limit that is not a positive number, or two percentiles.
        """
        seconds: dict[str, float] = {}
        first: tuple[str, int] | None = None
        for key, limit in limits.items():
            known = _KEY.fullmatch(key)
            if known is None:
                raise ValueError(f"unknown limit {key!r}{_nearest(key)}")
            latency, percentile = known["latency"], int(known["percentile"])
            if first is not None and first[1] != percentile:
                raise ValueError(
                    f"limits of one SLO share one percentile: {first[0]!r} and {key!r} have two, "
                    f"so write {key.replace(f'p{percentile:02}', f'p{first[1]:02}')!r}"
                )
            number = isinstance(limit, int | float) and not isinstance(limit, bool)
            if not number or not 0 < limit < math.inf:
                raise ValueError(f"{key}: a limit is a positive number of milliseconds, got {limit!r}")
            first = (key, percentile)
            seconds[latency] = limit / 1000
        return cls(
            ttft_s=seconds.get("ttft"),
            tpot_s=seconds.get("tpot"),
            e2e_s=seconds.get("e2e"),
            attainment=0.95 if first is None else first[1] / 100,
        )

    def limits(self) -> dict[str, float]:
        """The limits as a space has them, in milliseconds."""
        percentile = f"p{round(self.attainment * 100):02}"
        pairs = (("ttft", self.ttft_s), ("tpot", self.tpot_s), ("e2e", self.e2e_s))
        return {f"{name}_{percentile}_ms": limit * 1000 for name, limit in pairs if limit is not None}

    def worst_ratio(self, record: Record) -> float:
        """The largest of this request's latencies over their limits; infinite for a failed request.

        At most 1 exactly where `met_by`. 0 without limits.
        """
        if not record.ok:
            return math.inf
        pairs = ((self.ttft_s, record.ttft_s), (self.tpot_s, record.tpot_s), (self.e2e_s, record.e2e_s))
        return max((took / limit for limit, took in pairs if limit and not math.isnan(took)), default=0.0)

    def met_by(self, record: Record) -> bool:
        """Whether this request met every limit. A failed request never does.

        A request with one output token has no TPOT, so no TPOT limit can be missed by it.
        """
        if not record.ok:
            return False
        pairs = (
            (self.ttft_s, record.ttft_s),
            (self.tpot_s, record.tpot_s),
            (self.e2e_s, record.e2e_s),
        )
        return all(limit is None or math.isnan(took) or took <= limit for limit, took in pairs)


_KEY = re.compile(r"(?P<latency>ttft|tpot|e2e)_p(?P<percentile>[1-9][0-9])_ms")


def _nearest(key: str) -> str:
    names = [f"{latency}_p{p}_ms" for p in (95, 99, 90, 50) for latency in ("ttft", "tpot", "e2e")]
    close = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; limits look like {names[0]!r}"
