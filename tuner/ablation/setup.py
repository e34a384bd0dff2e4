"""On what, with what and when an ablation was measured: what a reader asks before believing it. Pure."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from cluster.order import Ran
from tuner.ablation.plan import Cells
from tuner.ablation.report import SetupReport
from tuner.loads import sessions
from tuner.records import StoredTrial, StudyFile
from tuner.titles import number


def setup(plan: Cells, finished: Sequence[StoredTrial]) -> SetupReport:
    """The setup of the runs that there are."""
    ran = [trial.ran for trial in finished]
    return SetupReport(
        model=plan.space.model,
        engine=_distinct(_engine(one) for one in ran),
        hardware=_distinct(one.hardware or "" for one in ran),
        nodes=_distinct(one.node or "" for one in ran),
        gpus=plan.space.resources.gpus,
        traffic=tuple(_traffic(plan.study)),
        slo=_slo(plan.study),
        begun=_minute(min((trial.started for trial in finished), default=None)),
        ended=_minute(max((trial.finished for trial in finished), default=None)),
    )


def _distinct(found: Iterator[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one for one in found if one))


def _engine(ran: Ran) -> str:
    return " ".join(word for word in (ran.engine, ran.version) if word)


def _traffic(study: StudyFile) -> Iterator[str]:
    yield f"{study.trace} ({study.trace_digest[:12]})"
    for name, words in (
        ("requests", "{} requests"),
        ("input_mean", "{} tokens in on average"),
        ("output_mean", "{} tokens out on average"),
        ("rate", "recorded at {} requests/s"),
    ):
        value = study.trace_figures.get(name)
        if isinstance(value, int | float):
            yield words.format(number(value))
    share = study.trace_figures.get("prefix_share")
    if isinstance(share, int | float):
        yield f"{share:.0%} of prompt tokens shared"
    yield f"sessions {sessions(study)}"


def _slo(study: StudyFile) -> str | None:
    limits = [
        f"{name.partition('_')[0].upper()} at most {limit:g} ms" for name, limit in study.slo.limits().items()
    ]
    return f"{', '.join(limits)}, for {study.slo.attainment:.0%} of requests" if limits else None


def _minute(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
