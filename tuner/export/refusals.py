"""Which trials are not exported, the flag that exports each of them all the same, and the mark it leaves."""

from collections.abc import Collection
from enum import StrEnum

from objectives.quality import QualityVerdict
from tuner.mistakes import Mistake
from tuner.records import State, StoredTrial
from tuner.verify.verification import Verification


class ExportError(Mistake):
    """The trial can't be exported, or not there; the message says why and what to do."""


class Mark(StrEnum):
    """What an export does not have that it should; it stands in every file that launches or promises."""

    SIMULATED = "simulated"
    UNVERIFIED = "unverified"
    NOT_HELD = "verification-failed"
    QUALITY_UNCHECKED = "quality-unchecked"
    QUALITY_FAILED = "quality-failed"

    @property
    def flag(self) -> str:
        """The flag of `tuner export` that lets it pass."""
        return _FLAGS[self]

    @property
    def sentence(self) -> str:
        return _SENTENCES[self]


_FLAGS = {
    Mark.SIMULATED: "--allow-simulated",
    Mark.UNVERIFIED: "--allow-unverified",
    Mark.NOT_HELD: "--allow-not-held",
    Mark.QUALITY_UNCHECKED: "--allow-quality unchecked",
    Mark.QUALITY_FAILED: "--allow-quality failed",
}
_SENTENCES = {
    Mark.SIMULATED: "Simulated: these numbers were never measured on an engine.",
    Mark.UNVERIFIED: "Unverified: nobody has measured this config on traffic that the search did not see.",
    Mark.NOT_HELD: "Verification failed: on held-out traffic it did not hold what is promised here.",
    Mark.QUALITY_UNCHECKED: "Quality not checked: nobody knows whether it answers like the reference.",
    Mark.QUALITY_FAILED: "Quality failed: it does not answer like the reference.",
}


def marks_of(
    trial: StoredTrial, quality: QualityVerdict | None, verification: Verification | None
) -> tuple[Mark, ...]:
    """What this trial lacks. Of a simulated one nothing is expected that only an engine could show."""
    simulated = trial.ran.engine == "simulated"
    return (
        *([Mark.SIMULATED] if simulated else []),
        *([Mark.UNVERIFIED] if verification is None and not simulated else []),
        *([Mark.NOT_HELD] if verification is not None and not verification.held else []),
        *([Mark.QUALITY_UNCHECKED] if quality is None and not simulated else []),
        *([Mark.QUALITY_FAILED] if quality is not None and not quality.passed else []),
    )


def check_measured(trial: StoredTrial) -> None:
    """Raise ExportError for a trial without a measurement, which no flag exports."""
    if trial.state is not State.MEASURED or trial.measurement is None:
        raise ExportError(
            f"trial {trial.number} has no measurement to promise ({trial.state}: {trial.reason})"
        )


def check_marks(
    trial: StoredTrial,
    marks: Collection[Mark],
    allowed: Collection[Mark],
    *,
    quality: QualityVerdict | None = None,
    verification: Verification | None = None,
) -> None:
    """Raise ExportError with all that is not allowed, and the flags that would.

    Args:
        quality: the verdict, for its reasons.
        verification: for why it failed.
    """
    refused = [mark for mark in marks if mark not in allowed]
    if not refused:
        return
    told = {
        Mark.SIMULATED: "it was simulated, not measured",
        Mark.UNVERIFIED: f"it was not verified (tuner verify {trial.study} --trial {trial.number} does)",
        Mark.NOT_HELD: f"its verification failed ({verification.why if verification else ''})",
        Mark.QUALITY_UNCHECKED: "its quality was not checked, which is no pass",
        Mark.QUALITY_FAILED: f"its quality failed ({'; '.join(quality.reasons) if quality else ''})",
    }
    why = "; ".join(told[mark] for mark in refused)
    flags = " ".join(mark.flag for mark in refused)
    raise ExportError(f"trial {trial.number} is not exported: {why}. {flags} exports it all the same, marked")
