"""A real vLLM server, from its start to the last byte of memory it gives back.

What it promises: the endpoint it yields is the process it started and no other, with the settings that were
asked for in effect; and after it nothing of that process runs or holds memory, however either ended.
docs/engine.md says why each step is there. It imports no vllm: the server is another process.
"""

import os
import time
import uuid
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from cluster.node.command import engine_command, engine_environment, installed_version
from cluster.node.counters import caveats
from cluster.node.effective import differences, effective_settings
from cluster.node.energy import energy_counter
from cluster.node.engine import LOG_NAME, EngineFailure, Replay
from cluster.node.excerpt import excerpt
from cluster.node.failure import Phase, diagnose, last_line, port_was_taken
from cluster.node.gpu_memory import wait_for_room
from cluster.node.guarded import COLD, WARM, GuardedProcess
from cluster.node.hardware import gpu_memory_used_mib, hardware_name, memory_kills
from cluster.node.phases import Phases
from cluster.node.processes import listening_inodes, listens_alone
from cluster.node.replay import ReplayResult, closed_loop, run_loop
from cluster.node.scrape import Scraper
from cluster.node.secrecy import hide, secret_values, without_secrets
from cluster.node.server_api import ServerApi, Unreachable, free_port
from cluster.node.shards import ClientLost, processes_for, ready
from cluster.node.start_progress import StartProgress
from cluster.node.start_stages import READY, StartStages
from cluster.node.warm_up import ROUNDS, compiled, until_steady
from cluster.node.watch import Stopped
from cluster.order import Cause, Limits, Order, Ran
from cluster.traffic.sessions import remarks
from cluster.traffic.workload import Prompt, Workload, load_encode, materialise, warm_up_prompts
from objectives.allowance import CUT, Allowance
from objectives.measurement import Sample
from search_spaces.values import Json

_PORT_TRIES = 3
_MAYBE_THE_LAUNCHERS = (Cause.DIED_AT_START, Cause.HANG_AT_START)
"""Failures of a start without a reason of the engine's own that names the config or the memory."""
_READY_POLL_S = 0.25
_DYING_S = 10.0
"""How long a server whose engine core died may take to say so or to end."""
_RESET_TRY_S = 30.0
"""A reset is refused while blocks are held: by requests just aborted, or by transfers to the offload pool."""
_MEMORY_BACK_S = 60.0
_MEMORY_SLACK_MIB = 512
"""Memory that other processes may have taken on the GPU meanwhile without the trial waiting for them."""

_DESCRIBE_S = 120.0
"""With its configuration the server also describes its machine, by a dozen commands run one after another."""

_WARM_UP_OUTPUT = 16
_WARM_UP_AT_MOST = 64
"""Requests of a warm-up round: enough to reach every kernel once. Larger batches were captured at start."""
_WARM_UP_AT_MOST_CPU = 8
_FILL_TOKENS = 4
"""Prompt and output of the requests that fill every slot once: it is the batch's width that they are for."""


class VllmEngine:
    """The engine of real trials.

    Args:
        launcher: the socket of a launcher on the node where it serves (`cluster.node.launcher_client`), which
            makes its starts shorter; None: every start is cold.
        why_cold: why there is no launcher where there should be one.
    """

    name: Final = "vllm"

    def __init__(self, launcher: Path | None = None, *, why_cold: str | None = None) -> None:
        self.launcher = launcher
        self.why_cold = why_cold

    @contextmanager
    def serve(self, order: Order, folder: Path, phases: Phases | None = None) -> Iterator["VllmEndpoint"]:
        """Start, wait until ready, check what is in effect; stop on leaving. Raises EngineFailure."""
        phases = phases or Phases()
        if (held := wait_for_room(order, waiting=phases.waiting_for_memory)) is not None:
            raise EngineFailure(Cause.GPU_HELD, held)
        memory_before = gpu_memory_used_mib()
        try:
            with _started(order, folder, self.launcher, self.why_cold, phases) as endpoint:
                yield endpoint
        except EngineFailure as failure:
            # Somebody may have come meanwhile, and then it was not the config that was too large.
            if failure.cause is Cause.OUT_OF_MEMORY and (held := wait_for_room(order)) is not None:
                failure.cause, failure.reason = Cause.GPU_HELD, f"{failure.reason}: {held}"
            raise
        finally:
            _wait_for_memory(memory_before)


class VllmEndpoint:
    """A vLLM server that is up and is ours."""

    def __init__(
        self, order: Order, process: GuardedProcess, api: ServerApi, log: Path, name: str, phases: Phases
    ) -> None:
        self._order = order
        self._phases = phases
        self._process = process
        self._api = api
        self._log = log
        self._served_name = name
        self._secrets = secret_values(engine_environment(order.environment, os.environ))
        self._memory_kills = memory_kills()
        self._effective: Mapping[str, Json] = {}
        self._joules = energy_counter(order.gpus)
        self._made: tuple[Workload, tuple[Prompt, ...]] | None = None
        self._unsettled: tuple[str, ...] = ()
        self.version: str | None = installed_version()
        self.hardware: str | None = hardware_name()
        self.command: tuple[str, ...] = ()
        self.launch = "cold"
        self._stages = StartStages(log)

    @property
    def stages_s(self) -> Mapping[str, float]:
        return self._stages.seconds

    @property
    def effective(self) -> Mapping[str, Json]:
        return self._effective

    @property
    def base_url(self) -> str:
        return self._api.base_url

    @property
    def served_name(self) -> str:
        """The model's name in requests: a new one each start, so that no other server answers to it."""
        return self._served_name

    def read_back(self) -> None:
        """Learn what the engine really does. Raises EngineFailure where that is not what was asked."""
        self.version = self._api.version() or self.version
        info = self._text("/server_info?config_format=json", timeout_s=_DESCRIBE_S)
        metrics = self._text("/metrics")
        self._effective = effective_settings(info, metrics, self.log_text())
        if faults := differences(self._order.arguments, self._effective):
            raise EngineFailure(Cause.SETTINGS_DIFFER, "; ".join(faults))

    def warm_up(self, workload: Workload) -> None:
        """Fill every batch slot once, then play rounds of the trace's prompt lengths until they take as long.

        No prompt is of the trace or comes twice.
        """
        slots = _whole(self._effective.get("max_num_seqs")) or _WARM_UP_AT_MOST
        at_most = _WARM_UP_AT_MOST if self._order.gpus else _WARM_UP_AT_MOST_CPU
        count = max(1, min(slots, at_most))
        fill = slots if slots > count else 0
        lengths = _warm_up_lengths(workload, _whole(self._effective.get("max_model_len")))
        a_round = [lengths[number % len(lengths)] for number in range(count)]
        prompts = warm_up_prompts(
            workload,
            load_encode(workload.tokenizer),
            count=fill + count * ROUNDS,
            lengths=[min(_FILL_TOKENS, lengths[0])] * fill + a_round * ROUNDS,
            max_tokens=_WARM_UP_OUTPUT,
        )
        if fill:
            self._warm_up_round([replace(prompt, max_tokens=_FILL_TOKENS) for prompt in prompts[:fill]])
        rounds = [prompts[at : at + count] for at in range(fill, len(prompts), count)]
        said = until_steady(lambda number: self._warm_up_round(rounds[number]))
        self._unsettled = () if said is None else (said,)

    def _warm_up_round(self, prompts: Sequence[Prompt]) -> float:
        """Play these all at once. Seconds from the first sending to the last answer's end."""
        result = run_loop(
            closed_loop(
                prompts,
                len(prompts),
                base_url=self.base_url,
                model=self._served_name,
                stuck_s=self._order.limits.stuck_s,
                alive=self._why_dead,
            )
        )
        self._raise_if_stopped(result, ())
        failed = [record.error for record in result.records if record.error is not None]
        if len(failed) == len(result.records):
            raise EngineFailure(Cause.DIED_UNDER_LOAD, f"no warm-up request succeeded: {failed[0]}")
        sent_s = min(record.sent_s for record in result.records if record.sent_s is not None)
        return max(record.finished_s for record in result.records if record.finished_s is not None) - sent_s

    def reset_caches(self) -> None:
        """Empty the prefix cache, and the pool it is offloaded to, and have the engine say so."""
        asked = self._order.arguments
        external = bool(asked.get("kv_offloading_size") or asked.get("kv_transfer_config"))
        deadline = time.monotonic() + _RESET_TRY_S
        while True:
            try:
                if self._api.reset_prefix_cache(external=external):
                    return
                problem = "the engine still holds blocks of it"
            except Unreachable as error:
                problem = str(error)
            if not self._process.alive:
                raise self._death()
            if time.monotonic() > deadline:
                reason = f"the prefix cache could not be emptied within {_RESET_TRY_S:g} s: {problem}"
                raise EngineFailure(Cause.STUCK, reason)
            time.sleep(0.1)

    def play(self, workload: Workload, limits: Limits, *, allowance: Allowance | None = None) -> Replay:
        """Replay open loop, counters read at the edges and once a second between."""
        prompts = self._prompts(workload)
        processes = processes_for(prompts, cores=len(os.sched_getaffinity(0)))
        try:
            with ready(
                prompts,
                processes=processes,
                base_url=self.base_url,
                model=self._served_name,
                stuck_s=limits.stuck_s,
                alive=self._why_dead,
                temperature=workload.temperature,
                seed=workload.seed,
                allowance=allowance,
            ) as playing:
                seen = self._seen_through(playing())
        except ClientLost as lost:
            raise EngineFailure(Cause.CLIENT_LATE, str(lost)) from None
        said = remarks(workload.trace, workload.sessions, seen.records)
        return replace(seen, warnings=(*seen.warnings, *said))

    def play_closed(self, workload: Workload, concurrency: int, limits: Limits) -> Replay:
        """Replay with so many requests in flight, counters read as in `play`."""
        played = closed_loop(
            self._prompts(workload),
            concurrency,
            base_url=self.base_url,
            model=self._served_name,
            stuck_s=limits.stuck_s,
            alive=self._why_dead,
            temperature=workload.temperature,
            seed=workload.seed,
        )
        return self._seen_through(played)

    def _prompts(self, workload: Workload) -> tuple[Prompt, ...]:
        """The workload's prompts. Their tokens do not depend on the speed and are made once."""
        if self._made is None or replace(self._made[0], speed=workload.speed) != workload:
            self._made = workload, materialise(workload, load_encode(workload.tokenizer))
        before, prompts = self._made
        if before.speed == workload.speed:
            return prompts
        return tuple(
            replace(prompt, due_s=prompt.due_s * before.speed / workload.speed) for prompt in prompts
        )

    def _seen_through(self, playing: Coroutine[object, object, ReplayResult]) -> Replay:
        """Play to the end. Raises EngineFailure where the engine died or got stuck on the way."""
        said_before = self._log.stat().st_size
        before_j = self._joules()
        result, samples = run_loop(self._scraped(playing))
        after_j = self._joules()
        self._raise_if_stopped(result, samples)
        if any(record.error not in (None, CUT) for record in result.records) and self._is_dying():
            raise self._death(result, samples)
        return Replay(
            records=result.records,
            samples=samples,
            invalid=result.invalid,
            warnings=(*result.warnings, *self._unsettled, *caveats(self.version)),
            disturbed=compiled(self._said_since(said_before)),
            cut_s=result.cut_s,
            energy_j=None if before_j is None or after_j is None else after_j - before_j,
        )

    async def _scraped(
        self, playing: Coroutine[object, object, ReplayResult]
    ) -> tuple[ReplayResult, tuple[Sample, ...]]:
        before: float | None = None

        def each(sample: Sample) -> None:
            nonlocal before
            if sample.finished_total is not None:
                before = sample.finished_total if before is None else before
                self._phases.ended(round(sample.finished_total - before))

        # By the engine's own counter: the client has no time to count for anybody.
        async with Scraper(self.base_url, version=self.version, each=each) as scraper:
            result = await playing
        return result, scraper.samples(result.zero_s)

    @property
    def ran(self) -> Ran:
        """What is known of the engine, without the log and the times."""
        return Ran(
            engine=VllmEngine.name,
            version=self.version,
            hardware=self.hardware,
            command=self.command,
            effective=self.effective,
            launch=self.launch,
            stages_s=self.stages_s,
        )

    def log_text(self) -> str:
        """The engine's log so far, secrets blanked."""
        return hide(excerpt(self._log, self._order.limits.log_bytes), self._secrets)

    def _said_since(self, offset: int) -> str:
        """The engine's log from this byte on, secrets blanked."""
        with self._log.open("rb") as log:
            log.seek(offset)
            return hide(log.read(self._order.limits.log_bytes).decode(errors="replace"), self._secrets)

    def _why_dead(self) -> str | None:
        return None if self._process.alive else "the API server is gone"

    def _is_dying(self) -> bool:
        """Whether the engine is dead though its server may live: it says so, is silent, or works no more."""
        deadline = time.monotonic() + _DYING_S
        while self._process.alive and time.monotonic() < deadline:
            try:
                if self._api.get("/health", timeout_s=_DYING_S).status != 200:
                    return True
                return not self._api.works(self._served_name, timeout_s=self._order.limits.stuck_s)
            except Unreachable:
                time.sleep(_READY_POLL_S)
        return True

    def _raise_if_stopped(self, result: ReplayResult, samples: tuple[Sample, ...]) -> None:
        match result.stopped:
            case None | Stopped.CUT:
                return
            case Stopped.DEAD:
                raise self._death(result, samples)
            case Stopped.STUCK:
                reason = result.reason or "no token for any request"
                raise EngineFailure(Cause.STUCK, reason, records=result.records, samples=samples)

    def _death(self, result: ReplayResult | None = None, samples: tuple[Sample, ...] = ()) -> EngineFailure:
        """What there is to say of an engine that died after it was ready; it is swept up first."""
        status = self._process.stop()
        cause, reason = diagnose(
            self.log_text(),
            status,
            Phase.LOAD,
            killed_for_memory=memory_kills() > self._memory_kills,
        )
        records = () if result is None else result.records
        return EngineFailure(cause, reason, records=records, samples=samples)

    def wait_until_ready(self) -> None:
        """Raises EngineFailure where the engine exits, or says nothing for too long; _PortTaken."""
        stall_s = self._order.limits.start_stall_s
        progress = StartProgress(self._log, lambda: self._process.pids)
        while not self._is_up():
            self._look()
            if not self._process.alive:
                raise self._failed_start()
            if progress.stalled_s() > stall_s:
                raise EngineFailure(
                    Cause.HANG_AT_START,
                    f"no health, nothing new in its log and next to nothing read for {stall_s:g} s; "
                    f"the last: {last_line(self.log_text())}",
                )
            time.sleep(_READY_POLL_S)
        self._stages.look()
        self._stages.reached(READY)
        self._phases.starting(self._stages.under_way)

    def _look(self) -> None:
        self._stages.look()
        self._phases.starting(self._stages.under_way)

    def _is_up(self) -> bool:
        """Whether our own server answers: its socket, its name, and the engine behind it.

        The socket first, so that no other server is ever asked anything.
        """
        port = self._api.port
        if not listening_inodes(port):
            return False
        if not listens_alone(port, self._process.pids):
            raise _PortTaken(f"another process listens on port {port}")
        try:
            return self._api.healthy() and self._served_name in self._api.served_names()
        except Unreachable:
            return False

    def _failed_start(self) -> Exception:
        status = self._process.stop()
        log = self.log_text()
        if port_was_taken(log):
            return _PortTaken(f"port {self._api.port} was taken meanwhile")
        killed = memory_kills() > self._memory_kills
        return EngineFailure(*diagnose(log, status, Phase.START, killed_for_memory=killed))

    def _text(self, path: str, timeout_s: float = 30.0) -> str:
        """A body, or nothing where the server does not give one: not every version has every path."""
        try:
            answer = self._api.get(path, timeout_s=timeout_s)
        except Unreachable:
            return ""
        return answer.text if answer.status == 200 else ""


class _PortTaken(Exception):
    """Somebody else has the port; another one will do."""


@contextmanager
def _started(
    order: Order, folder: Path, launcher: Path | None, why_cold: str | None, phases: Phases
) -> Iterator[VllmEndpoint]:
    """A server of ours that is up, on some port; nothing of it runs afterwards."""
    log = folder / LOG_NAME
    version = installed_version()
    problem = ""
    tries = _PORT_TRIES
    while tries:
        log.write_text("" if why_cold is None else f"[tuner] a cold start: {why_cold}\n")
        api, name = ServerApi(port=free_port()), f"tuner-{uuid.uuid4().hex[:12]}"
        command = engine_command(order, port=api.port, served_name=name, version=version)
        with GuardedProcess(
            command,
            folder=folder,
            log=log,
            environment=engine_environment(order.environment, os.environ),
            grace_s=order.limits.stop_s,
            launcher=launcher,
        ) as process:
            endpoint = VllmEndpoint(order, process, api, log, name, phases)
            endpoint.command = without_secrets(command)
            endpoint.launch = process.launch if why_cold is None else f"{COLD}: {why_cold}"
            try:
                endpoint.wait_until_ready()
                endpoint.read_back()
            except _PortTaken as taken:
                problem = str(taken)
                tries -= 1
                continue
            except EngineFailure as failure:
                if process.launch == WARM and failure.cause in _MAYBE_THE_LAUNCHERS:
                    # Only what fails from the command too is the config's own.
                    launcher, why_cold = None, f"a warm one failed: {failure}"
                    continue
                failure.ran = endpoint.ran
                raise
            yield endpoint
            return
    raise EngineFailure(Cause.DIED_AT_START, f"no port to serve on after {_PORT_TRIES} tries: {problem}")


def _wait_for_memory(before_mib: tuple[int, ...]) -> None:
    """Wait until the GPUs hold no more than before: a driver frees a dead process's memory late."""
    deadline = time.monotonic() + _MEMORY_BACK_S
    while before_mib and time.monotonic() < deadline:
        now_mib = gpu_memory_used_mib()
        if len(now_mib) != len(before_mib):
            return
        if all(now <= was + _MEMORY_SLACK_MIB for now, was in zip(now_mib, before_mib, strict=True)):
            return
        time.sleep(0.5)


def _warm_up_lengths(workload: Workload, max_model_len: int | None) -> tuple[int, ...]:
    """Prompt lengths from the trace: its quartiles, as far as they fit with some output."""
    lengths = sorted(request.input_length for request in workload.trace.requests)
    longest = (max_model_len or lengths[-1] + _WARM_UP_OUTPUT) - _WARM_UP_OUTPUT
    quartiles = {lengths[(len(lengths) - 1) * quarter // 4] for quarter in (1, 2, 3)}
    return tuple(sorted(max(1, min(length, longest)) for length in quartiles))


def _whole(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
