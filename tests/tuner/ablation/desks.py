"""A small study on disk, a trial of it to take apart, and made-up runs of its cells."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from cluster.dispatch.dispatch import Dispatch
from cluster.order import Cause, Failed, Measured, Order, Outcome, Ran
from cluster.traffic.trace import Request, Trace
from cluster.traffic.workload import Workload
from objectives.factorial import Cell
from objectives.measurement import Estimate, Measurement
from search_spaces.load import parse_space
from search_spaces.values import Json, Scalar
from tests.tuner import stories
from tests.tuner.dispatches import FakeDispatch
from tuner.ablation.judge import report
from tuner.ablation.plan import Asked, Plan, PlannedRun, plan
from tuner.ablation.report import Report
from tuner.ablation.run import AblationEvent, ablate, cell_order
from tuner.records import StoredTrial, StudyFile, read_trials, write_outcome, write_study
from tuner.session import orders

SPACE = """
name: small
model: meta-llama/Llama-3.1-8B-Instruct
resources: {gpus: 1}
engine: {max_model_len: 4096, enable_prefix_caching: false}
parameters:
  quantisation: {choices: {bf16: {}, fp8: {set: {quantization: fp8}}}}
  kv_cache_dtype: {choices: [auto, fp8]}
  prefix_cache: {choices: {off: {}, on: {set: {enable_prefix_caching: true}}}}
  speculation:
    choices:
      off: {}
      ngram:
        set: {speculative_config: {method: ngram, prompt_lookup_min: 2}}
        parameters:
          depth: {int: [1, 4], argument: speculative_config.num_speculative_tokens}
  max_num_seqs: {int: [16, 256]}
  max_num_batched_tokens: {int: [64, 4096]}
constraints:
  - max_num_batched_tokens >= max_num_seqs * (1 + default(depth, 0))
traffic: {trace: none.jsonl}
slo: {ttft_p95_ms: 500}
measure: fixed
"""
"""Its control caches no prefixes, so that to cache them is something."""

THREE: Mapping[str, Scalar] = {
    "quantisation": "fp8",
    "kv_cache_dtype": "auto",
    "prefix_cache": "on",
    "speculation": "ngram",
    "speculation.depth": 3,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 2048,
}
FIVE: Mapping[str, Scalar] = {**THREE, "kv_cache_dtype": "fp8", "max_num_seqs": 64}
EFFECTIVE: Mapping[str, Json] = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}

TRACE = Trace(
    requests=tuple(Request(arrival_s=0.1 * n, input_length=100, output_length=20) for n in range(10))
)

Q, P, S = "quantisation", "prefix-cache", "speculation"
Answer = Callable[[Cell, PlannedRun], Outcome]
TRIAL = 4


def study(measure: Mapping[str, Json] | None = None) -> StudyFile:
    made = stories.study_file()
    options = {**made.options, "measure": {**(measure or {"kind": "fixed"})}}
    return replace(made, space_text=SPACE, trace_digest=TRACE.digest, options=options)


def measured(**metrics: float) -> Measured:
    """An outcome with these metrics by their names inside."""
    return Measured(
        measurement=Measurement(
            metrics={name: Estimate(value=value) for name, value in metrics.items()},
            requests=10,
            failed_requests=0,
            duration_s=1.0,
        ),
        records=(),
        samples=(),
        ran=Ran(engine="simulated", hardware="a chip", node="here", effective=EFFECTIVE, total_s=60.0),
    )


def refused(cause: Cause = Cause.UNSUPPORTED, reason: str = "not on this chip") -> Failed:
    return Failed(cause=cause, reason=reason)


class Desk:
    """A study of a control and one trial, both on disk, and the ablation of the trial."""

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Scalar] = THREE,
        measure: Mapping[str, Json] | None = None,
        control: Mapping[str, Scalar] | None = None,
    ) -> None:
        self.folder = folder / "tea"
        self.study = study(measure)
        self.space = parse_space(SPACE, "space.yaml")
        write_study(self.folder, self.study)
        self._store(0, control)
        self._store(TRIAL, config)
        self.said: list[AblationEvent] = []
        self.recorded: list[int] = []
        self.dispatch: FakeDispatch | None = None

    @property
    def trials(self) -> tuple[StoredTrial, ...]:
        return read_trials(self.folder)

    def _store(self, number: int, config: Mapping[str, Scalar] | None) -> None:
        outcome = measured()
        trial = StoredTrial.of(
            self._order(number),
            outcome,
            config=config,
            is_control=number == 0,
            attempts=1,
            started=stories.MORNING,
            finished=stories.MORNING + timedelta(minutes=1),
            tuner_version="0.1.0",
            secrets=(),
        )
        write_outcome(self.folder, trial, outcome)

    def _order(self, number: int) -> Order:
        workload = Workload(trace=TRACE)
        return orders(self.study, self.space, workload, simulated=True)(number, None)

    def plan(self, **asked: object) -> Plan:
        wanted = Asked(**{"trial": TRIAL, **asked})  # type: ignore[arg-type]
        return plan(wanted, self.study, self.space, self.trials, self.folder)

    def events(self, made: Plan, answer: Answer, dispatch: Dispatch | None = None) -> Iterator[AblationEvent]:
        runs = {run.number: run for run in made.runs}
        self.dispatch = FakeDispatch(lambda order: answer(runs[order.number].cell, runs[order.number]))
        return ablate(
            made,
            self.trials,
            lambda run: cell_order(made, self._order(0), run),
            dispatch or self.dispatch,
            lambda finished, over: self.recorded.append(len(finished)),
        )

    def run(self, answer: Answer, **asked: object) -> Report:
        """Measure what is left; the report of all."""
        made = self.plan(**asked)
        self.said += self.events(made, answer)
        return self.report(made)

    def report(self, made: Plan) -> Report:
        return report(made, read_trials(made.folder), self.trials, TRACE, "runs")

    @property
    def submitted(self) -> list[int]:
        assert self.dispatch is not None
        return [order.number for order in self.dispatch.submitted]
