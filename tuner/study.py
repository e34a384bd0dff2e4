"""The search itself: ask, send out, put on disk, tell, log; again until enough trials have finished.

First it explores, then it measures again what looks best (`tuner.remeasure` says how much and which), since
what looks best was also lucky.

`search` is a generator of events, so that a command line, a service and a test drive the same loop and
stop it by no longer asking for the next event. Where trials run, what proposes configs and where they are
logged come from outside. What was measured is on disk before anything else may fail; a search that was
killed at any point goes on from there.

Counted are finished trials, measured or failed, the controls among them. What says nothing about a config
(a node lost, a client late, a cancellation) is sent out once more, and counts when it fails again; a config
that lost two nodes in a row is at fault.
"""

import fcntl
import math
import os
import statistics
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, TypeGuard

from cluster.dispatch.dispatch import Dispatch
from cluster.node.secrecy import secret_values
from cluster.order import Cause, Failed, Order, Outcome
from cluster.settled_memory import settled_memory
from objectives.answers import Tokens
from objectives.goal import QUALITY, Goal, MissingObjective, violations
from objectives.measurement import Measurement
from objectives.metrics import METRICS
from objectives.slo import Slo
from search_spaces.space import Config, Space
from tuner import __version__
from tuner.bars import barred
from tuner.events import Done, Event, Finished, FrontMoved, Noted, Retried, Started, Waiting
from tuner.first_speed import begun_at
from tuner.front import FrontView, losses, view
from tuner.ledger import Standing
from tuner.mistakes import Mistake
from tuner.node_controls import doubtful, owed_elsewhere
from tuner.places import Look, Node, Places
from tuner.quality_guard import QualityGuard, artefact_of
from tuner.records import (
    STUDY,
    State,
    StoredTrial,
    StudyFile,
    numbers_on_disk,
    read_study,
    read_trials,
    write_outcome,
    write_study,
)
from tuner.remeasure import PATIENCE, next_repeat, owed, settled, stable, standing_text
from tuner.sampler import SamplerError, Scored, Search, SpaceExhausted, Unscored, Verdict

__all__ = [
    "Done",
    "Event",
    "Finished",
    "FrontMoved",
    "Noted",
    "Recorder",
    "Retried",
    "Started",
    "StudyError",
    "StudyPlan",
    "Waiting",
    "locked",
    "search",
]

CONTROL = 0
"""The control's number: it runs first, and alone, so that what others are compared with is undisturbed."""

ATTEMPTS = 2
"""How often a trial is sent out before a failure that says nothing about its config is taken as its own."""

_COUNT_THE_SLO = ("capacity_", "goodput_", "cost_", "slo_attainment")
"""How metrics begin that are worth less, the more requests miss the SLO."""

QUIET_S = 30.0
"""How long a search may go without an event."""

OVERDUE_S = 2 * 3600.0
"""A trial is given up after ten times what the longest one took, and never before this."""
OVERDUE_AT_FIRST_S = 12 * 3600.0
"""The same while none has finished: models are fetched and loaded."""

LOCK = "lock"


class StudyError(Mistake):
    """This study cannot be searched now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlan:
    """What to search, where it is kept, and how far."""

    folder: Path
    """Of the study: `runs/<name>`."""
    study: StudyFile
    space: Space
    goal: Goal
    total: int
    """Finished trials at the end, the control and those of earlier sessions included."""
    stop_when_stable: bool = False
    """Whether to end before the total once exploring has settled and the recommendation too."""
    order: Callable[[int, Config | None], Order]
    """The order for a trial's number and config; None: the control."""
    prompts: tuple[Tokens, ...] = ()
    """What artefacts are asked for their quality's sake; empty: none is asked."""


class Recorder(Protocol):
    """Keeps what was measured where people look. Never raises for want of that place."""

    def sync(self, study_folder: Path, view: FrontView, standing: Standing = "RUNNING") -> bool: ...


@dataclass(slots=True)
class _Flight:
    """A trial that was sent out."""

    order: Order
    config: Config | None
    """None: the control."""
    repeats: int | None
    """The trial whose config it measures again, if it does."""
    started: datetime
    node: Node = None
    """Where it runs, or ran last."""
    share: float = 0.0
    """Of its node, what it takes."""
    is_nodes: bool = False
    """Whether it is measured for its node's sake, so that no other will do."""
    attempts: int = 1
    losses: int = 0
    """How often its node was lost."""


def search(
    plan: StudyPlan,
    dispatch: Dispatch,
    sampler: Search,
    recorder: Recorder,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Generator[Event, None, None]:
    """Search until `plan.total` trials have finished or there is nothing new to try.

    However it ends, no trial is left running: what has no outcome on disk is cancelled, and its config is
    asked again when the study is resumed.

    Raises:
        StudyError: another process is searching this study, its parts do not belong together, no node
            can run a trial, or one never ends.
        OSError: a trial cannot be written to disk.
    """
    with locked(plan.folder):
        if not (plan.folder / STUDY).exists():
            write_study(plan.folder, plan.study)
        elif read_study(plan.folder).id != plan.study.id:
            raise StudyError(
                f"study {plan.study.name} was begun by another search meanwhile; --resume goes on"
            )
        driver = _Driver(plan, dispatch, sampler, recorder, now)
        driver.reconcile()
        finished = False
        try:
            with settled_memory():
                yield from driver.run()
            finished = True
        finally:
            if not finished:
                dispatch.cancel()
                # Stopped in the middle of the database's own work it may be locked: resuming does this again.
                with suppress(SamplerError):
                    driver.reconcile()
                recorder.sync(plan.folder, driver.seen, "KILLED")


def told_violations(measurement: Measurement, goal: Goal, slo: Slo) -> dict[str, float]:
    """What must hold beside the objectives: the SLO, where there is one and no objective counts it."""
    counted = any(objective.metric.startswith(_COUNT_THE_SLO) for objective in goal.objectives)
    return violations(measurement, slo) if slo.limits() and not counted else {}


def _blamed(flight: _Flight, outcome: Outcome) -> Outcome:
    """The outcome, put down to the config where two nodes in a row were lost with it; not to the control."""
    if not isinstance(outcome, Failed) or outcome.cause is not Cause.LOST_NODE:
        return outcome
    if flight.losses < ATTEMPTS or flight.config is None:
        return outcome
    reason = f"two nodes in a row were lost with it; the last: {outcome.reason}"
    return replace(outcome, cause=Cause.LOST_TWICE, reason=reason)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a study's folder for this process. The lock goes with the process, however that ends.

    Raises StudyError where another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise StudyError(
                f"study {folder.name} is being searched by {holder}; wait for it, or stop it"
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {os.uname().nodename}\n")
        file.flush()
        yield


@dataclass(slots=True)
class _Driver:
    """The state of one session of a search."""

    plan: StudyPlan
    dispatch: Dispatch
    sampler: Search
    recorder: Recorder
    now: Callable[[], datetime]
    trials: dict[int, StoredTrial] = field(default_factory=dict)
    """Finished ones, as on disk."""
    flying: dict[int, _Flight] = field(default_factory=dict)
    guard: QualityGuard = field(init=False)
    places: Places = field(init=False)
    held: _Flight | None = None
    """Asked, but there is no room for it until something lands."""
    again: deque[_Flight] = field(default_factory=deque)
    """To be sent out once more, as soon as there is room."""
    shut: set[str] = field(default_factory=set)
    """Why nodes are not used, as far as it was told."""
    exhausted: str | None = None
    _seen: FrontView | None = None

    def __post_init__(self) -> None:
        plan = self.plan
        self.guard = QualityGuard(
            folder=plan.folder,
            limits=plan.space.quality,
            prompts=plan.prompts,
            control=artefact_of(plan.order(CONTROL, None)),
        )
        self.places = Places(self.dispatch, plan.goal, real=plan.study.engine == "vllm")

    @property
    def seen(self) -> FrontView:
        """The front of what has finished; made anew only where something has."""
        known, checks = self._seen, self.guard.checks
        if known is None or known.checks is not checks or len(known.trials) != len(self.trials):
            known = self._seen = view(self.plan.study, self.trials.values(), checks, known)
        return known

    def reconcile(self) -> None:
        """Make the database agree with the disk: tell it what it missed, cancel what has no outcome."""
        self.trials = {trial.number: trial for trial in read_trials(self.plan.folder)}
        self._seen = None
        self.guard.reload()
        entered = self.sampler.length
        if entered and CONTROL not in self.trials:
            raise StudyError(
                f"the study database has {entered} trials of a study {self.plan.study.name!r}, "
                f"and {self.plan.folder} has not its control; give the study another name"
            )
        for number, trial in sorted(self.trials.items()):
            if number >= entered:
                config = None if trial.config is None else self.plan.space.config(trial.config)
                self.sampler.add(
                    number,
                    config,
                    self._verdict(trial),
                    is_control=trial.is_control,
                    repeats=trial.repeats,
                )
        for number in sorted(numbers_on_disk(self.plan.folder) - set(self.trials)):
            if number >= self.sampler.length:  # torn, and its number is taken all the same
                self.sampler.add(number, None, Unscored(cause=Cause.CANCELLED, reason="its record is torn"))
        for proposal in self.sampler.running():
            stored = self.trials.get(proposal.number)
            if stored is None:
                self.sampler.cancel(proposal.number)
            else:
                self.sampler.tell(proposal.number, self._verdict(stored))

    def run(self) -> Iterator[Event]:
        seen = self.seen
        written = False
        while True:
            yield from self._send()
            if not self.flying:
                break
            # While trials run, since MLflow may take seconds.
            written = written or self.recorder.sync(self.plan.folder, seen, "RUNNING")
            landed = self.dispatch.next(timeout_s=QUIET_S)
            remarks = self.dispatch.remarks()
            yield from (Noted(text=text) for text in remarks)
            if landed is None:
                if not remarks:
                    yield self._waiting(seen)
                    yield from self._without_overdue()
                continue
            if landed[0] not in self.flying:
                continue
            number, outcome = landed
            flight = self.flying.pop(number)
            self.places.give_back(flight.node, flight.share)
            if isinstance(outcome, Failed) and outcome.cause is Cause.LOST_NODE:
                flight.losses += outcome.begun
            if self._goes_again(outcome, flight):
                flight.attempts += outcome.begun
                self.again.append(flight)
                yield Retried(number=number, reason=f"{outcome.cause}: {outcome.reason}")
                continue
            outcome = _blamed(flight, outcome)
            trial, unscored = self._store(flight, outcome)
            before, seen = seen, self.seen
            written = False
            yield self._finished(trial, outcome, unscored, seen)
            if seen.numbers != before.numbers:
                yield FrontMoved(numbers=seen.numbers)
        logged = self.recorder.sync(self.plan.folder, seen, "FINISHED")
        yield Done(view=seen, exhausted=self.exhausted, why=self._why(seen), logged=logged)

    def _why(self, seen: FrontView) -> str:
        """Why the search has ended, and how sure the recommendation is."""
        if len(self.trials) >= self.plan.total:
            end = f"all {self.plan.total} trials have finished"
        elif self.exhausted is not None:
            end = self.exhausted
        else:
            end = (
                f"none of the last {PATIENCE} measured configs improved the front beyond its noise"
                if settled(seen)
                else "the recommendation is stable"
            )
        return "; ".join(filter(None, (end, standing_text(seen), self._modelled_text(seen))))

    def _modelled_text(self, seen: FrontView) -> str | None:
        """Which configs the sampler's models hold for as good, though luck kept them off the front."""
        held = self.sampler.recommended() or ()
        shown = [t for t in seen.standing if t.state is State.MEASURED and t.number not in seen.numbers]
        others = [str(t.number) for t in shown if t.config and self.plan.space.config(t.config) in held]
        if not others:
            return None
        who = f"trial {others[0]}" if len(others) == 1 else f"trials {', '.join(others)}"
        return f"by the sampler's models {who} may be as good as the front"

    def _waiting(self, seen: FrontView) -> Waiting:
        now = self.now()
        return Waiting(
            running_s={
                number: (now - flight.started).total_seconds() for number, flight in self.flying.items()
            },
            view=seen,
            total=self.plan.total,
            eta_s=self._eta_s() if self.trials else None,
        )

    def _without_overdue(self) -> Iterator[Retried]:
        """Where a trial takes longer than any can, send out again what is under way: no node will end it."""
        took_s = [(trial.finished - trial.started).total_seconds() for trial in self.trials.values()]
        most_s = max(OVERDUE_S, 10 * max(took_s)) if took_s else OVERDUE_AT_FIRST_S
        now = self.now()
        overdue = [one for one in self.flying.values() if (now - one.started).total_seconds() > most_s]
        if not overdue:
            return
        self.dispatch.cancel()  # a dispatch ends all that is under way, or nothing
        for flight in overdue:
            flight.attempts += 1
            if flight.attempts > ATTEMPTS:
                raise StudyError(
                    f"trial {flight.order.number} was sent out {ATTEMPTS} times and did not end within "
                    f"{most_s / 3600:.3g} h: see to the nodes, then go on with --resume"
                )
        for flight in tuple(self.flying.values()):
            self.places.give_back(flight.node, flight.share)
            del self.flying[flight.order.number]
            self.again.append(flight)  # wherever there is room, which need not be where it was
            late = flight in overdue
            reason = f"did not end within {most_s / 3600:.3g} h" if late else "another one did not end"
            yield Retried(number=flight.order.number, reason=reason)

    def _goes_again(self, outcome: Outcome, flight: _Flight) -> TypeGuard[Failed]:
        """Whether a trial is sent out once more: what happened says nothing about it."""
        if not isinstance(outcome, Failed) or outcome.cause.blames_config:
            return False
        if outcome.begun and flight.attempts >= ATTEMPTS:
            return False
        return not flight.is_nodes or flight.node in self.dispatch.nodes(flight.order)

    def _send(self) -> Iterator[Started | Noted]:
        """Send out as many trials as there is room for and the total leaves; the control alone, first."""
        look = self._look()
        yield from self._news(look)
        while self.again:
            put = self._put_again(self.again[0], look)
            if put is None:
                # All that is left may be nodes that begin with the control.
                yield from self._controls(look)
                if not self.flying:
                    raise self._nowhere(self.again[0], look)
                return
            self._launch(self.again.popleft(), *put)
        if CONTROL not in self.trials:
            if not self.flying and self.plan.total > 0:
                first = self._flight(CONTROL, None)
                put = self.places.put(first.order, look)
                if put is None:
                    raise self._nowhere(first, look)
                yield self._launch(first, *put)
            return
        while self._left > 0:
            look = self._look()
            yield from self._news(look)
            if any(map(self.places.idle, look.due)):
                yield from self._controls(look)
                continue
            flight = self.held or self._next_flight(look)
            if flight is None:
                return
            put = self.places.put(flight.order, look)
            if put is None:
                if not self.flying:
                    raise self._nowhere(flight, look)
                self.held = flight
                return
            self.held = None
            yield self._launch(flight, *put)

    def _controls(self, look: Look) -> Iterator[Started]:
        """The control on every idle node where it is due next, as far as the total leaves it."""
        while self._left > 0 and (idle := next(filter(self.places.idle, look.due), None)) is not None:
            control = self._again(self.trials[CONTROL])
            control.is_nodes = True
            # Alone on its node: whatever runs beside it would be measured too.
            yield self._launch(control, idle, 1.0)
            look = self._look()

    @property
    def _out(self) -> tuple[_Flight, ...]:
        """Trials that were asked and have no outcome, but for the one that is held."""
        return (*self.flying.values(), *self.again)

    @property
    def _left(self) -> int:
        """Trials that may still be sent out."""
        return self.plan.total - len(self.trials) - len(self._out)

    def _look(self) -> Look:
        measuring = [flight.node for flight in self._out if flight.is_nodes]
        control = self.plan.order(CONTROL, None)
        left = self._left + len(self.again)
        return self.places.look(control, self.trials, left=left, measuring=measuring)

    def _news(self, look: Look) -> Iterator[Noted]:
        """Why nodes are not used, each reason once."""
        for reason in look.shut:
            if reason not in self.shut:
                self.shut.add(reason)
                yield Noted(text=f"{reason}: it is not used")

    def _put_again(self, flight: _Flight, look: Look) -> tuple[Node, float] | None:
        if flight.is_nodes:
            return (flight.node, 1.0) if self.places.idle(flight.node) else None
        return self.places.put(flight.order, look, avoid=flight.node)

    def _nowhere(self, flight: _Flight, look: Look) -> StudyError:
        order = flight.order
        if look.shut:
            why = "; ".join(look.shut)
            return StudyError(
                f"no node is left for trial {order.number}: {why}; what was measured is kept, and --resume "
                "goes on once there is a node; to measure on others give the search another --study"
            )
        if self.trials and not self.dispatch.capacity(self.plan.order(CONTROL, None)):
            return StudyError(
                f"no node is left for trial {order.number}: those that it could run on are gone; what was "
                "measured is kept, and --resume goes on once there is a node"
            )
        return StudyError(
            f"no node can run trial {order.number}: it needs {order.gpus} GPUs and "
            f"{order.cpus} CPUs; set resources in the space to what there is"
        )

    def _next_flight(self, look: Look) -> _Flight | None:
        """The next config, new or again, asked as late as possible: when a trial of the control's size has
        room. None where there is none, or enough is known."""
        if self.flying and self.places.put(self.plan.order(CONTROL, None), look) is None:
            return None
        seen = self.seen
        under_way = Counter(f.repeats for f in self._out if f.repeats is not None)
        doubted = doubtful(self.trials.values(), self.plan.goal) if look.watched else frozenset()
        elsewhere = owed_elsewhere(self.trials, doubted, under_way)
        if elsewhere:
            return self._again(self.trials[elsewhere[0]])
        repeats = owed(seen, self.plan.total, self._less_nodes_own(under_way, doubted, look))
        enough = self.plan.stop_when_stable and settled(seen)
        if self._left > repeats and not enough and (flight := self._new()) is not None:
            return flight
        if self.plan.stop_when_stable and stable(seen):
            return None
        first = next_repeat(seen, self.plan.total, under_way) if repeats else None
        if first is not None:
            return self._again(self.trials[first])
        return None if enough else self._new()

    def _less_nodes_own(
        self, under_way: Mapping[int, int], doubted: frozenset[int], look: Look
    ) -> Mapping[int, int]:
        """Repeats under way, less all that are or were for nodes' sake: the reserve is not theirs."""
        if not look.watched:
            return under_way
        spent = [(trial.is_control, trial.repeats) for trial in self.trials.values()]
        spent += [(flight.config is None, flight.repeats) for flight in self._out]
        for_nodes = sum(
            repeats is not None and (is_control or repeats in doubted) for is_control, repeats in spent
        )
        return {**under_way, CONTROL: under_way.get(CONTROL, 0) - for_nodes}

    def _new(self) -> _Flight | None:
        """A config that was not tried; None where there is none."""
        if self.exhausted is None:
            try:
                proposal = self.sampler.ask()
            except SpaceExhausted as error:
                self.exhausted = str(error)
            else:
                return self._flight(proposal.number, proposal.config)
        return None

    def _again(self, first: StoredTrial) -> _Flight:
        """The config of a trial, to be measured again; the control as it was, whatever it is in the space."""
        config = None if first.config is None else self.plan.space.config(first.config)
        number = self.sampler.repeat(first.number, config)
        return self._flight(number, None if first.is_control else config, repeats=first.number)

    def _flight(self, number: int, config: Config | None, *, repeats: int | None = None) -> _Flight:
        order = self.plan.order(number, config)
        return _Flight(order=order, config=config, repeats=repeats, started=self.now())

    def _launch(self, flight: _Flight, node: Node, share: float) -> Started:
        number = flight.order.number
        # From what lies on disk now, so that a search that is resumed here sends out the same.
        order = begun_at(flight.order, self.trials.values())
        if flight.config is not None and flight.repeats is None:
            order = barred(order, self.seen)
        flight.order = self.guard.probed(order)
        flight.order = replace(flight.order, node=node)
        flight.node, flight.share = node, share
        self.places.take(node, share)
        flight.started = self.now()
        self.flying[number] = flight
        self.dispatch.submit(flight.order)
        config = None if flight.config is None else flight.config.values
        return Started(number=number, config=config, is_control=flight.config is None, repeats=flight.repeats)

    def _store(self, flight: _Flight, outcome: Outcome) -> tuple[StoredTrial, str | None]:
        """To disk, then to the sampler; and why the trial has no score, if it was measured and has none."""
        number = flight.order.number
        files = self.guard.judged(flight.order, outcome)
        if any(name in QUALITY for name in self.plan.goal.names):
            outcome = self.guard.measured(flight.order, outcome)
        unscored = self._unscored(outcome)
        config = flight.config
        if config is None:
            config = self.plan.space.locate(outcome.ran.effective) if outcome.ran.effective else None
        secrets = secret_values({**os.environ, **flight.order.environment})
        trial = StoredTrial.of(
            flight.order,
            outcome,
            config=None if config is None else config.values,
            is_control=flight.config is None,
            repeats=flight.repeats,
            attempts=flight.attempts,
            started=flight.started,
            finished=self.now(),
            tuner_version=__version__,
            secrets=secrets,
            unscored=unscored,
        )
        write_outcome(self.plan.folder, trial, outcome, secrets=secrets, files=files)
        self.trials[number] = trial
        if number == CONTROL:
            self.sampler.add(number, config, self._verdict(trial), is_control=True)
        else:
            self.sampler.tell(number, self._verdict(trial))
        return trial, unscored

    def _unscored(self, outcome: Outcome) -> str | None:
        if isinstance(outcome, Failed):
            return None
        try:
            worth = self.plan.goal.losses(outcome.measurement)
        except MissingObjective as error:
            return str(error)
        if not all(map(math.isfinite, worth)):
            return f"an objective is not finite: {dict(zip(self.plan.goal.names, worth, strict=True))}"
        return None

    def _verdict(self, trial: StoredTrial) -> Verdict:
        worth = losses(self.plan.goal, trial)
        if worth is None:
            return Unscored(cause=trial.cause, reason=trial.reason or "an objective is missing")
        assert trial.measurement is not None
        missed = told_violations(trial.measurement, self.plan.goal, self.plan.study.slo)
        quality = self.guard.violation(trial)
        if quality is not None:
            missed["quality"] = quality
        return Scored(losses=worth, violations=missed)

    def _finished(
        self, trial: StoredTrial, outcome: Outcome, unscored: str | None, seen: FrontView
    ) -> Finished:
        return Finished(
            number=trial.number,
            config=trial.config,
            is_control=trial.is_control,
            outcome=outcome,
            unscored=unscored,
            untrusted=seen.quality_text(trial) if seen.guarded and not seen.trusted(trial) else None,
            on_front=(trial.number if trial.repeats is None else trial.repeats) in seen.numbers,
            repeats=trial.repeats,
            objectives=tuple(METRICS[o.metric].shown for o in self.plan.goal.objectives),
            done=len(self.trials),
            total=self.plan.total,
            eta_s=self._eta_s(),
        )

    def _eta_s(self) -> float:
        """Rounds left, as many at once as run now, times the median of what a trial took."""
        # A failure is sooner over than a measurement: it says little of how long the next trial takes.
        telling = [trial for trial in self.trials.values() if trial.measurement] or self.trials.values()
        took = statistics.median((trial.finished - trial.started).total_seconds() for trial in telling)
        left = max(self.plan.total - len(self.trials), 0)
        at_once = max(self.dispatch.capacity(self.plan.order(CONTROL, None)), 1)
        return took * math.ceil(left / at_once)
