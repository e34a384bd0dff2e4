"""What a user can ask for. Front ends turn words or HTTP into one of these calls and print what comes back.

Whatever a user got wrong leaves here as a `Mistake`; nothing here prints.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from cluster.dispatch.dispatch import Dispatch, DispatchError, Tell
from cluster.dispatch.in_process import InProcess
from cluster.node.secrecy import HIDDEN
from cluster.node.small_model import ModelUnavailable, prepare_small_model
from cluster.phase import Phase
from cluster.traffic.tokenizer import TokenizerError, load_encode
from cluster.traffic.trace import TraceError
from cluster.traffic.workload import Sessions, Workload
from objectives.goal import Goal, GoalError
from search_spaces import describe, load
from search_spaces.faults import SpaceError
from search_spaces.space import Config, Space
from search_spaces.values import Json
from tuner.ablation.kinds import ablation
from tuner.ablation.plan import Asked, PlannedRun
from tuner.ablation.report import Report
from tuner.ablation.run import AblationEvent, cell_order, expected_s, to_do
from tuner.ablation.run import ablate as run_ablation
from tuner.ablation.surface.plan import AskedSurface
from tuner.ablation.surface.report import SurfaceReport
from tuner.ablation.traffic import same_traffic
from tuner.events import UnderWay
from tuner.explain import Explanation
from tuner.explain import explain as explain_trial
from tuner.front import FrontView, read_view
from tuner.ledger import Ledger, study_pages
from tuner.loads import measured_text
from tuner.mistakes import Mistake
from tuner.models import local_model
from tuner.preflight import (
    check_arguments,
    check_objectives,
    check_quality_objectives,
    check_room,
    check_sessions,
    check_verdict,
    goal_of,
)
from tuner.quality_prompts import quality_prompts
from tuner.records import RecordError, StoredTrial, StudyFile, read_study, read_trials
from tuner.sampler import Guidance, Search, sampler_named
from tuner.sampler.prior import predictor
from tuner.session import (
    DEFAULT_TRIALS,
    SearchRequest,
    first_of,
    measured_so,
    new_folder,
    new_study,
    orders,
    resumed,
    trace_words,
)
from tuner.studies import study_folder, trial_of
from tuner.study import Done, Event, StudyPlan
from tuner.study import search as run_search
from tuner.traffic import study_trace
from tuner.ui import serve_ui
from tuner.warm import first_configs


@contextmanager
def users_mistakes() -> Iterator[None]:
    """What the houses below raise for bad input, as a Mistake."""
    try:
        yield
    except (
        DispatchError,
        GoalError,
        ModelUnavailable,
        RecordError,
        SpaceError,
        TokenizerError,
        TraceError,
    ) as error:
        raise Mistake(str(error)) from error


def load_space(reference: str) -> Space:
    """A space by file or shipped name."""
    with users_mistakes():
        space = load.load_space(reference)
        goal_of(space)  # its objectives are names like any other
    return space


def read_space(text: str, source: str) -> Space:
    """A space by its text; `source` is what its faults are told of."""
    with users_mistakes():
        space = load.read_space(text, source)
        goal_of(space)
    return space


def space_json(space: Space) -> dict[str, Json]:
    """The space as data."""
    return describe.to_json(space)


def space_lines(space: Space) -> list[str]:
    """The space as a person reads it."""
    return list(describe.lines(space))


def front(study: str | None, runs: Path) -> FrontView:
    """A study's front; the latest study's where none is named."""
    with users_mistakes():
        return read_view(study_folder(study, runs))


def explain(study: str | None, number: int, runs: Path) -> Explanation:
    """Where a trial's time goes; the latest study's where none is named."""
    with users_mistakes():
        return explain_trial(study_folder(study, runs), number)


def prepare(runs: Path, say: Callable[[str], None]) -> None:
    """Make the small model, its draft and its int8 checkpoint under the runs folder."""
    with users_mistakes():
        made = prepare_small_model(runs / "models", say)
    say(f"ready: {made.model}, {made.draft.name}, {made.int8.name}")


def ui(runs: Path, tracking_uri: str | None, *, host: str, port: int, say: Callable[[str], None]) -> None:
    """Serve MLflow's pages on the studies until interrupted."""

    def latest(uri: str) -> Mapping[str, str]:
        try:
            study = read_study(study_folder(None, runs))
        except Mistake:  # none yet, or one that cannot be read: MLflow has pages all the same
            return {}
        return study_pages(uri, study)

    serve_ui(tracking_uri or default_tracking_uri(runs), host=host, port=port, say=say, pages=latest)


def default_tracking_uri(runs: Path) -> str:
    """SQLite under the runs folder."""
    return f"sqlite:///{runs.resolve() / 'mlflow.db'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """How a search ended."""

    view: FrontView
    logged: bool
    """Whether MLflow has everything."""
    tracking_uri: str
    exhausted: str | None
    """Why it ended before the total: there was nothing new to try; None if there was."""
    why: str
    """Why it ended, and how sure the recommendation is."""


def search(asked: SearchRequest, show: Callable[[Event | str], None]) -> Searched:
    """Search a space, or go on with a study; what came of it.

    Args:
        show: given every event as it happens, and remarks as strings.
    """
    with users_mistakes():
        before = None
        if asked.resume:
            asked, before, space = resumed(asked)
            folder = asked.runs / before.name
        elif asked.space is not None:
            space = measured_so(load.load_space(asked.space), asked.measure)
            folder = new_folder(asked, space)
        else:
            raise Mistake("--space is missing; only a study that is resumed has its own")
        if asked.speed is not None and not math.isfinite(asked.speed):
            raise Mistake(f"--speed {asked.speed} is no speed")
        goal = Goal.of(before.objectives) if before else goal_of(space)
        trace, origin = study_trace(space, asked.trace)
        if before and before.trace_digest != trace.digest:
            raise Mistake(
                f"study {before.name} replays another trace ({before.trace_digest[:12]}, not "
                f"{trace.digest[:12]} of {origin}); give the new search another --study"
            )
        workload = Workload(
            trace=trace,
            speed=asked.speed or space.traffic.speed,
            sessions=Sessions(asked.sessions or space.traffic.sessions),
            seed=space.traffic.seed,
            tokenizer=local_model(space.model) if asked.engine != "simulated" else space.model,
        )
        first = () if before else warm_configs(asked, space, show)
        study = before or new_study(folder.name, asked, space, goal, workload, origin, first)
        check_verdict(space, study.slo, trace)
        check_sessions(space, workload.sessions)
        check_objectives(space, goal, trace)
        check_quality_objectives(space, goal, study.engine)
        order = orders(study, space, workload, simulated=study.engine == "simulated")
        plan = StudyPlan(
            folder=folder,
            study=study,
            space=space,
            goal=goal,
            total=asked.trials or space.budget.trials or DEFAULT_TRIALS,
            stop_when_stable=asked.stop_when_stable,
            order=order,
        )
        recipe = sampler_named(study.sampler)

        def tell(number: int, node: str | None, phase: Phase) -> None:
            show(UnderWay(number=number, node=node, phase=phase))

        with dispatch_for(study.engine, asked.address, tell) as dispatch:
            check_room(order(0, None), dispatch, space)
            if study.engine == "vllm":
                # A tokenizer that is missing is missed before a trial is.
                plan = replace(plan, prompts=quality_prompts(space, trace, load_encode(workload.tokenizer)))
                show("checking the space's arguments with the installed vLLM")
            check_arguments(order(0, None), dispatch, space)
            show(
                f"study {study.name}: {plan.total} trials, {trace_words(trace)}, "
                f"measuring {measured_text(study)}"
            )
            sampler = Search.open(
                space=space,
                goal=goal,
                study=study.name,
                storage=asked.storage or _default_storage(asked.runs),
                recipe=recipe,
                seed=study.seed,
                guidance=Guidance(
                    predict=predictor(space, workload, study.slo), first=first_of(study, space)
                ),
            )
            tracking_uri = asked.tracking_uri or default_tracking_uri(asked.runs)
            ledger = Ledger(
                tracking_uri, artifacts=asked.runs / "mlartifacts", say=show, runs=str(asked.runs)
            )
            done: Done | None = None
            for event in run_search(plan, dispatch, sampler, ledger):
                show(event)
                done = event if isinstance(event, Done) else done
    assert done is not None  # the generator's last event
    return Searched(
        view=done.view,
        logged=done.logged,
        tracking_uri=tracking_uri,
        exhausted=done.exhausted,
        why=done.why,
    )


def warm_configs(asked: SearchRequest, space: Space, show: Callable[[str], None]) -> tuple[Config, ...]:
    """What a new study tries first. Raises Mistake where the earlier one has nothing for this space."""
    if asked.warm_from is None:
        return ()
    earlier = read_view(study_folder(asked.warm_from, asked.runs))
    first = first_configs(earlier, space)
    if not first:
        raise Mistake(
            f"--warm-from {asked.warm_from}: nothing that it measured is a config of {space.source}; "
            "leave it out"
        )
    show(f"beginning with {len(first)} configs that were best in study {asked.warm_from}")
    return first


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationRequest:
    """What `tuner ablate` was asked."""

    study: str | None
    ablation: Asked | AskedSurface
    address: str | None = None
    """Of a Ray cluster; None: a Ray of this machine's own."""
    tracking_uri: str | None = None
    runs: Path = Path("runs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablated:
    """How an ablation ended."""

    report: Report | SurfaceReport
    folder: Path
    logged: bool
    """Whether MLflow has everything."""
    tracking_uri: str


def ablate(
    asked: AblationRequest, show: Callable[[AblationEvent | str], None], agreed: Callable[[], bool]
) -> Ablated | None:
    """Ablate a trial, or go on with that; what it shows. None where it was not agreed to.

    Args:
        show: given every event as it happens, and remarks as strings.
        agreed: asked once it was shown what will run and for how long, if anything will.
    """
    with users_mistakes():
        folder = study_folder(asked.study, asked.runs)
        study, _ = trial_of(folder, asked.ablation.trial)
        trials = read_trials(folder)
        space, workload = same_traffic(study)
        whole = ablation(asked.ablation, study, space, trials, folder, workload.trace, asked.runs)
        made = whole.plan
        tracking_uri = asked.tracking_uri or tracking_uri_of(study, asked.runs)
        left = to_do(made, read_trials(made.folder))
        for line in whole.plan_lines(left=len(left), each_s=expected_s(trials)):
            show(line)
        if left and not agreed():
            return None
        ledger = Ledger(tracking_uri, artifacts=asked.runs / "mlartifacts", say=show, runs=str(asked.runs))
        base = orders(study, space, workload, simulated=study.engine == "simulated")(0, None)

        def record(finished: Sequence[StoredTrial], *, over: bool) -> bool:
            return ledger.write_family(whole.family(finished, drawn=over))

        if left:
            with dispatch_for(study.engine, asked.address) as dispatch:
                for cell in made.cells:
                    check_room(
                        cell_order(made, base, PlannedRun(number=0, block=0, cell=cell)), dispatch, space
                    )
                if study.engine == "vllm":
                    load_encode(workload.tokenizer)
                events = run_ablation(made, trials, lambda run: cell_order(made, base, run), dispatch, record)
                for event in events:
                    show(event)
        found = whole.report()
        for name, text in whole.artifacts().items():
            (made.folder / name).write_text(text, encoding="utf-8")
        logged = record(read_trials(made.folder), over=True)
    return Ablated(report=found, folder=made.folder, logged=logged, tracking_uri=tracking_uri)


def tracking_uri_of(study: StudyFile, runs: Path) -> str:
    """Where the study was logged."""
    kept = study.options.get("tracking_uri")
    if kept is None:
        return default_tracking_uri(runs)
    if HIDDEN in str(kept):
        raise Mistake(
            f"study {study.name} was logged to {kept}, and its password was not written down; "
            "give it with --tracking-uri"
        )
    return str(kept)


def dispatch_for(engine: str, address: str | None, tell: Tell | None = None) -> Dispatch:
    """Where trials of this engine run: on a Ray cluster at this address, else on this machine.

    Args:
        tell: told what trials under way are doing.
    """
    # Imported when needed: Ray takes seconds to import, and a simulated study on this machine needs none.
    if engine == "simulated":
        from cluster.node.simulated import SimulatedEngine

        simulated = SimulatedEngine()
        if address is None:
            return InProcess(simulated, tell)
        from cluster.dispatch.on_ray import OnRay

        return OnRay(simulated, address, tell)
    from cluster.dispatch.on_ray import OnRay
    from cluster.node.vllm_server import VllmEngine

    return OnRay(VllmEngine(), address, tell)


def _default_storage(runs: Path) -> str:
    runs.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{runs.resolve() / 'studies.db'}"
