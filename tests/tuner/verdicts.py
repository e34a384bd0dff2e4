"""Made-up verdicts on quality that the tests of this house share."""

from collections.abc import Iterable

from objectives.measurement import Estimate
from objectives.quality import QualityVerdict
from tuner.quality import Checks
from tuner.records import StoredTrial


def verdict(artefact: str = "ab12", *, passed: bool = True, is_reference: bool = False) -> QualityVerdict:
    reasons = () if passed else ("the reference's words cost 0.0639 nats a token more, and 0.02 is the most",)
    return QualityVerdict(
        artefact=artefact,
        passed=passed,
        nll_increase=Estimate(value=0.0639, low=0.0498, high=0.0765),
        kl=Estimate(value=0.0159, low=0.0125, high=0.02),
        agreement=Estimate(value=0.934, low=0.917, high=0.948),
        alike=Estimate(value=0.286, low=0.222, high=0.337),
        violation=-0.5 if passed else 2.2,
        reasons=reasons,
        is_reference=is_reference,
        prompts=32,
        tokens=1016,
    )


def passed(trials: Iterable[StoredTrial]) -> Checks:
    """Checks by which everything that these trials served has passed."""
    return Checks(verdicts={trial.artefact: verdict(trial.artefact) for trial in trials})
