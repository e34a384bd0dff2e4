"""Three plain questions, answered from the runs or not at all."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from cluster.node.engine import EngineFailure
from cluster.node.simulation.settings import describe
from cluster.traffic.trace import Trace
from objectives.effects import Effect
from objectives.factorial import Cell
from search_spaces.factors import Factor
from search_spaces.roofline import kv_bytes_per_token, kv_share, weight_bytes
from search_spaces.schemes import SchemeMismatch, served_scheme
from search_spaces.settings import Settings, at
from tuner.ablation.readings import NONE, STEP, Readings, effect_report, speculating
from tuner.ablation.report import AnswerReport
from tuner.ablation.words import matters, times
from tuner.mistakes import Mistake
from tuner.models import local_model
from tuner.titles import number

KV = "Did quantisation make the KV cache the larger cost?"
DECODE = "Did the prefix cache change decode, or only prefill and admission?"
BATCH = "At what batch does speculation stop paying?"

_CLEAR = 1.25
"""Ratio of two costs from which on one is called the larger: context and batch are means."""
_NOTHING = 1.05
"""An effect whose whole interval lies within this ratio either way is called none."""
_HITS = 0.01
"""Prefix hits below this share are none."""


def answers(readings: Readings, trace: Trace) -> tuple[AnswerReport, ...]:
    """All three, in a fixed order."""
    return (larger_cost(readings, trace), decode(readings), break_even(readings))


def _cannot(question: str, why: str) -> AnswerReport:
    return AnswerReport(question=question, known=False, answer=f"Cannot tell from these runs: {why}.")


def _known(question: str, answer: str) -> AnswerReport:
    return AnswerReport(question=question, known=True, answer=answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bytes:
    """What a decode step of one rank reads, on average."""

    weights: float
    kv_of_one: float
    """Of one sequence, at the trace's mean context."""
    fewest: float
    most: float
    """Sequences in a step, on average."""

    @property
    def larger(self) -> str | None:
        """None: about equal, or it hangs on how many decode."""
        if self.kv_of_one * self.fewest >= _CLEAR * self.weights:
            return "KV cache"
        return "weights" if self.weights >= _CLEAR * self.kv_of_one * self.most else None

    @property
    def text(self) -> str:
        kv = [_size(self.kv_of_one * many) for many in (self.fewest, self.most)]
        many = [number(self.fewest), number(self.most)]
        return (
            f"{_size(self.weights)} of weights and {' to '.join(dict.fromkeys(kv))} of KV "
            f"({' to '.join(dict.fromkeys(many))} sequences)"
        )


def larger_cost(readings: Readings, trace: Trace) -> AnswerReport:
    """By the bytes that a decode step reads: of the checkpoint, and of the contexts of what decodes."""
    factor = _factor(readings, "quantisation")
    if factor is None:
        return _cannot(KV, "quantisation is not among the factors")
    cell = frozenset({factor.name})
    context = _context(trace)
    found = []
    for one in (NONE, cell):
        many = _decoding(readings, one)
        if many is None:
            return _cannot(KV, f"how many sequences decode in cell {readings.plan.name(one)} is not known")
        read = _read(readings.plan.settings(one), many, context)
        if read is None:
            return _cannot(KV, "there are no figures for the size of the checkpoint or of its KV cache")
        found.append(read)
    before, after = found
    if before.larger is None or after.larger is None:
        return _cannot(
            KV,
            "the two are about equal, or which is larger hangs on how much of the batch decodes: a decode "
            f"step reads {before.text} without and {after.text} with it",
        )
    told = (
        f"a decode step reads {before.text} without and {after.text} with it, at contexts of "
        f"{context:.0f} tokens on average"
    )
    how = "Reckoned from the checkpoint and the sequences measured; bytes read, not time"
    match before.larger, after.larger:
        case "weights", "KV cache":
            return _known(KV, f"Yes: {told}. {how}.")
        case "KV cache", "KV cache":
            return _known(KV, f"No, it was the larger cost before: {told}. {how}.")
        case _:
            return _known(KV, f"No, the weights are the larger cost: {told}. {how}.")


def decode(readings: Readings) -> AnswerReport:
    """By what the prefix cache does to TTFT, and to TPOT and the time of a step."""
    factor = _factor(readings, "prefix-cache")
    if factor is None or not any(change.setting == "enable_prefix_caching" for change in factor.changes):
        return _cannot(DECODE, "switching the prefix cache is not among the factors")
    on = next(change.on for change in factor.changes if change.setting == "enable_prefix_caching")
    rates = [
        rate
        for cell in readings.measured
        if (factor.name in cell) is (on is not False)
        and (rate := readings.mean(cell, "prefix_hit_rate")) is not None
    ]
    if not rates:
        return _cannot(DECODE, "prefix hits were not counted")
    if max(rates) < _HITS:
        return _cannot(
            DECODE, f"there were next to no prefix hits ({max(rates):.1%}), so there was nothing to change"
        )
    ttft, tpot, step = (
        _average(readings, factor.name, name) for name in ("ttft_mean_s", "tpot_mean_s", STEP)
    )
    if ttft is None or tpot is None:
        return _cannot(DECODE, "its effect on TTFT or TPOT cannot be estimated")
    told = f"TTFT {_times(ttft)}, TPOT {_times(tpot)}" + (
        "" if step is None else f", step time {_times(step)}"
    )
    if tpot.low is None or tpot.high is None:
        return _cannot(DECODE, f"no cell was measured twice ({told})")
    if tpot.told and not _none(tpot):
        return _known(
            DECODE,
            f"It changed the time per output token too: {told}. Steps of decode are shared with prefill, so "
            "fewer prefill tokens beside them and another batch are in this; reads of the cached keys and "
            "values are the same with and without hits.",
        )
    if not _none(tpot):
        return _cannot(DECODE, f"the interval of TPOT leaves room for more than 5 % either way ({told})")
    if hidden := _hidden(readings, factor.name, "tpot_mean_s"):
        return _cannot(DECODE, f"on average TPOT is as it was, but {hidden} ({told})")
    if not ttft.told:
        return _cannot(DECODE, f"no effect on TTFT is told from none either ({told})")
    return _known(DECODE, f"Only prefill and admission: {told}; TPOT changed by less than 5 %, if at all.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """Speculation on and off, all else equal."""

    batch: float
    """Mean batch of the cell without."""
    tpot: Effect


def break_even(readings: Readings) -> AnswerReport:
    """By TPOT with and without speculation, in pairs of cells ordered by their batch."""
    name = speculating(readings.plan)
    if name is None:
        return _cannot(BATCH, "switching speculation on is not among the factors")
    pairs = sorted(_pairs(readings, name), key=lambda pair: pair.batch)
    if not pairs:
        return _cannot(BATCH, "no pair of cells with and without it has a TPOT and a batch")
    if any(pair.tpot.low is None for pair in pairs):
        return _cannot(BATCH, "no cell was measured twice")
    batches = (
        f"batch {number(pairs[0].batch)}"
        if pairs[0].batch == pairs[-1].batch
        else f"batches of {number(pairs[0].batch)} to {number(pairs[-1].batch)}"
    )
    more = "higher and lower speeds, with all other factors held, would tell"
    pays = [pair for pair in pairs if pair.tpot.told and pair.tpot.ratio < 1]
    costs = [pair for pair in pairs if pair.tpot.told and pair.tpot.ratio > 1]
    if len(pays) == len(pairs):
        return _cannot(
            BATCH,
            f"it paid in every pair, at {batches} (TPOT {_range(pairs)}), so the batch where it stops lies "
            f"above; replays at higher speeds would tell",
        )
    if len(costs) == len(pairs):
        return _known(
            BATCH,
            f"Below the smallest batch seen, if anywhere: it cost TPOT in every pair, at {batches} "
            f"(TPOT {_range(pairs)}).",
        )
    if pays and costs and pays[-1].batch < costs[0].batch:
        return _known(
            BATCH,
            f"Between {number(pays[-1].batch)} and {number(costs[0].batch)} in the batch, as far as these "
            f"cells tell: TPOT {_times(pays[-1].tpot)} at the one and {_times(costs[0].tpot)} at the other. "
            "The cells differ in the other factors too, which may be part of it.",
        )
    return _cannot(
        BATCH,
        f"at {batches} it paid in {len(pays)} and cost in {len(costs)} of {len(pairs)} pairs (TPOT "
        f"{_range(pairs)}), in no order of the batch that is told; {more}",
    )


def _pairs(readings: Readings, name: str) -> Iterator[_Pair]:
    for cell in readings.measured:
        if name in cell:
            continue
        batch = readings.mean(cell, "batch_mean")
        effect = readings.against(cell, "tpot_mean_s").get(cell | {name})
        if batch and effect is not None:
            yield _Pair(batch=batch, tpot=effect)


def _range(pairs: list[_Pair]) -> str:
    ratios = [pair.tpot.ratio for pair in pairs]
    return f"×{number(min(ratios))} to ×{number(max(ratios))}"


def _factor(readings: Readings, name: str) -> Factor | None:
    return next((factor for factor in readings.plan.factors if factor.name == name), None)


def _average(readings: Readings, name: str, metric: str) -> Effect | None:
    """On average over the others; alone where that cannot be told."""
    effects = readings.effects(metric)
    if effects is None:
        return None
    return effects.factors[name].average or effects.factors[name].isolated


def _hidden(readings: Readings, name: str, metric: str) -> str | None:
    """What an average that is nothing may hide: an effect that hangs on another factor."""
    effects = readings.effects(metric)
    assert effects is not None
    for pair in effects.interactions:
        told = effect_report(pair.effect)
        if name in pair.pair and told is not None and matters(told):
            return f"what it does hangs on {next(iter(set(pair.pair) - {name}))}"
    mine = effects.factors[name]
    for where, effect in (("alone", mine.isolated), ("with all others on", mine.in_company)):
        if effect is not None and effect.told and not _none(effect):
            return f"{where} it is {_times(effect)}"
    return None


def _none(effect: Effect) -> bool:
    assert effect.low is not None
    assert effect.high is not None
    return effect.low >= 1 / _NOTHING and effect.high <= _NOTHING


def _times(effect: Effect) -> str:
    told = effect_report(effect)
    assert told is not None
    return times(told)


def _context(trace: Trace) -> float:
    """Mean context of a decode step and sequence: each request counts with as many steps as it has tokens."""
    steps = sum(request.output_length for request in trace.requests)
    tokens = sum(
        request.output_length * (request.input_length + request.output_length / 2)
        for request in trace.requests
    )
    return tokens / steps if steps else 0.0


_DTYPES = {"auto": "bfloat16", "half": "float16", "float": "float32"}


def _decoding(readings: Readings, cell: Cell) -> tuple[float, float] | None:
    """Sequences in a decode step, from below and above.

    By Little's law, rate times the time from first token to last; and the batch, in which some prefill. Both
    are means over time, idle time in them, and a step has at least one sequence: taken for Poisson numbers,
    their mean where they are not 0 is m / (1 - exp(-m)).
    """
    rate, batch = readings.mean(cell, "throughput_rps"), readings.mean(cell, "batch_mean")
    e2e, ttft = readings.mean(cell, "e2e_mean_s"), readings.mean(cell, "ttft_mean_s")
    if not rate or not batch or e2e is None or ttft is None or e2e <= ttft:
        return None
    found = rate * (e2e - ttft)
    ends = sorted(mean / -math.expm1(-mean) for mean in (found, batch))
    return ends[0], ends[1]


def _read(settings: Settings, many: tuple[float, float], context: float) -> _Bytes | None:
    """None where there are no figures for the model or a type."""
    given = settings.arguments
    dtype, kv_dtype = (str(given.get(name) or "auto") for name in ("dtype", "kv_cache_dtype"))
    dtype = _DTYPES.get(dtype, dtype)
    quantization = given.get("quantization")
    ranks = at(given, "tensor_parallel_size")
    ranks = ranks if isinstance(ranks, int) and ranks > 0 else 1
    try:
        shape, checkpoint = describe(local_model(settings.model))
        scheme = served_scheme(quantization if isinstance(quantization, str) else None, checkpoint)
        return _Bytes(
            weights=weight_bytes(shape, scheme, dtype) / ranks,
            kv_of_one=context
            * kv_bytes_per_token(shape, dtype if kv_dtype == "auto" else kv_dtype)
            * kv_share(shape, ranks),
            fewest=many[0],
            most=many[1],
        )
    except (EngineFailure, SchemeMismatch, KeyError, Mistake):
        return None


def _size(size: float) -> str:
    for power, unit in ((3, "GB"), (2, "MB"), (1, "kB")):
        if size >= 1000**power:
            return f"{number(size / 1000**power)} {unit}"
    return f"{number(size)} B"
