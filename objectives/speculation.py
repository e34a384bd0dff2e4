"""What speculation brought: output tokens per target step, and how drafts were accepted.

A draft is one sequence's proposal in one target step. Counters speak of drafts; what was delivered differs
a little, because the last step of a request is cut off at its `max_tokens`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from objectives.counters import growth, ratio
from objectives.measurement import Record, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Drafts over one replay, by the engine's counters. None where it does not say."""

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


def speculation(samples: Sequence[Sample]) -> Speculation:
    """Read the counters from the first sample to the last."""
    drafts = growth(samples, lambda sample: sample.drafts_total)
    return Speculation(
        drafts=drafts,
        proposed=growth(samples, lambda sample: sample.draft_tokens_total),
        accepted=growth(samples, lambda sample: sample.accepted_tokens_total),
        accepted_per_position=_per_position(samples, drafts),
    )


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

    Args:
        records: the requests of the replay, failed ones with what they had received.
        counted: the counters over the same replay.
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
