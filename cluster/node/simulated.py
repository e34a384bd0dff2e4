"""The simulated engine: serves any order in virtual time, without a process, a GPU or the prompts' text.

Its numbers are marked as simulated wherever they go: the engine's name, and the hardware's.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from cluster.node.engine import LOG_NAME, Endpoint, Replay
from cluster.node.phases import Phases
from cluster.node.simulation.arrivals import Arrivals, Comings, InTurn
from cluster.node.simulation.kv_pool import KvPool
from cluster.node.simulation.play import Play
from cluster.node.simulation.readings import chunks_of, records_of, samples_of
from cluster.node.simulation.served import Job
from cluster.node.simulation.settings import Assumptions, Settings, resolve
from cluster.node.simulation.speculation import Plan, plain_plan, speculative_plan
from cluster.order import Limits, Order
from cluster.traffic.request import Request
from cluster.traffic.sessions import remarks
from cluster.traffic.workload import Workload, turns_of
from objectives.allowance import Allowance, cut_at_s, cut_records
from objectives.measurement import Record
from search_spaces.accelerators import GIB
from search_spaces.values import Json


class SimulatedEngine:
    """Plays continuous batching by the first-order model."""

    name = "simulated"

    def __init__(self, assumptions: Assumptions = Assumptions()) -> None:  # noqa: B008 - frozen
        self._assumptions = assumptions

    def serve(
        self, order: Order, folder: Path, phases: Phases | None = None
    ) -> AbstractContextManager[Endpoint]:
        """An endpoint that plays the order's config, or EngineFailure; never starts a process."""
        return self._serve(order, folder)

    @contextmanager
    def _serve(self, order: Order, folder: Path) -> Iterator[Endpoint]:
        log = folder / LOG_NAME
        log.write_text("Simulated engine: nothing below was measured.\n")
        settings = resolve(order, self._assumptions)
        with log.open("a") as lines:
            lines.writelines(f"{line}\n" for line in _description(settings))
        yield SimulatedEndpoint(settings, order, self._assumptions)


class SimulatedEndpoint:
    """One config, ready to play. Its prefix cache outlives a replay until it is reset."""

    version: str | None = None
    command: tuple[str, ...] = ()
    launch = ""

    def __init__(self, settings: Settings, order: Order, assumptions: Assumptions) -> None:
        self._settings, self._assumptions = settings, assumptions
        self._number = order.number
        self._plays = 0
        self._pool: KvPool | None = None

    @property
    def hardware(self) -> str:
        settings = self._settings
        ranks = "" if settings.tensor_parallel == 1 else f"{settings.tensor_parallel} × "
        return f"{ranks}{settings.accelerator.name} (simulated)"

    @property
    def effective(self) -> Mapping[str, Json]:
        return self._settings.effective

    @property
    def stages_s(self) -> Mapping[str, float]:
        return {}

    def warm_up(self, workload: Workload) -> None:
        """Nothing compiles here."""

    def reset_caches(self) -> None:
        self._pool = None

    def play(self, workload: Workload, limits: Limits, *, allowance: Allowance | None = None) -> Replay:
        """Replay in virtual time. The client is never late.

        A replay that is cut is played whole, and what came after the cut is forgotten.

        The same workload, config, trial number and count of plays before give the same replay, to the last
        bit; the last two matter only where there is noise. `limits` are wall-clock limits and do not apply.
        """
        jobs = sorted(_jobs(workload, self._settings.max_model_len), key=lambda job: job.due_s)
        replay = self._played(workload, jobs, Arrivals(jobs))
        cut_s = None if allowance is None else cut_at_s(replay.records, allowance)
        if cut_s is None:
            return replace(replay, warnings=remarks(workload.trace, workload.sessions, replay.records))
        seen = cut_records(replay.records, cut_s)
        return Replay(
            records=seen,
            samples=tuple(sample for sample in replay.samples if sample.at_s <= cut_s),
            warnings=remarks(workload.trace, workload.sessions, seen),
            cut_s=cut_s,
        )

    def play_closed(self, workload: Workload, concurrency: int, limits: Limits) -> Replay:
        """Replay with so many requests in flight, in virtual time. Sessions' turns do not wait."""
        jobs = [replace(job, after=None) for job in _jobs(workload, self._settings.max_model_len)]
        return self._played(workload, jobs, InTurn(jobs, concurrency))

    def _played(self, workload: Workload, jobs: Sequence[Job], arrivals: Comings) -> Replay:
        """Play to the end. `jobs` in the order of their places in `arrivals`."""
        settings, trace = self._settings, workload.trace
        if self._pool is None or self._pool.trace_block != trace.block_tokens:
            self._pool = KvPool(settings.kv_blocks - 1, settings.block_size, trace.block_tokens)
        plan = self._plan([job.output for job in jobs if job.refusal is None], workload.seed)
        assumed = self._assumptions
        noise: np.random.Generator | None = None
        factor = 1.0
        if assumed.run_noise or assumed.step_noise:
            # The run's factor is that of the engine's start; steps differ from replay to replay.
            noise = np.random.default_rng([workload.seed, self._number, 2])
            factor = float(np.exp(noise.normal(0.0, assumed.run_noise)))
            if self._plays:
                noise = np.random.default_rng([workload.seed, self._number, 2, self._plays])
        self._plays += 1
        played = Play(
            settings,
            self._pool,
            arrivals,
            plan,
            noise=noise,
            run_factor=factor,
            step_noise=assumed.step_noise,
        )
        played.run()
        chunks = chunks_of(settings, played.served, plan)
        records = records_of(settings, played.served, chunks, played.log)
        records += [_refused(job) for job in played.refused]
        records.sort(key=lambda record: record.request)
        samples = samples_of(settings, played.served, chunks, played.log)
        return Replay(records=tuple(records), samples=tuple(samples))

    def _plan(self, outputs: list[int], seed: int) -> Plan:
        drafting = self._settings.drafting
        if drafting is None:
            return plain_plan(outputs)
        return speculative_plan(outputs, drafting.acceptance, drafting.depth, seed)


def _jobs(workload: Workload, max_model_len: int) -> Iterator[Job]:
    waits = turns_of(workload)
    for index, (request, turn) in enumerate(zip(workload.trace.requests, waits, strict=True)):
        yield Job(
            request=index,
            due_s=request.arrival_s / workload.speed,
            prompt=request.input_length,
            output=request.output_length,
            hash_ids=request.hash_ids,
            after=turn.after,
            think_s=turn.think_s,
            refusal=_refusal(request, max_model_len),
        )


def _refusal(request: Request, max_model_len: int) -> str | None:
    """Why the server would answer this request with an error."""
    prompt, output = request.input_length, request.output_length
    if output < 1:
        return f"HTTP 400: max_tokens must be at least 1, got {output}"
    if prompt < 1:
        return "HTTP 400: the prompt is empty"
    if prompt + output > max_model_len:
        return (
            f"HTTP 400: {prompt} prompt and {output} output tokens are more than "
            f"max_model_len={max_model_len}"
        )
    return None


def _refused(job: Job) -> Record:
    return Record(
        request=job.request,
        due_s=job.due_s,
        sent_s=job.due_s,
        tokens_in=job.prompt,
        tokens_asked=job.output,
        error=job.refusal,
    )


def _description(settings: Settings) -> Iterator[str]:
    """What the log of a simulated trial says."""
    fit = settings.fit
    yield f"accelerator {settings.accelerator.name}, tensor parallel {settings.tensor_parallel}"
    yield (
        f"memory a rank in GiB: allowed {fit.allowed / GIB:.2f}, weights {fit.weights / GIB:.2f}, "
        f"activations {fit.activations / GIB:.2f}, graphs {fit.graphs / GIB:.2f}, rest {fit.rest / GIB:.2f}"
    )
    yield f"KV blocks {settings.kv_blocks} of {settings.block_size} tokens"
    for name, value in settings.effective.items():
        yield f"{name} = {value!r}"
