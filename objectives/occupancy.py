"""How full the engine was: batch slots, its queue and KV blocks, over one replay."""

from collections.abc import Sequence
from dataclasses import dataclass

from objectives.counters import growth, ratio, time_mean
from objectives.measurement import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """Means are over time. None where the engine does not say."""

    batch_mean: float | None
    """Requests in the batch."""
    batch_share: float | None
    """batch_mean over the batch's slots."""
    waiting_mean: float | None
    kv_mean: float | None
    kv_max: float | None
    """The largest reading; the true peak between two readings can be higher."""
    preemptions: float | None
    target_steps: float | None
    tokens_per_step: float | None
    """Tokens processed per forward pass, prompts included."""


def occupancy(
    samples: Sequence[Sample], *, start_s: float, end_s: float, max_num_seqs: int | None
) -> Occupancy:
    """Read gauges between two times, and counters from the first sample to the last."""
    batch = time_mean(samples, lambda sample: sample.running, start_s=start_s, end_s=end_s)
    steps = growth(samples, lambda sample: sample.target_steps_total)
    usages = [sample.kv_usage for sample in samples if sample.kv_usage is not None]
    return Occupancy(
        batch_mean=batch,
        batch_share=ratio(batch, max_num_seqs),
        waiting_mean=time_mean(samples, lambda sample: sample.waiting, start_s=start_s, end_s=end_s),
        kv_mean=time_mean(samples, lambda sample: sample.kv_usage, start_s=start_s, end_s=end_s),
        kv_max=max(usages) if usages else None,
        preemptions=growth(samples, lambda sample: sample.preemptions_total),
        target_steps=steps,
        tokens_per_step=ratio(growth(samples, lambda sample: sample.step_tokens_total), steps),
    )
