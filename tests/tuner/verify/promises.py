"""A promise made by hand, and runs that keep it or not."""

from collections.abc import Mapping
from dataclasses import replace

from objectives.measurement import Estimate, Measurement
from objectives.slo import Slo
from search_spaces.measure import Fixed
from tuner.verify.judge import Pair, Side
from tuner.verify.promised import Launch, Promised, Resources, Traffic

RECIPE = {"requests": 30, "rate": 10, "input_mean": 50, "output_mean": 5, "block_tokens": 16, "seed": 4}

PROMISED = Promised(
    study="s",
    study_id="0" * 32,
    space="tiny",
    trial=3,
    engine="vllm",
    version="0.32.0",
    hardware="CPU",
    objectives=("goodput", "tpot_p95"),
    slo=Slo(ttft_s=0.5, tpot_s=0.04, attainment=0.95),
    slo_held=True,
    measure=Fixed(),
    values={"goodput_rps": Estimate(value=8.0, low=7.8, high=8.2), "tpot_p95_s": Estimate(value=0.02)},
    control={"goodput_rps": Estimate(value=4.0, low=3.9, high=4.1), "tpot_p95_s": Estimate(value=0.04)},
    control_launch=Launch(model="some/model", arguments={"dtype": "bfloat16"}, environment={"A": "1"}),
    traffic=Traffic(
        origin="made by tiny.yaml",
        digest="d" * 64,
        trace=None,
        make=RECIPE,
        max_context=None,
        speed=1.0,
        sessions="recorded",
        seed=1,
        model="some/model",
        duration_s=3.0,
    ),
    resources=Resources(gpus=0, cpus=2, accelerator=None, gpu_hour_price=None, trust_remote_code=False),
)


def side(metrics: Mapping[str, float], met: float = 1.0) -> Side:
    """A run with these numbers, 200 requests of which this share met each limit."""
    return Side(
        measurement=Measurement(
            metrics={name: Estimate(value=value) for name, value in metrics.items()},
            requests=200,
            failed_requests=0,
            duration_s=20.0,
        ),
        met={"ttft_p95_ms": met, "tpot_p95_ms": 1.0, "slo_attainment": met},
    )


def pairs(
    goodput: float, tpot_s: float, *, many: int = 4, met: float = 1.0, heavy: float = 1.0
) -> list[Pair]:
    """Pairs around these numbers, a percent up and down; `heavy`: how much the traffic slows both sides."""
    found = []
    for number in range(many):
        noise = 1.01 if number % 2 else 1 / 1.01
        mine = {"goodput_rps": goodput * noise / heavy, "tpot_p95_s": tpot_s * noise * heavy}
        other = {"goodput_rps": 4.0 / heavy, "tpot_p95_s": 0.04 * heavy}
        found.append(Pair(config=side(mine, met), control=side(other)))
    return found


def without_control(found: list[Pair]) -> list[Pair]:
    return [replace(pair, control=None) for pair in found]
