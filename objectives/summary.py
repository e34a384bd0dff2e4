"""From what a replay left behind, Records and Samples, to its Measurement. docs/measurement.md says why."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from objectives.bootstrap import Array
from objectives.counters import growth, ratio, restarted
from objectives.latency import Gaps, latencies, token_gaps
from objectives.measurement import Estimate, Measurement, Record, Sample
from objectives.metrics import LATENCIES, PERCENTILES, STRICT_ABOVE, latency_metric
from objectives.occupancy import occupancy
from objectives.reconcile import disagreements
from objectives.slo import Slo
from objectives.speculation import Speculation, delivered_per_step, speculation
from objectives.statistics import (
    clustered_quantile_estimates,
    quantile,
    quantile_estimates,
    ratio_estimate,
    requests_needed,
    share_estimate,
)
from objectives.steady import rate_reach, steady_window, unsettled


def summarise(
    records: Sequence[Record],
    samples: Sequence[Sample],
    *,
    slo: Slo,
    max_num_seqs: int | None,
    seed: int = 0,
    speculates: bool | None = None,
    caveats: Sequence[str] = (),
    percentiles: Sequence[int] = (),
) -> Measurement:
    """Measure one replay.

    Rates are over the window of `objectives.steady`. A failed request is a miss of the SLO and infinitely
    late in every latency. Metrics that would be infinite are left out, and a warning says so. Where no
    request was answered, no goodput and no attainment are given either: nothing was measured, and 0 would
    pass for a measurement.

    Args:
        records: one a request, in any order; failed ones included.
        samples: the engine's counters in time order, from before the first request to after the last.
        slo: what a good request is.
        max_num_seqs: batch slots of the config, for occupancy; None where unknown.
        seed: of the bootstrap.
        speculates: whether the engine speculates; None where that is not known.
        caveats: what is already known to matter to a reader; first among the warnings.
        percentiles: of the latencies, whole numbers from 1 to 99, beside those that are always measured.

    Raises ValueError without records.
    """
    if not records:
        raise ValueError("a replay without requests measures nothing")
    ordered = sorted(records, key=lambda record: (record.due_s, record.request))
    span = _span(ordered)
    counted = speculation(samples, ordered)
    points = tuple(sorted({*PERCENTILES, *percentiles}))
    timed = _timed(ordered, points, seed)
    metrics = {
        **_rates(ordered, slo, seed),
        **{name: estimate for name, estimate in timed.items() if np.isfinite(estimate.value)},
        **_of_engine(ordered, samples, counted, span, max_num_seqs, speculates),
    }
    return Measurement(
        metrics=metrics,
        requests=len(ordered),
        failed_requests=sum(not record.ok for record in ordered),
        duration_s=span.length_s,
        accepted_per_position=counted.accepted_per_position,
        warnings=(*caveats, *_warnings(ordered, samples, timed, points)),
        disagreements=disagreements(ordered, samples),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s


def _span(ordered: Sequence[Record]) -> _Span:
    last_token = max((record.chunk_s[-1] for record in ordered if record.chunk_s), default=ordered[-1].due_s)
    return _Span(start_s=ordered[0].due_s, end_s=max(last_token, ordered[-1].due_s))


def _rates(ordered: Sequence[Record], slo: Slo, seed: int) -> dict[str, Estimate]:
    """Shares of requests, and rates: each is a share of all requests, or of their tokens, times one rate."""
    n = len(ordered)
    good = np.array([slo.met_by(record) for record in ordered])
    ok = np.array([record.ok for record in ordered])
    metrics = {"failed_share": share_estimate(~ok, seed=seed)}
    between = ordered[-1].due_s - ordered[0].due_s
    if between > 0:
        metrics["offered_rps"] = Estimate(value=(n - 1) / between)
    if not ok.any():
        return metrics

    window = steady_window(ordered)
    rate = window.rate(n)
    reach = rate_reach(ordered, window)
    attainment = share_estimate(good, seed=seed)
    metrics["slo_attainment"] = attainment
    if slo.limits() and np.isfinite((margin := _margin(ordered, slo, seed)).value):
        metrics["slo_margin"] = margin
    tokens = np.array([_tokens(record) for record in ordered], dtype=np.float64)
    token_rate = rate * float(tokens.mean())
    metrics["throughput_rps"] = Estimate(value=rate * float(ok.mean()))
    metrics["throughput_tokens_per_s"] = Estimate(value=rate * float(tokens[ok].sum()) / n)
    metrics["goodput_rps"] = _widened(attainment.times(rate), reach)
    if token_rate > 0:
        share = share_estimate(good, tokens, seed=seed)
        metrics["goodput_tokens_per_s"] = _widened(share.times(token_rate), reach)
    return metrics


def _widened(estimate: Estimate, reach: tuple[float, float]) -> Estimate:
    """An estimate of a share times a rate, with what is not known of the rate.

    The two are independent, so their relative reaches add up by squares.

    Args:
        reach: how far the rate's interval goes down and up, over the rate.
    """
    value = estimate.value
    if value <= 0 or estimate.low is None or estimate.high is None:
        return estimate
    down, up = math.hypot(1 - estimate.low / value, reach[0]), math.hypot(estimate.high / value - 1, reach[1])
    return Estimate(value=value, low=value * max(1 - down, 0.0), high=value * (1 + up))


def _margin(ordered: Sequence[Record], slo: Slo, seed: int) -> Estimate:
    """By how much the SLO holds or not: at most 1 exactly where enough requests met it.

    Of n requests, ⌈attainment · n⌉ must meet it, so the margin is that order statistic of each request's
    worst latency over its limit.
    """
    worst = np.array([slo.worst_ratio(record) for record in ordered])
    n = len(worst)
    needed = math.ceil(slo.attainment * n - 1e-9)
    share = (needed - 1) / (n - 1) if n > 1 else 0.5
    (estimate,) = quantile_estimates(worst, [min(max(share, 1e-12), 1 - 1e-12)], seed=seed)
    return estimate


def _tokens(record: Record) -> int:
    """Output tokens received; of a failed request, those it should have had."""
    return record.tokens_out if record.ok else max(record.tokens_asked, record.tokens_out)


def _timed(ordered: Sequence[Record], points: Sequence[int], seed: int) -> dict[str, Estimate]:
    """Every latency's mean and percentiles, infinite ones included."""
    metrics: dict[str, Estimate] = {}
    qs = [point / 100 for point in points]
    for latency, values in latencies(ordered).items():
        if len(values):
            metrics |= _points(latency, points, len(values), quantile_estimates(values, qs, seed=seed))
            metrics[latency_metric(latency, None)] = _mean(values, np.ones(len(values)), seed)
    gaps = token_gaps(ordered)
    if len(gaps.gap_s):
        estimates = clustered_quantile_estimates(gaps.gap_s, gaps.count, gaps.owner, qs, seed=seed)
        metrics |= _points("itl", points, len(np.unique(gaps.owner)), estimates)
        metrics[latency_metric("itl", None)] = _mean(*_per_request(gaps, len(ordered)), seed)
    late = np.array([record.lateness_s for record in ordered if record.sent_s is not None])
    if len(late):
        metrics["lateness_p99_s"] = Estimate(value=quantile(late, 0.99))
    return metrics


def _points(
    latency: str, points: Sequence[int], n: int, estimates: Sequence[Estimate]
) -> dict[str, Estimate]:
    """Percentiles by name, without those that `n` requests say too little about."""
    return {
        latency_metric(latency, point): estimate
        for point, estimate in zip(points, estimates, strict=True)
        if point <= STRICT_ABOVE or n >= requests_needed(point / 100)
    }


def _mean(sums: Array, counts: Array, seed: int) -> Estimate:
    if np.isinf(sums).any():
        return Estimate(value=float("inf"))
    return ratio_estimate(sums, counts, seed=seed)


def _per_request(gaps: Gaps, n: int) -> tuple[Array, Array]:
    """Summed gap time and number of gaps of each request that has gaps."""
    counts: Array = np.bincount(gaps.owner, gaps.count, n).astype(np.float64)
    sums: Array = np.bincount(gaps.owner, gaps.gap_s * gaps.count, n).astype(np.float64)
    return sums[counts > 0], counts[counts > 0]


def _of_engine(
    ordered: Sequence[Record],
    samples: Sequence[Sample],
    counted: Speculation,
    span: _Span,
    max_num_seqs: int | None,
    speculates: bool | None,
) -> dict[str, Estimate]:
    """What counters and gauges say; a metric of which anything is unknown is absent."""
    full = occupancy(samples, start_s=span.start_s, end_s=span.end_s, max_num_seqs=max_num_seqs)
    hits = ratio(
        growth(samples, lambda sample: sample.prefix_hits_total),
        growth(samples, lambda sample: sample.prefix_queries_total),
    )
    cached = _cached_share(ordered)
    queued = growth(samples, lambda sample: sample.queue_time_s_total)
    flops = growth(samples, lambda sample: sample.flops_total)
    moved = growth(samples, _bytes_moved)
    tokens = sum(record.tokens_out for record in ordered)
    values: Mapping[str, float | None] = {
        "accepted_tokens_per_target_step": delivered_per_step(ordered, counted, speculates=speculates),
        "accepted_tokens_per_target_step_counted": counted.tokens_per_step,
        "draft_acceptance": counted.acceptance,
        "batch_mean": full.batch_mean,
        "batch_occupancy": full.batch_share,
        "waiting_mean": full.waiting_mean,
        "kv_occupancy": full.kv_mean,
        "kv_occupancy_max": full.kv_max,
        "prefix_hit_rate": hits if cached is None else cached,
        "prefix_hit_rate_counted": hits,
        "preemptions": full.preemptions,
        "target_steps": full.target_steps,
        "tokens_per_target_step": full.tokens_per_step,
        "queue_time_mean_s": ratio(queued, sum(record.ok for record in ordered)),
        "flops_per_token": ratio(flops, tokens),
        "bytes_per_token": ratio(moved, tokens),
    }
    return {name: Estimate(value=value) for name, value in values.items() if value is not None}


def _cached_share(ordered: Sequence[Record]) -> float | None:
    """Prompt tokens taken from the prefix cache; None unless every answered request says how many."""
    answered = [record for record in ordered if record.ok]
    told = [record.cached_tokens for record in answered if record.cached_tokens is not None]
    if len(told) < len(answered):
        return None
    return ratio(sum(told), sum(record.tokens_in for record in answered))


def _bytes_moved(sample: Sample) -> float | None:
    read, written = sample.read_bytes_total, sample.write_bytes_total
    return None if read is None or written is None else read + written


def _warnings(
    ordered: Sequence[Record],
    samples: Sequence[Sample],
    timed: Mapping[str, Estimate],
    points: Sequence[int],
) -> Iterator[str]:
    n = len(ordered)
    failed = [record for record in ordered if not record.ok]
    if failed:
        reasons = Counter(record.error or "no token came" for record in failed)
        reason, times = reasons.most_common(1)[0]
        yield f"{len(failed)} of {n} requests failed ({times}: {reason})"
    infinite = [name for name, estimate in timed.items() if not np.isfinite(estimate.value)]
    if infinite:
        yield f"left out, as failed requests make them infinite: {', '.join(infinite)}"
    unbounded = [
        point
        for point in points
        if n < requests_needed(point / 100)
        and any(latency_metric(latency, point) in timed for latency in LATENCIES)
    ]
    for point in unbounded:
        yield (
            f"{n} requests cannot bound p{point} from above ({requests_needed(point / 100)} would): "
            f"it has a value but no upper end"
        )
    short = sum(record.ok and record.tokens_out < record.tokens_asked for record in ordered)
    if short:
        yield f"{short} of {n} requests were answered with fewer tokens than asked for"
    if (why := unsettled(ordered)) is not None:
        yield why
    if restarted(samples):
        yield "the engine's counters went down during the replay: it restarted, and what they say is left out"
