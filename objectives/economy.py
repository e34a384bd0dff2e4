"""What a measurement costs: per GPU, per unit of money, per joule. Pure."""

from collections.abc import Mapping

from objectives.measurement import Estimate

PER_GPU = ("goodput_rps", "goodput_tokens_per_s", "capacity_rps", "capacity_tokens_per_s")
"""Rates that are also given for each GPU of the trial, as `<name>_per_gpu`."""

COSTS = ("cost_per_million_tokens", "goodput_per_cost")
"""What `money` gives."""


def per_gpu(metrics: Mapping[str, Estimate], gpus: int) -> dict[str, Estimate]:
    """Each rate over the trial's GPUs; nothing for a trial that takes none."""
    if not gpus:
        return {}
    return {f"{name}_per_gpu": metrics[name].times(1 / gpus) for name in PER_GPU if name in metrics}


def money(metrics: Mapping[str, Estimate], gpus: int, gpu_hour_price: float | None) -> dict[str, Estimate]:
    """What good work costs at so much a GPU and hour; nothing without GPUs or a price.

    `cost_per_million_tokens`: of the output tokens that the hardware gives at its capacity; at the speed
    that was played, of those that met the SLO, where no capacity was looked for.
    `goodput_per_cost`: requests that met the SLO for one unit of money, at the speed that was played.
    """
    if not gpus or gpu_hour_price is None:
        return {}
    per_s = gpus * gpu_hour_price / 3600
    found = {}
    tokens = metrics.get("capacity_tokens_per_s", metrics.get("goodput_tokens_per_s"))
    if tokens is not None and tokens.value > 0:
        found["cost_per_million_tokens"] = tokens.inverse(1e6 * per_s)
    if "goodput_rps" in metrics:
        found["goodput_per_cost"] = metrics["goodput_rps"].times(1 / per_s)
    return found


def tokens_per_joule(output_tokens: int, energy_j: float | None) -> dict[str, Estimate]:
    """Output tokens over the energy of the replay that made them, idle time and prefill included."""
    if energy_j is None or energy_j <= 0:
        return {}
    return {"tokens_per_joule": Estimate(value=output_tokens / energy_j)}
