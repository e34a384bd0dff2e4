"""What `tuner verify` does: find what is promised, run config and control on other traffic, judge, keep.

Whatever a user got wrong leaves here as a `Mistake`; nothing here prints.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from cluster.dispatch.in_process import InProcess
from cluster.node.running_server import NoServer, RunningServer
from cluster.order import FixedLoad, Order
from cluster.traffic.tokenizer import load_encode
from cluster.traffic.workload import Workload
from search_spaces.arguments import Rendered, render, render_control
from search_spaces.load import parse_space
from search_spaces.space import Space
from tuner.ablation.plan import PlannedRun
from tuner.ablation.run import AblationEvent, Recorder, ablate, to_do
from tuner.front import read_view
from tuner.ledger import Ledger
from tuner.loads import measure_of
from tuner.mistakes import Mistake
from tuner.models import local_model, localised
from tuner.quality import read_verdict
from tuner.records import StoredTrial, read_study, read_trials
from tuner.session import load_of
from tuner.studies import study_folder, trial_of
from tuner.usecases import dispatch_for, tracking_uri_of, users_mistakes
from tuner.verify.promised import Promised, promised_of
from tuner.verify.stored import verifications, write_verification
from tuner.verify.traffic import held_out
from tuner.verify.verification import Quality, Source, Verification
from tuner.verify_endpoint import DEFAULT_RATE, judgeable, root_of, slowed
from tuner.verify_folder import read_exported
from tuner.verify_logged import verify_family
from tuner.verify_plan import VerifyPlan, check_begun, place
from tuner.verify_report import verification

DEFAULT_PAIRS = 4

EXPORTS = "exports"
SERVERS = "servers"
"""Under the runs folder: what was run of exported folders, which may lie anywhere and are not written to,
and what was played to servers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAsked:
    """A server that somebody runs."""

    url: str
    may_load: bool
    """The user's word that it may be played traffic."""
    rate: float = DEFAULT_RATE
    """Requests per second, at most."""
    model: str | None = None
    """The name that it serves under; None: the only one there is."""
    key_variable: str | None = None
    """Environment variable that holds its key; None: it asks for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRequest:
    """What `tuner verify` was asked: of a trial or of an exported folder, exactly one of the two."""

    study: str | None = None
    """Of the trial; None: the latest."""
    trial: int | None = None
    folder: Path | None = None
    trace: str | None = None
    """A file of traffic like the study's that it did not search on."""
    pairs: int = DEFAULT_PAIRS
    stress: bool = False
    server: ServerAsked | None = None
    """One that is running, to be held to the promise; None: the config is started."""
    address: str | None = None
    """Of a Ray cluster; None: a Ray of this machine's own."""
    tracking_uri: str | None = None
    runs: Path = Path("runs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """How a verification ended."""

    found: Verification
    folder: Path
    logged: bool | None
    """Whether MLflow has it; None where it is not meant to."""
    tracking_uri: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """What is verified, wherever it came from."""

    promised: Promised
    source: Source
    config: Rendered
    control: Rendered | None
    quality: Quality
    folder: Path
    """Where its verifications lie: the study's, or one of its own."""
    known: tuple[StoredTrial, ...]
    """What was measured of it before, for where a capacity is looked for first."""
    is_control: bool


Show = Callable[[AblationEvent | str], None]


def verify(asked: VerifyRequest, show: Show) -> Verified:
    """Verify what is asked, or go on with that.

    Args:
        show: given every event as it happens, and remarks as strings.
    """
    with users_mistakes():
        if asked.server is not None:
            return _verify_server(asked, asked.server, show)
        if asked.folder is not None:
            subject = _of_folder(asked.folder, asked.runs)
            plan = _planned(subject, asked)
            _run(plan, subject, asked.address, show, _nowhere)
            return Verified(found=_judged(plan, subject), folder=plan.folder, logged=None, tracking_uri=None)
        return _verify_trial(asked, show)


def _verify_trial(asked: VerifyRequest, show: Show) -> Verified:
    folder, number = _named(asked)
    study = read_study(folder)
    uri = asked.tracking_uri or tracking_uri_of(study, asked.runs)
    subject = _of_study(folder, number)
    plan = _planned(subject, asked)
    ledger = Ledger(uri, artifacts=asked.runs / "mlartifacts", say=show, runs=str(asked.runs))

    def record(finished: Sequence[StoredTrial], *, over: bool) -> bool:
        return ledger.write_family(verify_family(plan, study, finished, None))

    _run(plan, subject, asked.address, show, record)
    found = _judged(plan, subject)
    logged = ledger.write_family(verify_family(plan, study, read_trials(plan.folder), found))
    # The study's own run says what was verified. One that is over stays as it ended.
    logged = ledger.sync(folder, read_view(folder), "KILLED") and logged
    return Verified(found=found, folder=plan.folder, logged=logged, tracking_uri=uri)


def _verify_server(asked: VerifyRequest, server: ServerAsked, show: Show) -> Verified:
    """Hold a server that is running to the promise. It does not count as the config's own verification."""
    url = root_of(server.url)
    if not server.may_load:
        raise Mistake(f"{url} is in use for all that is known: --may-load says that it may be played traffic")
    subject = _of_study(*_named(asked)) if asked.folder is None else _of_folder(asked.folder, asked.runs)
    if subject.promised.engine == "simulated":
        raise Mistake(f"trial {subject.promised.trial} was simulated: nothing is promised of a real server")
    key = None if server.key_variable is None else os.environ.get(server.key_variable)
    if server.key_variable is not None and not key:
        raise Mistake(f"--key-variable {server.key_variable}: no such variable in the environment, or empty")
    if asked.stress:
        raise Mistake("--stress bursts, and a server in use is not put under that")
    running = RunningServer(url=url, key=key, model=server.model)
    try:
        served = running.check()
    except NoServer as error:
        raise Mistake(str(error)) from error
    promised, left_out = judgeable(subject.promised)
    name = re.sub(r"[^\w.-]+", "-", f"{urlsplit(url).netloc}-{promised.study}-{promised.trial:04d}")
    subject = replace(subject, promised=promised, source="endpoint", control=None, known=())
    subject = replace(subject, folder=asked.runs / SERVERS / name)
    plan = _planned(subject, asked, server.rate)
    remark = f"found at {url} as {served}: that it serves this config is its operator's word"
    plan = replace(plan, not_judged=left_out, remarks=(remark, *plan.remarks))
    _run(plan, subject, None, show, _nowhere, running)
    return Verified(found=_judged(plan, subject), folder=plan.folder, logged=None, tracking_uri=None)


def _nowhere(finished: Sequence[StoredTrial], *, over: bool) -> None:
    """What is no study's own is not logged."""


def _judged(plan: VerifyPlan, subject: _Subject) -> Verification:
    """What the runs show, stored. Raises Mistake where nothing was measured and the config not to blame."""
    finished = read_trials(plan.folder)
    mine = [trial for trial in finished if not plan.runs[trial.number].cell]
    if mine and all(trial.cause is not None and not trial.cause.blames_config for trial in mine):
        raise Mistake(
            f"no run of the config was measured ({mine[-1].cause}: {mine[-1].reason}), so nothing is known "
            f"of its promises; move {plan.folder} away to verify anew"
        )
    found = verification(plan, finished, subject.quality, datetime.now(UTC))
    write_verification(plan.folder, found)
    return found


def _named(asked: VerifyRequest) -> tuple[Path, int]:
    """The study's folder, and the number of the config's first trial."""
    if asked.trial is None:
        raise Mistake("--trial is missing: the trial to verify; or name an exported folder")
    folder = study_folder(asked.study, asked.runs)
    _, trial = trial_of(folder, asked.trial)
    return folder, trial.number if trial.repeats is None else trial.repeats


def _of_folder(folder: Path, runs: Path) -> _Subject:
    """What an exported folder starts. Raises Mistake where a hand has changed it."""
    exported = read_exported(folder)
    said = exported.promised
    return _Subject(
        promised=said,
        source="folder",
        config=exported.config,
        control=exported.control,
        quality=exported.quality,
        folder=runs / EXPORTS / f"{said.study}-{said.trial:04d}-{exported.digest[:8]}",
        known=(),
        is_control=False,
    )


def _of_study(folder: Path, number: int) -> _Subject:
    """The config whose first trial has this number. Raises Mistake where it has nothing to promise."""
    view = read_view(folder)
    standing = view.promise(number).standing
    study = view.study
    space = parse_space(study.space_text, str(study.options.get("space", "space.yaml")))
    space = replace(space, measure=measure_of(study))
    control = next(iter(view.control), None)
    return _Subject(
        promised=promised_of(study, space, standing, control),
        source="study",
        config=_rendered(space, standing),
        control=render_control(space),
        quality=_quality(folder, standing, study.engine),
        folder=folder,
        known=(standing,),
        is_control=standing.is_control,
    )


def _rendered(space: Space, trial: StoredTrial) -> Rendered:
    return render_control(space) if trial.config is None else render(space, space.config(trial.config))


def _quality(folder: Path, standing: StoredTrial, engine: str) -> Quality:
    verdict = read_verdict(folder, standing)
    if verdict is None:
        simulated = "; nothing answers in a simulation" if engine == "simulated" else ""
        return Quality(passed=None, words=f"not checked{simulated}")
    if verdict.passed:
        return Quality(passed=True, words="passed in the study")
    return Quality(passed=False, words=f"failed in the study: {'; '.join(verdict.reasons)}")


def _planned(subject: _Subject, asked: VerifyRequest, rate: float | None = None) -> VerifyPlan:
    """What is to run; `rate`: requests per second, at most, where a server in use is played."""
    promised = subject.promised
    model = promised.traffic.model
    folder, draw = place(subject.folder, promised.trial)
    plan = VerifyPlan(
        promised=promised,
        folder=folder,
        source=subject.source,
        traffic=held_out(
            promised,
            asked.trace,
            pairs=asked.pairs,
            draw=draw,
            tokenizer=model if promised.engine == "simulated" else local_model(model),
        ),
        draw=draw,
        trace=asked.trace,
        with_control=subject.control is not None,
        stress=asked.stress,
        is_control_itself=subject.is_control,
        remarks=tuple(_broken_before(subject)),
    )
    if rate is not None:
        plan = slowed(plan, rate)
    check_begun(plan)
    return plan


def _broken_before(subject: _Subject) -> Iterator[str]:
    """What was verified until it holds is not verified."""
    before = [one for one in verifications(subject.folder) if one.trial == subject.promised.trial]
    broken = sum(not one.held for one in before)
    if broken:
        yield f"{broken} of {len(before)} earlier verifications of this config did not hold"


def _run(
    plan: VerifyPlan,
    subject: _Subject,
    address: str | None,
    show: Show,
    record: Recorder,
    server: RunningServer | None = None,
) -> None:
    """Run what is left of it; `server`: one that is there already."""
    left = len(to_do(plan, read_trials(plan.folder)))
    show(
        f"verifying trial {plan.promised.trial} of {plan.promised.study}: {left} runs left, "
        f"{plan.traffic.words}"
    )
    if not left:
        return
    with dispatch_for(plan.promised.engine, address) if server is None else InProcess(server) as dispatch:
        if dispatch.capacity(_order(plan, subject, plan.runs[0], None)) == 0:
            needs = plan.promised.resources
            raise Mistake(
                f"no node here has {subject.config.gpus} GPUs and {needs.cpus} CPUs for a run; give the "
                "cluster that the study was measured on with --ray"
            )
        if plan.promised.engine == "vllm":
            load_encode(plan.workload(0).tokenizer)

        def order(run: PlannedRun) -> Order:
            # In a cluster all runs go where the first one went: nodes differ.
            ran = [trial.ran.node for trial in read_trials(plan.folder)] if address else []
            return _order(plan, subject, run, next(filter(None, ran), None))

        for event in ablate(plan, subject.known, order, dispatch, record):
            show(event)


def _order(plan: VerifyPlan, subject: _Subject, run: PlannedRun, node: str | None) -> Order:
    rendered = subject.control if run.cell else subject.config
    assert rendered is not None
    order = _order_of(plan.promised, rendered, plan.workload(run.block), run.number, node)
    # Under stress nothing is looked for: how the reference load is borne is what it shows.
    return order if run.block < plan.pairs else replace(order, load=FixedLoad())


def _order_of(
    promised: Promised, rendered: Rendered, workload: Workload, number: int, node: str | None
) -> Order:
    if promised.engine != "simulated":
        rendered = localised(rendered)
    needs = promised.resources
    return Order(
        study=promised.study,
        number=number,
        model=rendered.model,
        arguments=rendered.arguments,
        environment=rendered.environment,
        workload=workload,
        slo=promised.slo,
        load=load_of(promised.measure),
        gpus=rendered.gpus,
        cpus=needs.cpus,
        accelerator=needs.accelerator if rendered.gpus else None,
        node=node,
        percentiles=promised.goal.percentiles,
        gpu_hour_price=needs.gpu_hour_price,
        trust_remote_code=needs.trust_remote_code,
    )
