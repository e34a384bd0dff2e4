"""The simulated engine's figures, from a few measured configs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.calibrating.measured import MeasuredConfig, Pool, Run
from cluster.node.engine import EngineFailure
from cluster.node.simulation.settings import Assumptions, resolve
from cluster.node.simulation.speculation import DEFAULT_ACCEPTANCE, Acceptance, ngram_acceptance
from objectives.measurement import Record
from objectives.speculation import delivered_per_step, speculation
from objectives.step_fit import LEAST_TRIALS, Fitted, fit_steps
from search_spaces.accelerators import Accelerator
from search_spaces.step_model import Constants, table_constants
from search_spaces.values import Json

_LEAST_WAIT = 0.1
"""Quantile of what requests wait for outside the engine's queue and steps. The engine takes a new request
when its step is over, and begins to count then, so most of them wait for a step in progress as well; the
simulated engine has that wait itself, and only what serving adds is wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was found."""

    fitted: tuple[Fitted, ...]
    constants: Constants
    acceptance: Mapping[str, Acceptance]
    """By speculative method or draft model's name: those that were measured."""
    api_s: float | None
    """None where the engine does not say how long requests were in its queue and prefill."""
    device: Accelerator
    """As the table has it."""
    beside_kv: float | None
    """Bytes that the engine kept from its KV pool beyond what the simulated one works out; None where no
    pool was sized by the memory left, so that there is nothing to find out."""

    @property
    def assumptions(self) -> Assumptions:
        return Assumptions(
            accelerator=replace(self.device, rest=self.device.rest + (self.beside_kv or 0.0)),
            constants=self.constants,
            acceptance={**DEFAULT_ACCEPTANCE, **self.acceptance},
            api_s=self.api_s or 0.0,
        )


def calibrate(pool: Pool, chosen: Sequence[MeasuredConfig]) -> Calibration:
    """Fit on the first trial of each chosen config. At least three configs."""
    assert len(chosen) >= LEAST_TRIALS
    # Schemes that none of the chosen has keep what the table says of them.
    table = table_constants(pool.device, [config.first.steps.served for config in pool.configs])
    observations = [
        replace(one, trial=place)
        for place, config in enumerate(chosen)
        for one in config.first.steps.observations()
    ]
    fit = fit_steps(observations, table, draws=0)
    return Calibration(
        fitted=fit.fitted,
        constants=fit.constants,
        acceptance=_acceptance([config.first for config in chosen]),
        api_s=_api_s([config.first.records for config in chosen]),
        device=pool.device,
        beside_kv=_beside_kv(pool, chosen),
    )


def _api_s(replays: Sequence[Sequence[Record]]) -> float | None:
    least = [np.quantile(waits, _LEAST_WAIT) for records in replays if (waits := _outside_s(records))]
    return max(float(np.median(least)), 0.0) if least else None


def _outside_s(records: Sequence[Record]) -> list[float]:
    """Of each answered request its time to first token, less its time in the engine's queue and prefill."""
    return [
        record.chunk_s[0] - record.sent_s - record.server_queue_s - record.server_ttft_s
        for record in records
        if record.ok
        and record.sent_s is not None
        and record.server_queue_s is not None
        and record.server_ttft_s is not None
    ]


def _beside_kv(pool: Pool, chosen: Sequence[MeasuredConfig]) -> float | None:
    """Median over the configs whose pool is what memory leaves; a size that was asked for is as it is."""
    kept = []
    for config in chosen:
        had = config.first.trial.ran.effective.get("kv_blocks")
        try:
            worked_out = resolve(pool.order(config), Assumptions())
        except EngineFailure:
            continue  # nor will it be played
        if isinstance(had, int) and worked_out.kv_blocks == worked_out.fit.blocks:
            kept.append((worked_out.kv_blocks - had) * worked_out.fit.block)
    return float(np.median(kept)) if kept else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Luck:
    """How one trial's drafts fared."""

    drafts: float
    steps: float
    """Of sequences that could have had a draft."""
    reached: tuple[float, ...]
    """Drafts accepted up to and with each position."""
    lookup_min: int | None
    """Shortest match of n-gram lookup; None for other methods."""


def _acceptance(runs: Sequence[Run]) -> dict[str, Acceptance]:
    """Trials of one method, or of one draft model, together: by position, whatever their depths."""
    found: dict[str, list[_Luck]] = {}
    for run in runs:
        asked = run.trial.arguments.get("speculative_config")
        if isinstance(asked, dict) and (luck := _luck(run, asked)) is not None:
            found.setdefault(_draft_name(asked), []).append(luck)
    return {name: _pooled(lucks) for name, lucks in found.items()}


def _draft_name(asked: Mapping[str, Json]) -> str:
    """As `Assumptions.acceptance` is keyed."""
    model, method = asked.get("model"), asked.get("method")
    if isinstance(model, str):
        return model.rstrip("/").rpartition("/")[2]
    return method if isinstance(method, str) else "draft_model"


def _luck(run: Run, asked: Mapping[str, Json]) -> _Luck | None:
    """None where the engine did not count drafts by position, or there was none."""
    counted = speculation(run.samples, run.records)
    positions, drafts = counted.accepted_per_position, counted.drafts
    per_step = delivered_per_step(run.records, counted, speculates=True)
    if not positions or not drafts or not per_step:
        return None
    tokens = sum(record.chunk_tokens[-1] - 1 for record in run.records if record.chunk_tokens)
    shortest = asked.get("prompt_lookup_min") or asked.get("prompt_lookup_max")
    return _Luck(
        drafts=drafts,
        steps=max(tokens / per_step, drafts),
        reached=tuple(drafts * share for share in positions),
        lookup_min=(shortest if isinstance(shortest, int) else 5) if asked.get("method") == "ngram" else None,
    )


def _pooled(lucks: Sequence[_Luck]) -> Acceptance:
    deepest = max(len(luck.reached) for luck in lucks)
    positions = []
    for place in range(deepest):
        mine = [luck for luck in lucks if len(luck.reached) > place]
        positions.append(sum(luck.reached[place] for luck in mine) / sum(luck.drafts for luck in mine))
    # Trials of other depths join at other positions; a later one is accepted only if those before it were.
    positions = np.minimum.accumulate(positions).tolist()
    tried = sum(luck.drafts + sum(luck.reached[:-1]) for luck in lucks)
    accepted = sum(sum(luck.reached) for luck in lucks)
    measured = Acceptance(
        rate=accepted / tried,
        found=sum(luck.drafts for luck in lucks) / sum(luck.steps for luck in lucks),
        positions=tuple(positions),
    )
    shortest = [luck.lookup_min for luck in lucks if luck.lookup_min is not None]
    return ngram_acceptance(measured, 2, known_at=round(np.mean(shortest))) if shortest else measured
