"""What a trial measured: one Record a request, one Sample a scrape, and the Measurement made of both.

Times are seconds on the replay's own clock (zero is the replay's start) unless a name says otherwise.
This module holds the shapes; `objectives.summary` turns the first two into the last.
"""

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One request of a replay, as the client saw it.

    Latencies count from the time the request was *due*, so a stalled client or server cannot hide
    waiting (coordinated omission). A request that failed is infinitely late and stays in every
    percentile.
    """

    request: int
    """Index of the request in the trace; the same request has the same index in every trial."""
    due_s: float
    """When the trace, at the workload's speed, says it leaves."""
    sent_s: float | None
    """When it left; None if it never did."""
    chunk_s: tuple[float, ...] = ()
    """Arrival of each chunk that carried tokens, ascending."""
    chunk_tokens: tuple[int, ...] = ()
    """Output tokens received up to and with each chunk (cumulative, from the server's usage)."""
    finished_s: float | None = None
    """When the stream ended; None if it never ended properly."""
    tokens_in: int = 0
    """Prompt tokens, as the server counted them; as the trace says where it did not answer."""
    tokens_out: int = 0
    """Output tokens received, as the server counted them."""
    tokens_asked: int = 0
    """Output tokens asked for."""
    cached_tokens: int | None = None
    """Prompt tokens the server took from its prefix cache; None where it does not say."""
    error: str | None = None
    """Why the request failed, in one line; None if it did not."""
    server_queue_s: float | None = None
    """The engine's own word, like all `server_` times: from its queue to its first step."""
    server_ttft_s: float | None = None
    """From that first step to the first token: without the queue, and without the client's way there."""
    server_generation_s: float | None = None
    """First token to last."""
    server_itl_mean_s: float | None = None
    """The same over the tokens after the first; None where there are none."""
    drafts: int | None = None
    """Drafts verified for this request; None where the engine does not say."""
    draft_tokens: int | None = None
    """Tokens in those drafts."""
    accepted_tokens: int | None = None
    """Of these accepted, those that `max_tokens` cut off at the end among them."""

    @property
    def ok(self) -> bool:
        return self.error is None and bool(self.chunk_s)

    @property
    def lateness_s(self) -> float:
        """Sent minus due; infinite if it was never sent."""
        return math.inf if self.sent_s is None else self.sent_s - self.due_s

    @property
    def ttft_s(self) -> float:
        """Time to first token from due; infinite if the request failed."""
        return self.chunk_s[0] - self.due_s if self.ok else math.inf

    @property
    def e2e_s(self) -> float:
        """Time to last token from due; infinite if the request failed."""
        return self.chunk_s[-1] - self.due_s if self.ok else math.inf

    @property
    def tpot_s(self) -> float:
        """Mean time per output token after the first chunk's tokens; infinite if the request failed.

        NaN where no token follows the first chunk: there is nothing to time.
        """
        if not self.ok:
            return math.inf
        after = self.chunk_tokens[-1] - self.chunk_tokens[0]
        return (self.chunk_s[-1] - self.chunk_s[0]) / after if after else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """What an engine has observed since it started, counted in buckets."""

    bounds: tuple[float, ...]
    """Upper end of each bucket, itself in it; ascending, the last infinite."""
    counts: tuple[float, ...]
    """Observations up to each bound: cumulative, so the last counts them all."""
    sum: float
    """Of the observations themselves, so a mean is exact whatever the buckets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One reading of the engine's counters. None means the engine does not say, never zero.

    Fields ending in `_total` only grow; the others are gauges. Token counts are tokens.
    """

    at_s: float
    running: float | None = None
    """Requests in the batch."""
    waiting: float | None = None
    """Requests queued in the engine."""
    kv_usage: float | None = None
    """Share of KV blocks in use, 0 to 1; cached but free blocks count as free."""
    preemptions_total: float | None = None
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    target_steps_total: float | None = None
    """Forward passes of the target model."""
    step_tokens_total: float | None = None
    """Tokens processed in those steps."""
    prefix_queries_total: float | None = None
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits_total: float | None = None
    drafts_total: float | None = None
    """Drafts verified: one a sequence and target step in which speculation took part."""
    draft_tokens_total: float | None = None
    accepted_tokens_total: float | None = None
    accepted_per_position_total: tuple[float, ...] | None = None
    """Accepted draft tokens by their position in the draft, first position first."""
    queue_time_s_total: float | None = None
    """Summed over finished requests."""
    inference_time_s_total: float | None = None
    flops_total: float | None = None
    """The engine's own estimate per GPU, where it makes one."""
    read_bytes_total: float | None = None
    write_bytes_total: float | None = None
    finished_total: float | None = None
    """Requests that ended in the engine, those left out that were aborted."""
    ttft_histogram: Histogram | None = None
    """Seconds from arrival at the API server. The first and the last sample have histograms, no other."""
    itl_histogram: Histogram | None = None
    """Seconds between outputs of a request: one observation a step, however many tokens it gave."""
    tpot_histogram: Histogram | None = None
    """Seconds per output token after the first, one mean a request; 0 for a request with one token."""
    e2e_histogram: Histogram | None = None
    """Seconds from arrival to the last token, of finished requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number with its 95 % interval. `low` and `high` are None where no interval can be given."""

    value: float
    low: float | None = None
    high: float | None = None

    def times(self, factor: float) -> "Estimate":
        """The number times a positive factor."""
        return Estimate(
            value=self.value * factor,
            low=None if self.low is None else self.low * factor,
            high=None if self.high is None else self.high * factor,
        )

    def inverse(self, above: float) -> "Estimate":
        """A positive number over this positive one; an end of 0 has no inverse."""
        return Estimate(
            value=above / self.value,
            low=None if self.high is None else above / self.high,
            high=None if not self.low else above / self.low,
        )


class Mode(enum.StrEnum):
    """What kind of load a measurement speaks of."""

    FIXED = "fixed load"
    CAPACITY = "capacity"
    CLOSED = "closed loop"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPoint:
    """One replay of a trial at one speed: a point of its latency-against-rate curve."""

    speed: float
    """Arrival times of the trace were divided by this."""
    offered_rps: float | None
    """Requests per second, first due to last due; None where all are due at once."""
    requests: int
    misses: int
    """Requests known to have missed the SLO; of a cut replay, those that decided its verdict."""
    held: bool
    """Whether the SLO held: the verdict of the whole replay, cut or not."""
    cut_s: float | None = None
    """When it was cut, its verdict being certain, on the replay's clock; None: it was played to its end."""
    took_s: float
    """Length of the replay, on the engine's clock."""
    saved_s: float = 0.0
    """Time to the trace's last due request that the cut spared: the least that it saved."""
    metrics: Mapping[str, Estimate] = field(default_factory=dict)
    """What a whole replay measured, by metric name; empty for a cut one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one trial measured, keyed by metric name (`objectives.metrics` lists them with units).

    A metric that could not be measured is absent.
    """

    metrics: Mapping[str, Estimate]
    requests: int
    failed_requests: int
    duration_s: float
    """First due time to last token."""
    accepted_per_position: tuple[float, ...] | None = None
    """Share of drafts whose token at each position was accepted; None without speculation."""
    warnings: tuple[str, ...] = field(default=())
    """What a reader of these numbers must know, one sentence each."""
    disagreements: tuple[str, ...] = ()
    """Where the client's numbers and the engine's own differ by more than they may, one sentence each."""
    mode: Mode = Mode.FIXED
    curve: tuple[LoadPoint, ...] = ()
    """Every replay of the trial by ascending speed; empty in a closed loop."""

    def value(self, name: str) -> float | None:
        """The metric's point value, or None where it was not measured."""
        estimate = self.metrics.get(name)
        return None if estimate is None else estimate.value
