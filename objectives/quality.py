"""Whether a config still answers like the reference: answers of both, and a verdict. Pure.

docs/quality.md says what is asked, what each number means and when a limit is passed.
"""

from dataclasses import dataclass

from objectives.measurement import Estimate


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
    reasons: tuple[str, ...] = ()
    """Why it did not pass, one sentence each; empty where it did."""
    doubts: tuple[str, ...] = ()
    """Limits that an interval reaches across, either way, one sentence each."""
    defect: str | None = None
    """What settings that must change no answer changed: a fault of the engine. None: nothing was seen."""
    is_reference: bool = False
    """Whether its own answers are the reference."""
