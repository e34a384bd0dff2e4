"""How far the prediction that guides a search is from the simulated engine, before any trial.

    python -m benchmarks.prediction [--spaces 8b 70b smollm2-135m] [--configs 40] [--json]

Random configs of each space that are predicted to fit are measured on the simulated engine as the space says,
on its own traffic. Printed for each metric: the rank correlation of what was predicted with what was measured
and the ratio of the two, its median and its 10 and 90 % quantiles. Both are made of the same step times, so
this tells what the coarse play of flows costs; on hardware it will be more.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from cluster.node.run import run_trial
from cluster.node.simulated import SimulatedEngine
from cluster.order import Measured
from cluster.traffic.workload import Workload
from objectives.goal import Goal
from search_spaces.load import load_space
from search_spaces.space import Config, Space
from tuner.sampler.prior import predictor
from tuner.session import SearchRequest, new_study, orders
from tuner.traffic import study_trace

METRICS = ("capacity_rps", "goodput_rps", "ttft_p95_s", "tpot_p95_s")
SHIPPED = ("8b", "70b", "smollm2-135m")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--spaces", nargs="+", choices=SHIPPED, default=SHIPPED)
    parser.add_argument("--configs", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.configs < 2:
        parser.error(f"--configs {asked.configs}: two at least can be ranked")
    rows = []
    try:
        for name in asked.spaces:
            rows += compared(load_space(f"spaces/{name}.yaml"), asked.configs)
            print(f"{name}: done", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        raise SystemExit("interrupted; nothing of it is kept") from None
    print(json.dumps(rows, indent=2) if asked.json else table(rows))


def compared(space: Space, count: int) -> list[dict[str, float | str]]:
    """A row a metric that was both predicted and measured."""
    trace, origin = study_trace(space, None)
    workload = Workload(trace=trace, speed=space.traffic.speed, tokenizer=space.model)
    asked = SearchRequest(engine="simulated", trials=1)
    study = new_study("prediction", asked, space, Goal.of(space.objectives), workload, origin)
    predict = predictor(space, workload, study.slo)
    if predict is None:
        raise SystemExit(f"error: no figures for the accelerator of {space.name}")
    rng = np.random.default_rng(0)
    configs: list[Config] = []
    while len(configs) < count:
        drawn = [space.sample(rng) for _ in range(count)]
        configs += [c for c, fits in zip(drawn, predict(drawn).fits, strict=True) if fits]
    configs = configs[:count]
    told, order, engine = predict(configs), orders(study, space, workload, simulated=True), SimulatedEngine()
    seen: dict[str, list[float]] = {metric: [] for metric in METRICS}
    for number, config in enumerate(configs, 1):
        with tempfile.TemporaryDirectory() as folder:
            outcome = run_trial(order(number, config), engine, Path(folder))
        for metric, values in seen.items():
            value = outcome.measurement.value(metric) if isinstance(outcome, Measured) else None
            values.append(np.nan if value is None else value)
    rows: list[dict[str, float | str]] = []
    for metric, values in seen.items():
        if metric in told.metrics:
            predicted, measured = told.metrics[metric], np.array(values)
            both = (predicted > 0) & (measured > 0)
            ratios = np.quantile(predicted[both] / measured[both], [0.1, 0.5, 0.9])
            rows.append(
                {
                    "space": space.name,
                    "metric": metric,
                    "configs": int(both.sum()),
                    "rank_correlation": float(spearmanr(predicted[both], measured[both]).statistic),
                    "ratio_p10": float(ratios[0]),
                    "ratio_median": float(ratios[1]),
                    "ratio_p90": float(ratios[2]),
                }
            )
    return rows


def table(rows: Sequence[dict[str, float | str]]) -> str:
    """For people."""
    lines = [
        "| space | metric | configs | rank correlation | predicted over measured, 10 % | median | 90 % |"
    ]
    lines.append("| --- " * 7 + "|")
    for row in rows:
        figures = [
            f"{row[name]:.2f}" for name in ("rank_correlation", "ratio_p10", "ratio_median", "ratio_p90")
        ]
        lines.append(f"| {row['space']} | {row['metric']} | {row['configs']} | {' | '.join(figures)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
