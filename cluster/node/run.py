"""One trial on its node, top to bottom. What a config can cause is an Outcome here, never an exception."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

from cluster.node.engine import LOG_NAME, Endpoint, Engine, EngineFailure
from cluster.node.excerpt import excerpt
from cluster.node.loads import Loads
from cluster.node.measured import measured, steps_before_failure
from cluster.node.phases import Phases
from cluster.node.probe import ask
from cluster.node.secrecy import hide, secret_values
from cluster.order import Failed, Order, Outcome, Ran
from objectives.answers import Answers, Unanswered


def run_trial(order: Order, engine: Engine, folder: Path, phases: Phases | None = None) -> Outcome:
    """Serve the order's config, replay its workload, stop, and say what was measured or why nothing was.

    Args:
        order: what to run.
        engine: what serves it.
        folder: the trial's own, for the engine's log and whatever else it writes.
        phases: told what the trial is doing.
    """
    phases = phases or Phases()
    run = _Run(order, engine.name, folder)
    loads = Loads(order, phases)
    answers: Answers | Unanswered | None = None
    try:
        phases.starting()
        with engine.serve(order, folder, phases) as endpoint, _afterwards(phases.stopping):
            run.started(endpoint)
            phases.warming_up()
            with run.timing("warm_up_s"):
                endpoint.warm_up(order.workload)
            with run.timing("replay_s"):
                loads.play(endpoint)
            if order.probe is not None:
                phases.probing()
                with run.timing("probe_s"):
                    answers = ask(endpoint, order.probe)
            run.over()
    except EngineFailure as failure:
        phases.summarising()
        ran = run.ran(failure.ran)
        return Failed(
            cause=failure.cause,
            reason=failure.reason,
            ran=ran,
            records=failure.records,
            samples=failure.samples,
            steps=steps_before_failure(loads, order, ran),
        )
    phases.summarising()
    return replace(measured(loads, order, run.ran()), answers=answers)


@contextmanager
def _afterwards(act: Callable[[], None]) -> Iterator[None]:
    try:
        yield
    finally:
        act()


class _Run:
    """What becomes known of the engine and the times while the trial goes on."""

    def __init__(self, order: Order, engine: str, folder: Path) -> None:
        self._order = order
        self._folder = folder
        self._began_s = time.perf_counter()
        self._over_s: float | None = None
        self._known = Ran(engine=engine, node=socket.gethostname())

    def started(self, endpoint: Endpoint) -> None:
        self._known = replace(
            self._known,
            version=endpoint.version,
            hardware=endpoint.hardware,
            command=endpoint.command,
            effective=dict(endpoint.effective),
            launch=endpoint.launch,
            stages_s=dict(endpoint.stages_s),
            start_s=time.perf_counter() - self._began_s,
        )

    @contextmanager
    def timing(self, name: Literal["warm_up_s", "replay_s", "probe_s"]) -> Iterator[None]:
        began_s = time.perf_counter()
        try:
            yield
        finally:
            took_s = time.perf_counter() - began_s
            match name:
                case "warm_up_s":
                    self._known = replace(self._known, warm_up_s=took_s)
                case "replay_s":
                    self._known = replace(self._known, replay_s=took_s)
                case "probe_s":
                    self._known = replace(self._known, probe_s=took_s)

    def over(self) -> None:
        """All that was asked of the engine is done; it is only to be stopped."""
        self._over_s = time.perf_counter()

    def ran(self, of_failure: Ran | None = None) -> Ran:
        """All of it, with the log, once the engine has stopped."""
        now_s = time.perf_counter()
        secrets = secret_values({**os.environ, **self._order.environment})
        return replace(
            self._known if of_failure is None else replace(of_failure, node=self._known.node),
            log=hide(excerpt(self._folder / LOG_NAME, self._order.limits.log_bytes), secrets),
            stop_s=None if self._over_s is None else now_s - self._over_s,
            total_s=now_s - self._began_s,
        )
