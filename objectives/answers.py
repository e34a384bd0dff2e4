"""What an engine answered when it was asked for the sake of quality: tokens, and how likely it found them."""

from dataclasses import dataclass

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One token of a text, with what the engine thought of it and what else it would have said there."""

    token: int
    logprob: float
    """Natural logarithm of its probability after all before it."""
    top: tuple[tuple[int, float], ...]
    """The likeliest tokens with theirs, the likeliest first; a few, not all."""

    @property
    def first(self) -> int:
        """The token that it finds likeliest."""
        return self.top[0][0]

    def regret(self, token: int) -> float:
        """How much less likely another token is here than the likeliest, nats; of one that is not among the
        top ones, at least that."""
        known = dict(self.top) | {self.token: self.logprob}
        return self.top[0][1] - known.get(token, self.top[-1][1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """All that was asked of one prompt."""

    greedy: Tokens
    """Its greedy continuation, caches empty at the beginning."""
    own: tuple[Scored, ...]
    """Of that, token by token, as they were generated."""
    again: Tokens
    """The same asked once more, in another order and with the caches as they were left."""
    apart: Tokens | None = None
    """The same asked in another order with empty caches; asked of a reference only, to see its own noise."""
    forced: tuple[Scored, ...]
    """The reference's continuation, read by this engine as part of the prompt; its own where it is the
    reference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """An engine's answers to a probe, in the order of its prompts."""

    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered:
    """A probe that failed."""

    reason: str
    """One line."""
