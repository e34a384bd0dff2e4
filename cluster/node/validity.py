"""When a replay is void through its own client's fault.

The client shares its machine with the engine. Latency counts from the due time, so a client's lateness is
in the latency already: it cannot flatter a config, it can only be taken for the engine's. What matters is how
far it moved the numbers that are printed, and that is what is judged here, rather than a lateness as such:
one hiccup of the scheduler in fifty requests is the p99 of their lateness, and changes nothing that is read.
"""

from collections.abc import Sequence

import numpy as np

from objectives.measurement import Record
from objectives.statistics import quantile, requests_needed

LATE_S = 0.010
LATE_SHARE = 0.05
"""The client may move a printed TTFT by the larger of 10 ms and 5 %.

5 % is less than two runs of one config on such a machine differ by. Below 10 ms the operating system decides:
its time slices are 3 to 6 ms where the engine fills every core.
"""

BUSY_SHARE = 0.85
"""Share of one core past which arrivals queue in the client itself: at utilisation u the mean queue grows as
u / (1 - u), and tokens that come in bursts, one a sequence and step, make it longer."""


def void(
    records: Sequence[Record], *, lags_s: Sequence[float], cpu_share: float, faults: Sequence[str]
) -> str | None:
    """Why a replay is void, in one line; None if it is not.

    Args:
        records: of the replay. A failed request has no latency to be blurred, so it has no part in this.
        lags_s: how late the event loop woke a sleeper, over the replay: arrivals are stamped that late.
        cpu_share: CPU time of the client's thread over the replay's time.
        faults: why the client itself could not send requests, one each.
    """
    if faults:
        return f"the client could not send {len(faults)} request(s): {faults[0]}"
    served = [record for record in records if record.ok]
    if served and (reason := _late(served) or _lagged(served, lags_s)) is not None:
        return reason
    if cpu_share > BUSY_SHARE:
        return f"the client was short of CPU: it used {cpu_share:.0%} of one core, allowed {BUSY_SHARE:.0%}"
    return None


def allowed_s(ttft_s: float) -> float:
    """By how much a client may be late where this is the TTFT."""
    return max(LATE_S, LATE_SHARE * ttft_s)


def _late(served: Sequence[Record]) -> str | None:
    from_due = np.array([record.ttft_s for record in served])
    from_sent = from_due - np.array([record.lateness_s for record in served])
    printed = (0.5, 0.95, 0.99) if len(served) >= requests_needed(0.99) else (0.5, 0.95)
    for q in printed:
        due_s, sent_s = quantile(from_due, q), quantile(from_sent, q)
        if due_s - sent_s > allowed_s(due_s):
            return (
                f"the client sent late: TTFT p{q * 100:.0f} is {due_s * 1e3:.1f} ms from due and "
                f"{sent_s * 1e3:.1f} ms from sent, allowed {allowed_s(due_s) * 1e3:.1f} ms of difference"
            )
    return None


def _lagged(served: Sequence[Record], lags_s: Sequence[float]) -> str | None:
    if not lags_s:
        return None
    lag_s = quantile(np.array(lags_s), 0.95)
    limit_s = allowed_s(quantile(np.array([record.ttft_s for record in served]), 0.5))
    if lag_s <= limit_s:
        return None
    return (
        f"the client read late: its event loop lagged p95 {lag_s * 1e3:.1f} ms, "
        f"allowed {limit_s * 1e3:.1f} ms (10 ms, or 5 % of the median TTFT)"
    )
