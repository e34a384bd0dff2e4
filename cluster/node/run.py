"""One trial on its node, top to bottom. What a config can cause is an Outcome here, never an exception."""

import os
import socket
import time
from dataclasses import replace
from pathlib import Path

from cluster.node.engine import LOG_NAME, Endpoint, Engine, EngineFailure, Replay
from cluster.node.excerpt import excerpt
from cluster.node.secrecy import hide, secret_values
from cluster.order import Cause, Failed, Measured, Order, Outcome, Ran
from objectives.measurement import Measurement
from objectives.summary import summarise


def run_trial(order: Order, engine: Engine, folder: Path) -> Outcome:
    """Serve the order's config, replay its workload, stop, and say what was measured or why nothing was.

    Args:
        order: what to run.
        engine: what serves it.
        folder: the trial's own, for the engine's log and whatever else it writes.
    """
    run = _Run(order, engine.name, folder)
    try:
        with engine.serve(order, folder) as endpoint:
            run.started(endpoint)
            endpoint.warm_up(order.workload)
            endpoint.reset_caches()
            replay = run.timed_replay(endpoint)
        _refuse(replay)
    except EngineFailure as failure:
        return Failed(
            cause=failure.cause,
            reason=failure.reason,
            ran=run.ran(failure.ran),
            records=failure.records,
            samples=failure.samples,
        )
    ran = run.ran()
    return Measured(
        measurement=_measurement(replay, order, ran),
        records=replay.records,
        samples=replay.samples,
        ran=ran,
    )


class _Run:
    """What becomes known of the engine and the times while the trial goes on."""

    def __init__(self, order: Order, engine: str, folder: Path) -> None:
        self._order = order
        self._folder = folder
        self._began_s = time.perf_counter()
        self._known = Ran(engine=engine, node=socket.gethostname())

    def started(self, endpoint: Endpoint) -> None:
        self._known = replace(
            self._known,
            version=endpoint.version,
            hardware=endpoint.hardware,
            command=endpoint.command,
            effective=dict(endpoint.effective),
            start_s=time.perf_counter() - self._began_s,
        )

    def timed_replay(self, endpoint: Endpoint) -> Replay:
        began_s = time.perf_counter()
        try:
            return endpoint.play(self._order.workload, self._order.limits)
        finally:
            self._known = replace(self._known, replay_s=time.perf_counter() - began_s)

    def ran(self, of_failure: Ran | None = None) -> Ran:
        """All of it, with the log, once the engine has stopped."""
        secrets = secret_values({**os.environ, **self._order.environment})
        return replace(
            self._known if of_failure is None else replace(of_failure, node=self._known.node),
            log=hide(excerpt(self._folder / LOG_NAME, self._order.limits.log_bytes), secrets),
            total_s=time.perf_counter() - self._began_s,
        )


def _refuse(replay: Replay) -> None:
    """Raise EngineFailure for a replay that measures nothing: its client was late, or nobody was served."""
    if replay.invalid is not None:
        raise EngineFailure(Cause.CLIENT_LATE, replay.invalid, records=replay.records, samples=replay.samples)
    if any(record.ok for record in replay.records):
        return
    errors = [record.error or "no token" for record in replay.records]
    reason = f"none of {len(errors)} requests succeeded; the first: {errors[0]}" if errors else "no requests"
    raise EngineFailure(_cause(errors), reason, records=replay.records, samples=replay.samples)


def _cause(errors: list[str]) -> Cause:
    """Of a replay in which every request failed while the engine lived."""
    if all(error.startswith("HTTP 4") for error in errors):
        return Cause.INVALID_ARGUMENT  # refused, each of them: a context too short for the trace, say
    if all("timed out" in error for error in errors):
        return Cause.STUCK
    return Cause.DIED_UNDER_LOAD


def _measurement(replay: Replay, order: Order, ran: Ran) -> Measurement:
    slots, effective = ran.effective.get("max_num_seqs"), ran.effective
    return summarise(
        replay.records,
        replay.samples,
        slo=order.slo,
        max_num_seqs=slots if isinstance(slots, int) else None,
        speculates=effective["speculative_config"] is not None if "speculative_config" in effective else None,
        caveats=replay.warnings,
    )
