"""Whether a config still answers like the reference: answers of both, and a verdict. Pure.

docs/quality.md says what is asked, what each number means and when a limit is passed.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtrc

from objectives.answers import Answer, Answers, Scored, Tokens
from objectives.bootstrap import Array
from objectives.measurement import Estimate
from objectives.statistics import ratio_estimate, wilson
from search_spaces.sections import Quality

NEAR_TIE = 0.5
"""Nats: a token that is no less likely than this beside the likeliest one may be chosen for rounding alone.
bfloat16 tells logits between 16 and 32 apart by 0.125, and every layer before them rounds as well."""

DEFECT_RISK = 0.01
"""How often an engine without fault is called defective at the most, a check."""

_SAME = 1e-6
"""Logprobs closer than this are equal: the engine sends them as decimal text."""

_LEAST = 1e-12
"""Least probability of what is beside the returned tokens; 1 less their sum may be rounded below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityVerdict:
    """How one artefact answers, beside the reference. Estimates have 95 % intervals over prompts."""

    artefact: str
    """Its fingerprint (`search_spaces.artefact`)."""
    passed: bool
    nll_increase: Estimate
    """Nats a token: how much less likely the reference's continuations are to it than to the reference."""
    kl: Estimate
    """Nats a token: divergence of its next-token distribution from the reference's, a lower bound."""
    agreement: Estimate
    """Share of the reference's greedy tokens that are its own most likely ones after the same text."""
    alike: Estimate
    """Share of the reference's greedy continuations that it generates itself, up to where they part."""
    violation: float
    """By how much the worst missed limit is missed, as a share of what it leaves; at most 0 passes."""
    reasons: tuple[str, ...] = ()
    """Why it did not pass, one sentence each; empty where it did."""
    doubts: tuple[str, ...] = ()
    """Limits that an interval reaches across, one sentence each: more prompts might say otherwise."""
    defect: str | None = None
    """What settings that must change no answer changed: a fault of the engine. None: nothing was seen."""
    is_reference: bool = False
    """Whether its own answers are the reference."""
    prompts: int
    tokens: int
    """Of the reference's continuations, together."""


def judge(
    artefact: str,
    answers: Answers,
    reference: Answers,
    limits: Quality,
    *,
    beside: Answers | None,
    is_reference: bool = False,
) -> QualityVerdict:
    """The verdict on one artefact's answers.

    A limit is passed where the estimate itself is within it; `doubts` says where the interval is not.

    Args:
        artefact: its fingerprint.
        answers: what it answered to the prompts of the reference.
        reference: what the reference answered.
        limits: what is asked of it.
        beside: answers of an artefact that differs in nothing that may change one; None: none were given.
        is_reference: whether `answers` are the reference's own.

    Raises:
        ValueError: the two did not answer the same prompts.
    """
    if len(answers.answers) != len(reference.answers):
        raise ValueError(f"{len(answers.answers)} answers beside {len(reference.answers)} of the reference")
    pairs = list(zip(reference.answers, answers.answers, strict=True))
    told = [_Reading.of(mine.forced, own.forced) for mine, own in pairs]
    tokens = np.array([float(reading.tokens) for reading in told])
    nll_increase = ratio_estimate(np.array([reading.nll for reading in told]), tokens)
    kl = ratio_estimate(np.array([reading.kl for reading in told]), tokens)
    agreement = _share([reading.agreed for reading in told], tokens)
    alike = _share(
        [min(_common(mine.greedy, own.greedy), len(mine.greedy)) for mine, own in pairs],
        np.array([float(len(mine.greedy)) for mine, _ in pairs]),
    )
    defect = _defect(answers.answers, reference.answers, None if beside is None else beside.answers)
    checks = list(_checks(nll_increase, kl, agreement, limits))
    reasons = tuple(check.reason for check in checks if check.excess > 0)
    return QualityVerdict(
        artefact=artefact,
        passed=not reasons and defect is None,
        nll_increase=nll_increase,
        kl=kl,
        agreement=agreement,
        alike=alike,
        violation=max([check.excess for check in checks] + ([] if defect is None else [1.0])),
        reasons=(*reasons, *(() if defect is None else (defect,))),
        doubts=tuple(check.doubt for check in checks if check.doubt is not None),
        defect=defect,
        is_reference=is_reference,
        prompts=len(pairs),
        tokens=int(tokens.sum()),
    )


def kl_of_tops(reference: Scored, other: Scored) -> float:
    """Divergence of the other's next-token distribution from the reference's, nats, as far as both tell.

    Tokens that both returned count one by one, all others as one: merging outcomes can only lower a
    divergence, so this is a lower bound of it, and 0 for equal answers.
    Source: the log sum inequality; T. Cover, J. Thomas, "Elements of Information Theory", section 2.7.
    """
    mine = dict(reference.top) | {reference.token: reference.logprob}
    theirs = dict(other.top) | {other.token: other.logprob}
    both = sorted(mine.keys() & theirs.keys())
    p = [math.exp(mine[token]) for token in both]
    q = [math.exp(theirs[token]) for token in both]
    rest, their_rest = max(1 - sum(p), _LEAST), max(1 - sum(q), _LEAST)
    one_by_one = sum(share * (mine[token] - theirs[token]) for share, token in zip(p, both, strict=True))
    return max(one_by_one + rest * math.log(rest / their_rest), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """Sums over one continuation that both read."""

    tokens: int
    nll: float
    kl: float
    agreed: int

    @classmethod
    def of(cls, reference: Sequence[Scored], other: Sequence[Scored]) -> "_Reading":
        both = list(zip(reference, other, strict=True))
        return cls(
            tokens=len(both),
            nll=sum(mine.logprob - theirs.logprob for mine, theirs in both),
            kl=sum(kl_of_tops(mine, theirs) for mine, theirs in both),
            agreed=sum(theirs.logprob >= theirs.top[0][1] - _SAME for _, theirs in both),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Check:
    """One limit."""

    excess: float
    reason: str
    doubt: str | None


def _checks(nll: Estimate, kl: Estimate, agreement: Estimate, limits: Quality) -> Iterator[_Check]:
    yield _most("the reference's words cost", nll, limits.max_nll_increase, "nats a token more")
    if limits.max_kl is not None:
        yield _most("next tokens diverge by", kl, limits.max_kl, "nats a token")
    least, room = limits.min_agreement, 1 - limits.min_agreement
    yield _Check(
        excess=(least - agreement.value) / (room or 1.0),
        reason=f"it agrees on {agreement.value:.1%} of the reference's tokens, and {least:.1%} is the least",
        doubt=_doubt("agreement", agreement, least),
    )


def _most(what: str, found: Estimate, limit: float, unit: str) -> _Check:
    return _Check(
        excess=(found.value - limit) / (limit or 1.0),
        reason=f"{what} {found.value:.4f} {unit}, and {limit:g} is the most",
        doubt=_doubt(what, found, limit),
    )


def _doubt(what: str, found: Estimate, limit: float) -> str | None:
    if found.low is None or found.high is None or not found.low < limit < found.high:
        return None
    return f"{what}: the limit {limit:g} lies within its interval, {found.low:.4f} to {found.high:.4f}"


def _share(parts: Sequence[int], wholes: Array) -> Estimate:
    """A share of tokens. Each end is the wider of the bootstrap's over prompts and Wilson's over tokens:
    where all agree, a bootstrap has no width."""
    estimate = ratio_estimate(np.array(parts, dtype=np.float64), wholes)
    if estimate.low is None or estimate.high is None:
        return estimate
    low, high = wilson(min(estimate.value, 1.0), float(wholes.sum()))
    return Estimate(value=estimate.value, low=min(low, estimate.low), high=max(high, estimate.high))


def _common(a: Tokens, b: Tokens) -> int:
    """How many tokens two continuations begin with alike."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _parted(answer: Answer, other: Tokens) -> bool:
    """Whether another continuation leaves an answer's at a token that is clearly worse there, no near tie."""
    at = _common(answer.greedy, other)
    if at == len(answer.greedy) == len(other):
        return False
    if at >= len(answer.own) or at >= len(other):
        return True  # one of them ended where the other went on
    return answer.own[at].regret(other[at]) > NEAR_TIE


def _defect(
    answers: Sequence[Answer], reference: Sequence[Answer], beside: Sequence[Answer] | None
) -> str | None:
    """What should have changed nothing and did, beyond what the reference does against itself."""
    noise = [mine.apart is not None and _parted(mine, mine.apart) for mine in reference]
    asked_again = [_parted(own, own.again) for own in answers]
    found = []
    if _beyond(asked_again, noise):
        found.append(
            f"asked again with its caches kept, it continued {sum(asked_again)} of {len(answers)} prompts "
            "clearly otherwise"
        )
    if beside is not None:
        parted = [_parted(base, own.greedy) for base, own in zip(beside, answers, strict=True)]
        if _beyond(parted, noise):
            found.append(
                f"its lossless settings changed {sum(parted)} of {len(answers)} continuations clearly"
            )
    if not found:
        return None
    return (
        f"{' and '.join(found)} (the reference against itself: {sum(noise)}): a defect of the engine with "
        "these settings"
    )


def _beyond(parted: Sequence[bool], noise: Sequence[bool]) -> bool:
    """Whether more prompts parted than by chance, if both were as noisy as each other.

    The sign test of prompts where only one of the two did (Q. McNemar, Psychometrika 12, 1947), one-sided,
    each of a check's two questions at half its risk.
    """
    worse = sum(now and not before for now, before in zip(parted, noise, strict=True))
    better = sum(before and not now for now, before in zip(parted, noise, strict=True))
    if not worse:
        return False
    chance = float(bdtrc(worse - 1, worse + better, 0.5))
    return chance < DEFECT_RISK / 2
