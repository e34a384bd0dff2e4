"""What speculation brought: output tokens per target step, and how drafts were accepted.

A draft is one sequence's proposal in one target step. The engine counts drafts; what was delivered differs
a little, because the last step of a request is cut off at its `max_tokens`.

It counts them by request where it can (vLLM since 0.29), and in total. By request is better: nothing but the
replay's own requests is in it, and how many steps each took can be bounded one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from objectives.counters import growth, ratio
from objectives.measurement import Record, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Drafts over one replay, as the engine counted them. None where it does not say."""

    drafts: float | None
    proposed: float | None
    """Draft tokens."""
    accepted: float | None
    """Draft tokens that the target accepted."""
    accepted_per_position: tuple[float, ...] | None
    """Share of drafts whose token at each position was accepted, first position first."""

    @property
    def acceptance(self) -> float | None:
        """Draft tokens accepted, of those proposed; None without drafts."""
        return ratio(self.accepted, self.proposed)

    @property
    def tokens_per_step(self) -> float | None:
        """1 + accepted / drafts: every verified draft yields the target's own next token too."""
        accepted = ratio(self.accepted, self.drafts)
        return None if accepted is None else 1 + accepted


def speculation(samples: Sequence[Sample], records: Sequence[Record] = ()) -> Speculation:
    """Sum up what was said of each request; where that is not known of all that were answered, read the
    counters from the first sample to the last. Positions are known by counters only.
    """
    drafts = growth(samples, lambda sample: sample.drafts_total)
    positions = _per_position(samples, drafts)
    if told := _told(records):
        return Speculation(
            drafts=sum(one.drafts for one in told),
            proposed=sum(one.draft_tokens for one in told),
            accepted=sum(one.accepted for one in told),
            accepted_per_position=positions,
        )
    return Speculation(
        drafts=drafts,
        proposed=growth(samples, lambda sample: sample.draft_tokens_total),
        accepted=growth(samples, lambda sample: sample.accepted_tokens_total),
        accepted_per_position=positions,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What the engine said of one request."""

    drafts: int
    draft_tokens: int
    accepted: int
    after_first: int
    """Output tokens after the first."""
    chunks: int
    """Chunks after the first."""

    @property
    def least_steps(self) -> int:
        """Target steps after its prefill, at the least."""
        return max(self.drafts, self.after_first - self.accepted, self.chunks)


def _told(records: Sequence[Record]) -> list[_Told]:
    """Of each answered request; empty unless all of them are known."""
    answered = [record for record in records if record.ok]
    told = [
        _Told(
            drafts=record.drafts,
            draft_tokens=record.draft_tokens,
            accepted=record.accepted_tokens,
            after_first=record.chunk_tokens[-1] - 1,
            chunks=len(record.chunk_tokens) - 1,
        )
        for record in answered
        if record.drafts is not None
        and record.draft_tokens is not None
        and record.accepted_tokens is not None
    ]
    return told if len(told) == len(answered) else []


def delivered_per_step(
    records: Sequence[Record], counted: Speculation, *, speculates: bool | None = None
) -> float | None:
    """Output tokens per sequence and target step, from what clients received.

    A request's first token comes from its prefill, so it and the step that made it are left out. The
    steps cannot be seen from outside, but three things bound their number from below, and each is exact
    where the others are not, so the largest is taken:

    - drafts verified (exact if every step had a draft, as with a draft model);
    - tokens minus accepted tokens, since each step adds exactly one token that is not a draft's (exact if
      no request was cut off inside a draft; steps without a draft, as n-gram lookup has, are in it);
    - chunks received (exact if the server never put two steps into one chunk).

    Where the engine counts by request, so is the bound, over the answered requests; their sum is nearer to
    the truth than the bound of the sums.

    Args:
        records: the requests of the replay, failed ones with what they had received.
        counted: what the engine counted over the same replay.
        speculates: whether the engine was told to; None where that is not known.

    Returns:
        1 where the engine does not speculate. None where no token followed a first one, and where neither
        counters nor chunks tell (no counters, and a chunk with several tokens).
    """
    streams = [record for record in records if record.chunk_tokens]
    tokens = sum(record.chunk_tokens[-1] - 1 for record in streams)
    if tokens <= 0:
        return None
    if speculates is False or (counted.drafts == 0 and counted.accepted == 0):
        return 1.0
    if told := _told(records):
        return ratio(sum(one.after_first for one in told), sum(one.least_steps for one in told))
    chunks = sum(len(record.chunk_tokens) - 1 for record in streams)
    if counted.drafts is None or counted.accepted is None:
        return 1.0 if chunks == tokens and not speculates else None
    return tokens / max(counted.drafts, tokens - counted.accepted, chunks)


def _per_position(samples: Sequence[Sample], drafts: float | None) -> tuple[float, ...] | None:
    if not drafts:
        return None
    lengths = {len(s.accepted_per_position_total) for s in samples if s.accepted_per_position_total}
    if len(lengths) != 1:
        return None

    def at(position: int) -> float | None:
        def counter(sample: Sample) -> float | None:
            positions = sample.accepted_per_position_total
            return None if positions is None else positions[position]

        return ratio(growth(samples, counter), drafts)

    shares = [at(position) for position in range(lengths.pop())]
    known = tuple(share for share in shares if share is not None)
    return known if len(known) == len(shares) else None
