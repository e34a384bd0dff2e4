"""Small made-up orders and outcomes that the tests of this house share."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

from cluster.node.secrecy import secret_values
from cluster.order import Cause, Failed, Measured, Order, Outcome, Ran
from cluster.traffic.trace import Request, Trace
from cluster.traffic.workload import Workload
from objectives.measurement import Estimate, Measurement, Record, Sample
from objectives.slo import Slo
from tuner.records import StoredTrial, StudyFile

MORNING = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

RECORDS = (
    Record(
        request=0,
        due_s=0.0,
        sent_s=0.001,
        chunk_s=(0.25, 0.5, 0.75),
        chunk_tokens=(1, 3, 5),
        finished_s=0.76,
        tokens_in=512,
        tokens_out=5,
        tokens_asked=5,
        cached_tokens=128,
    ),
    Record(request=1, due_s=0.5, sent_s=None, error="connection refused"),
)
SAMPLES = (
    Sample(at_s=0.0, running=0.0, accepted_per_position_total=(0.0, 0.0)),
    Sample(at_s=1.0, running=2.0, waiting=1.0, kv_usage=0.25, accepted_per_position_total=(7.0, 3.0)),
)
WORKLOAD = Workload(trace=Trace(requests=(Request(arrival_s=0.0, input_length=8, output_length=4),)))


def order(number: int = 7, **environment: str) -> Order:
    return Order(
        study="tea",
        number=number,
        model="some/model",
        arguments={"max_num_seqs": 16, "speculative_config": {"method": "ngram", "depth": 3}},
        environment=environment,
        workload=WORKLOAD,
        slo=Slo(ttft_s=0.5),
    )


def measurement(
    goodput: float = 2.0, tpot_p95_s: float = 0.04, more: Mapping[str, Estimate] = MappingProxyType({})
) -> Measurement:
    metrics = {
        "goodput_rps": Estimate(value=goodput, low=goodput - 0.5, high=goodput + 0.5),
        "tpot_p95_s": Estimate(value=tpot_p95_s, low=tpot_p95_s * 0.9),
    }
    return Measurement(metrics={**metrics, **more}, requests=2, failed_requests=1, duration_s=0.75)


def measured(
    goodput: float = 2.0,
    tpot_p95_s: float = 0.04,
    more: Mapping[str, Estimate] = MappingProxyType({}),
    *,
    log: str = "up\n",
) -> Measured:
    ran = Ran(
        engine="simulated",
        version="1.2",
        hardware="a CPU",
        node="here",
        command=("serve", "--max-num-seqs", "16"),
        effective={"max_num_seqs": 16, "kv_blocks": 100},
        log=log,
        start_s=1.5,
        replay_s=2.5,
        total_s=5.0,
    )
    return Measured(
        measurement=measurement(goodput, tpot_p95_s, more), records=RECORDS, samples=SAMPLES, ran=ran
    )


def failed(cause: Cause = Cause.UNSUPPORTED, reason: str = "fp8 needs a GPU") -> Failed:
    return Failed(cause=cause, reason=reason)


def stored(outcome: Outcome, number: int = 7, **environment: str) -> StoredTrial:
    return StoredTrial.of(
        order(number, **environment),
        outcome,
        config={"speculation": "ngram", "speculation.depth": 3, "max_num_seqs": 16},
        is_control=number == 0,
        attempts=1,
        started=MORNING + timedelta(minutes=number),
        finished=MORNING + timedelta(minutes=number, seconds=30),
        tuner_version="0.1.0",
        secrets=secret_values(environment),
    )


def study_file(name: str = "tea") -> StudyFile:
    return StudyFile(
        name=name,
        id=f"{name}-1f",
        space_name="small",
        space_text="model: some/model\n",
        trace="traces/small.jsonl",
        trace_digest="ab" * 32,
        trace_figures={"requests": 2, "rate": 4.0},
        objectives=("goodput", "tpot_p95"),
        slo=Slo(ttft_s=0.5),
        sampler="tpe",
        seed=11,
        engine="simulated",
        created=MORNING,
        tuner_version="0.1.0",
        options={"storage": "postgresql://me:hunter2@host/db", "speed": 1.5},
    )
