"""What stands beside a config's numbers: whether it still answers as the reference does, and whether its
promise held on other traffic."""

from objectives.quality import QualityVerdict
from tuner.report.shapes import CheckReport
from tuner.titles import interval
from tuner.verify.verification import Verification


def quality_check(verdict: QualityVerdict | None, why: str | None = None) -> CheckReport:
    """The verdict on the config's artefact; `why` there is none, if anybody knows."""
    if verdict is None:
        return CheckReport(
            state="not checked", words=why or "its answers were not compared with the reference's"
        )
    if verdict.is_reference:
        return CheckReport(state="passed", words="it is the reference itself")
    measured = f"NLL {interval(verdict.nll_increase)} nats a token above the reference's"
    if verdict.passed:
        return CheckReport(state="passed", words="; ".join([measured, *verdict.doubts]))
    return CheckReport(state="failed", words="; ".join([*verdict.reasons, measured]))


def verified_check(found: Verification | None) -> CheckReport:
    """The config's latest verification."""
    if found is None:
        return CheckReport(state="not checked", words="not verified on held-out traffic")
    times = f"{found.pairs} run{'' if found.pairs == 1 else 's'} on {found.traffic.words}"
    words = f"{found.why.rstrip('.')} ({times}, {found.finished:%Y-%m-%d})"
    return CheckReport(state="passed" if found.held else "failed", words=words)
