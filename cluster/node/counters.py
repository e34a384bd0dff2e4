"""`/metrics` of every vLLM from 0.8 to 0.33 as Samples: one table of names, and what changed behind a name.

A counter that the engine does not have is None, never 0: speculation that is off has no counters at all.
Source: the metrics of 29 released wheels compared, and vllm/v1/metrics/loggers.py of 0.32.0.
"""

import enum
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from objectives.measurement import Histogram, Sample


class Fold(enum.Enum):
    """How the readings of several engines (data parallel) become one."""

    SUM = enum.auto()
    MEAN = enum.auto()
    """For shares: two engines half full are half full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a field of Sample is found: the first of the names that is there wins."""

    field: str
    names: tuple[str, ...]
    fold: Fold = Fold.SUM
    label: str | None = None
    """The label that orders a tuple's values from 0 on; None for a field with one value."""


def _counter(name: str) -> tuple[str, str]:
    """Both spellings of a counter: the client library adds the suffix on the wire, other writers may not."""
    return f"vllm:{name}_total", f"vllm:{name}"


SOURCES = (
    Source(field="running", names=("vllm:num_requests_running",)),
    Source(field="waiting", names=("vllm:num_requests_waiting",)),
    Source(
        field="kv_usage",
        names=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),  # the second until 0.12
        fold=Fold.MEAN,
    ),
    Source(field="preemptions_total", names=_counter("num_preemptions")),
    Source(field="prompt_tokens_total", names=_counter("prompt_tokens")),
    Source(field="generation_tokens_total", names=_counter("generation_tokens")),
    # The histogram's own name ends in _total; it observes each step that gave any request an output, so steps
    # that only prefill part of a prompt are not among them.
    Source(field="target_steps_total", names=("vllm:iteration_tokens_total_count",)),
    Source(field="step_tokens_total", names=("vllm:iteration_tokens_total_sum",)),
    Source(
        field="prefix_queries_total",
        names=(*_counter("prefix_cache_queries"), *_counter("gpu_prefix_cache_queries")),  # gpu_ until 0.12
    ),
    Source(
        field="prefix_hits_total",
        names=(*_counter("prefix_cache_hits"), *_counter("gpu_prefix_cache_hits")),
    ),
    Source(field="drafts_total", names=_counter("spec_decode_num_drafts")),
    Source(field="draft_tokens_total", names=_counter("spec_decode_num_draft_tokens")),
    Source(field="accepted_tokens_total", names=_counter("spec_decode_num_accepted_tokens")),
    Source(
        field="accepted_per_position_total",
        names=_counter("spec_decode_num_accepted_tokens_per_pos"),
        label="position",
    ),
    Source(field="queue_time_s_total", names=("vllm:request_queue_time_seconds_sum",)),
    Source(field="inference_time_s_total", names=("vllm:request_inference_time_seconds_sum",)),
    # Engines of one model do equal shares of its work, so "per GPU" is the mean over them.
    Source(field="flops_total", names=_counter("estimated_flops_per_gpu"), fold=Fold.MEAN),
    Source(field="read_bytes_total", names=_counter("estimated_read_bytes_per_gpu"), fold=Fold.MEAN),
    Source(field="write_bytes_total", names=_counter("estimated_write_bytes_per_gpu"), fold=Fold.MEAN),
    Source(field="finished_total", names=_counter("request_success")),  # over all reasons to finish
)

# Histograms: the first of the names that is there wins.
_TTFT = ("vllm:time_to_first_token_seconds",)
# The second until 0.15.0, and the only one until 0.10.1: by its name per token, in fact per step too.
_ITL = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
_TPOT = ("vllm:request_time_per_output_token_seconds",)  # since 0.11.0
_E2E = ("vllm:e2e_request_latency_seconds",)

_CACHE_CONFIG = "vllm:cache_config_info"
_WANTED = frozenset(name for source in SOURCES for name in source.names)
_OF_HISTOGRAMS = frozenset(
    f"{name}_{part}" for name in (*_TTFT, *_ITL, *_TPOT, *_E2E) for part in ("bucket", "sum")
)

_STEP_TOKENS_COMPUTED = "0.23.0"
_HITS_COUNTED_ONCE = "0.27.1"
_HITS_WITHOUT_PREEMPTED = "0.11.2"
_HITS_IN_TOKENS = "0.9.2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One line of the exposition format."""

    name: str
    labels: Mapping[str, str]
    value: float


def read_sample(text: str, at_s: float, version: str | None = None, *, histograms: bool = False) -> Sample:
    """One scrape of `/metrics` as a Sample.

    Args:
        text: the body, in Prometheus's text format.
        at_s: when it was read, on the replay's clock.
        version: vLLM's. Before 0.23.0 the step tokens counted whole prompts, cache hits included; that is
            not what the field means, so it is None there, and where the version is not known.
        histograms: whether to read those of latencies too: a hundred lines more.
    """
    found: dict[str, list[Reading]] = {}
    for reading in readings(text, _WANTED | _OF_HISTOGRAMS if histograms else _WANTED):
        found.setdefault(reading.name, []).append(reading)
    values: dict[str, float | None] = {}
    positions: tuple[float, ...] | None = None
    for source in SOURCES:
        name = next((name for name in source.names if name in found), None)
        if name is None:
            continue
        if source.label is not None:
            positions = _ordered(found[name], source.label)
        else:
            values[source.field] = _folded(found[name], source.fold)
    if not _since(version, _STEP_TOKENS_COMPUTED):
        values["step_tokens_total"] = None
    return Sample(
        at_s=at_s,
        accepted_per_position_total=positions,
        ttft_histogram=_histogram(found, _TTFT),
        itl_histogram=_histogram(found, _ITL),
        tpot_histogram=_histogram(found, _TPOT),
        e2e_histogram=_histogram(found, _E2E),
        **values,
    )


def cache_config(text: str) -> Mapping[str, str]:
    """The engine's cache settings as it prints them: `num_gpu_blocks`, `block_size`, ….

    Empty if it prints none. Of several engines the first, since all have the same arguments.
    """
    first = next(readings(text, {_CACHE_CONFIG}), None)
    return {} if first is None else first.labels


def caveats(version: str | None) -> tuple[str, ...]:
    """What a reader of this version's counters must know, one sentence each."""
    if version is None or _VERSION.match(version) is None:
        return (
            "The engine's version is unknown, so counters may mean other than their names say; "
            "its tokens per step are left out.",
        )
    changes = (
        (
            _STEP_TOKENS_COMPUTED,
            "counts whole prompts in its tokens per step, cache hits included: they are left out",
        ),
        (
            _HITS_COUNTED_ONCE,
            "counts prefix-cache lookups again each step that a request waits for admission: the counted hit "
            "rate is biased whenever the KV cache is full",
        ),
        (_HITS_WITHOUT_PREEMPTED, "counts the recomputation of preempted requests as prefix-cache hits"),
        (
            _HITS_IN_TOKENS,
            "may count prefix-cache lookups in blocks: their ratio holds, their size does not",
        ),
    )
    return tuple(f"vLLM {version} {what}." for since, what in changes if _before(version, since))


def readings(text: str, wanted: Iterable[str]) -> Iterator[Reading]:
    """The lines with these names, in order; a line that cannot be read is left out.

    Names are compared before anything is parsed, since a scrape has hundreds of lines for the dozen wanted.
    """
    names = frozenset(wanted)
    for line in text.split("\n"):
        head = line.partition(" ")[0]
        name = head.partition("{")[0]
        if name in names and (reading := _reading(name, line[len(name) :])) is not None:
            yield reading


_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
_ESCAPED = re.compile(r"\\(.)")


def _reading(name: str, rest: str) -> Reading | None:
    """Labels, value and an optional time stamp, after the name."""
    labels: dict[str, str] = {}
    if rest.startswith("{"):
        inside, closed, rest = rest[1:].rpartition("}")  # neither a value nor a time stamp has a brace
        if not closed:
            return None
        labels = {label: _ESCAPED.sub(_unescaped, value) for label, value in _LABEL.findall(inside)}
    fields = rest.split()
    if not fields:
        return None
    try:
        value = float(fields[0])  # reads NaN, +Inf and -Inf as the format writes them
    except ValueError:
        return None
    return Reading(name=name, labels=labels, value=value)


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def _folded(found: list[Reading], fold: Fold) -> float | None:
    total = sum(reading.value for reading in found)
    if not math.isfinite(total):
        return None
    return total / len(found) if fold is Fold.MEAN else total


def _ordered(found: list[Reading], label: str) -> tuple[float, ...] | None:
    """Sums by the label's number; None unless those are 0, 1, 2, … without a gap."""
    sums: dict[int, float] = {}
    for reading in found:
        position = reading.labels.get(label, "")
        if not position.isdecimal() or not math.isfinite(reading.value):
            return None
        sums[int(position)] = sums.get(int(position), 0.0) + reading.value
    if sorted(sums) != list(range(len(sums))):
        return None
    return tuple(sums[position] for position in range(len(sums)))


def _histogram(found: Mapping[str, list[Reading]], names: tuple[str, ...]) -> Histogram | None:
    """Buckets by their bounds, summed over engines.

    None where it is not there or cannot be one: without a bucket for everything, or with counts that fall.
    """
    name = next((name for name in names if f"{name}_bucket" in found), None)
    if name is None:
        return None
    total = _folded(found[f"{name}_sum"], Fold.SUM) if f"{name}_sum" in found else None
    counts: dict[float, float] = {}
    for reading in found[f"{name}_bucket"]:
        try:
            bound = float(reading.labels.get("le", ""))
        except ValueError:
            return None
        if math.isnan(bound):
            return None
        counts[bound] = counts.get(bound, 0.0) + reading.value
    bounds = sorted(counts)
    up_to = tuple(counts[bound] for bound in bounds)
    if total is None or bounds[-1] != math.inf:
        return None
    if not all(math.isfinite(count) for count in up_to) or list(up_to) != sorted(up_to):
        return None
    return Histogram(bounds=tuple(bounds), counts=up_to, sum=total)


_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?P<early>\.?(?:a|b|rc|dev)\d*)?")


def _since(version: str | None, release: str) -> bool:
    """Whether a version is known to be this release or a later one."""
    return version is not None and _VERSION.match(version) is not None and not _before(version, release)


def _before(version: str, since: str) -> bool:
    """Whether a version is older than a release; one that cannot be read is not known to be.

    A release candidate or development build of that release counts as older: it may lack the change.
    """
    match = _VERSION.match(version)
    if match is None:
        return False
    release = tuple(int(part or 0) for part in match.groups()[:3])
    target = tuple(map(int, since.split(".")))
    return release < target or (release == target and match["early"] is not None)
