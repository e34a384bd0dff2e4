"""Limits on latency, and the share of requests that must meet them. Pure."""

import math
from dataclasses import dataclass

from objectives.measurement import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Per-request limits in seconds (None: no limit) and the share of requests that must meet them all.

    `ttft_p95_ms: 500` in a space means `ttft_s=0.5` with `attainment=0.95`.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    attainment: float = 0.95

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
