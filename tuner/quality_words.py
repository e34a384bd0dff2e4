"""What is known of a trial's quality, in words and as data."""

from objectives.measurement import Estimate
from objectives.quality import QualityVerdict
from search_spaces.values import Json
from tuner.quality import Checks, verdict_json
from tuner.records import State, StoredTrial, StudyFile

_FULL = (None, "auto", "bfloat16", "float16", "float32", "half", "float")
"""What an engine says of formats that reduce nothing."""

PASSED, FAILED, UNCHECKED, SIMULATED = "passed", "failed", "not checked", "simulated, not checked"


def quality_state(study: StudyFile, trial: StoredTrial, checks: Checks) -> str:
    """One of the four words above."""
    if study.engine == "simulated":
        return SIMULATED
    verdict = checks.verdicts.get(trial.artefact)
    if verdict is None:
        return UNCHECKED
    return PASSED if verdict.passed else FAILED


def quality_text(study: StudyFile, trial: StoredTrial, checks: Checks) -> str | None:
    """The verdict with its numbers, in one line; None for a trial that was not measured."""
    if trial.state is State.FAILED:
        return None
    state = quality_state(study, trial, checks)
    if state == SIMULATED:
        return f"quality {SIMULATED}"
    verdict = checks.verdicts.get(trial.artefact)
    if verdict is None:
        return f"quality {UNCHECKED}: {unchecked_reason(trial, checks)}"
    if verdict.is_reference and verdict.passed:
        return f"quality: the reference{_itself_reduced(trial)}"
    if not verdict.passed:
        return f"quality {FAILED}: {'; '.join(verdict.reasons)} ({numbers_text(verdict)})"
    doubts = f"; {'; '.join(verdict.doubts)}" if verdict.doubts else ""
    return f"quality {PASSED}: {numbers_text(verdict)}{doubts}"


def _itself_reduced(trial: StoredTrial) -> str:
    """What of a reference is not full precision, as far as its engine told: verdicts do not see its cost."""
    told = {
        "quantization": trial.ran.effective.get("quantization"),
        "kv_cache_dtype": trial.ran.effective.get("kv_cache_dtype"),
    }
    reduced = [f"{name}={value}" for name, value in told.items() if value not in _FULL]
    return f", itself {' and '.join(reduced)}: what that costs is not seen" if reduced else ""


def unchecked_reason(trial: StoredTrial, checks: Checks) -> str:
    """Why a trial's artefact has no verdict."""
    told = checks.unchecked.get(trial.artefact)
    if told is not None:
        return told
    if checks.reference is None:
        return "there is no reference to compare it with"
    return "it was not asked"


def numbers_text(verdict: QualityVerdict) -> str:
    """`NLL +0.0639 (0.0498 to 0.0765), KL 0.0159 (…) nats a token, agreement 93.4% (91.7% to 94.8%)`."""
    agreement = verdict.agreement
    return (
        f"NLL {verdict.nll_increase.value:+.4f}{_ends(verdict.nll_increase)}, "
        f"KL {verdict.kl.value:.4f}{_ends(verdict.kl)} nats a token, "
        f"agreement {agreement.value:.1%}{_ends(agreement, '.1%')}"
    )


def quality_json(study: StudyFile, trial: StoredTrial, checks: Checks) -> dict[str, Json]:
    """The same as data."""
    verdict = checks.verdicts.get(trial.artefact)
    return {
        "state": quality_state(study, trial, checks),
        "artefact": trial.artefact,
        "text": quality_text(study, trial, checks),
        "verdict": None if verdict is None else verdict_json(verdict),
    }


def _ends(estimate: Estimate, form: str = ".4f") -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    return f" ({estimate.low:{form}} to {estimate.high:{form}})"
