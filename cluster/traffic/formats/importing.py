"""A file of recorded traffic in, a trace and an account of its rows out."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from cluster.traffic.formats import (
    access_log,
    azure,
    burstgpt,
    langfuse,
    litellm,
    mooncake,
    otel,
    sharegpt,
    vllm_custom,
    vllm_log,
    vllm_timed,
)
from cluster.traffic.formats.measuring import Measuring
from cluster.traffic.formats.row import Dropped, Row, Rows
from cluster.traffic.formats.rows import head
from cluster.traffic.request import (
    BLOCK_TOKENS,
    MAX_TIMESTAMP_MS,
    MAX_TOKENS,
    Request,
    TraceError,
    nearest,
)
from cluster.traffic.spread import quantum, spread
from cluster.traffic.template import Render
from cluster.traffic.text import Encode
from cluster.traffic.trace import FAULTS_SHOWN, Trace, assemble
from cluster.traffic.turns import as_text

HASHED_BLOCK_TOKENS = 16
"""Block size for text: the smallest that engines cache in, so that no sharing is lost."""

MOST_BAD = 0.01
"""Share of bad rows up to which a file is still imported."""

_EARLY = 1000
"""Rows after which a file of which most are bad is given up."""

_LONGEST_S = MAX_TIMESTAMP_MS / 1000
"""A request that took longer is taken for a recorder's fault: its duration is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One way in which traffic is recorded."""

    recognises: Callable[[str], bool]
    """Whether a file that begins like this is of it."""
    rows: Callable[[Path], Rows]
    timed: bool = True
    """Whether its rows say when they arrived: all of them or none."""
    step_s: float | None = None
    """Resolution of its times, where it is known to be coarse; None: found out from the times."""
    own: bool = False
    """Whether it is a trace's own, whose session ids mean nothing outside of it and are kept."""


FORMATS: Mapping[str, Format] = {
    "vllm-timed": Format(recognises=vllm_timed.recognises, rows=vllm_timed.rows),
    "mooncake": Format(recognises=mooncake.recognises, rows=mooncake.rows, own=True),
    "azure": Format(recognises=azure.recognises, rows=azure.rows),
    "burstgpt": Format(recognises=burstgpt.recognises, rows=burstgpt.rows),
    "sharegpt": Format(recognises=sharegpt.recognises, rows=sharegpt.rows, timed=False),
    "vllm-custom": Format(recognises=vllm_custom.recognises, rows=vllm_custom.rows, timed=False),
    "otel": Format(recognises=otel.recognises, rows=otel.rows),
    "litellm": Format(recognises=litellm.recognises, rows=litellm.rows),
    "langfuse": Format(recognises=langfuse.recognises, rows=langfuse.rows),
    "access-log": Format(recognises=access_log.recognises, rows=access_log.rows),
    "vllm-log": Format(recognises=vllm_log.recognises, rows=vllm_log.rows, step_s=vllm_log.STEP_S),
}
"""Every format by its name; a file is taken for the first that recognises its beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What became of a file's rows: `read` is `kept` and all of `dropped`."""

    format: str
    read: int
    kept: int
    dropped: Mapping[str, int]
    """How many by reason."""
    examples: tuple[str, ...]
    """The first bad rows, `file:line: …`."""


@dataclass(slots=True)
class _Tally:
    """Rows so far."""

    path: Path
    format: str
    most_bad: float
    read: int = 0
    bad: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def add(self, made: Request | Dropped) -> None:
        """Count a row. Raises TraceError once it is plain that the file is not of its format."""
        self.read += 1
        if isinstance(made, Request):
            return
        self.dropped[made.reason] += 1
        self.bad += made.bad
        if made.bad and len(self.examples) < FAULTS_SHOWN:
            detail = f": {made.detail}" if made.detail else ""
            self.examples.append(f"{self.path}:{made.line}: {made.reason}{detail}")
        if self.read >= _EARLY and 2 * self.bad > self.read:
            self.judge()

    def judge(self) -> None:
        """Raise TraceError where more rows are bad than may be."""
        if self.bad > self.most_bad * self.read:
            bad = f"{self.bad} of {self.read} rows are bad as {self.format}"
            allowed = f"over the {self.most_bad:.0%} allowed"
            raise TraceError([f"{self.path}: {bad}, {allowed}", *self.examples])

    def report(self, name: str, kept: int) -> Report:
        """The account of all rows."""
        return Report(
            format=name,
            read=self.read,
            kept=kept,
            dropped=dict(self.dropped),
            examples=tuple(self.examples),
        )


def import_trace(
    path: Path,
    *,
    format: str | None = None,
    encode: Encode | None = None,
    render: Render = as_text,
    rate: float | None = None,
    keep_text: bool = False,
    block_tokens: int = HASHED_BLOCK_TOKENS,
    most_bad: float = MOST_BAD,
    seed: int = 0,
) -> tuple[Trace, Report]:
    """The trace of a file in one of the `FORMATS`.

    Args:
        path: the file; `.gz` is unpacked.
        format: its format's name; None: guessed from how it begins.
        encode: tokenizer that counts and hashes text; needed where the format has no lengths.
        render: the model's chat template; without it messages count as role and content in a row.
        rate: requests per second of Poisson arrivals, for formats that have no times; given for one
            that has, its times are not used.
        keep_text: whether literal text, and session ids as they were recorded, stay in the trace.
        block_tokens: block size for hashing text; formats that have blocks keep theirs.
        most_bad: share of bad rows up to which a file is still imported.
        seed: of the arrivals that are drawn or spread.

    Raises:
        TraceError: where the format is not known, the file cannot be read or has too many bad rows, or
            something that it lacks was not given.
    """
    if rate is not None and not 0 < rate < math.inf:
        raise TraceError([f"rate must be a positive number of requests per second, got {rate}"])
    name = _guess(path) if format is None else _known(format)
    form = FORMATS[name]
    if rate is None and not form.timed:
        raise TraceError([f"{path}: {name} has no times of arrival: give a rate in requests per second"])
    tally = _Tally(path, name, most_bad)
    measuring = Measuring(path, encode, render, block_tokens)
    requests: list[Request] = []
    sizes: set[int] = set()
    for row in measuring.rows(form.rows(path)):
        made = row if isinstance(row, Dropped) else _request(row, keep_text)
        tally.add(made)
        if isinstance(made, Request):
            requests.append(made)
            sizes |= {row.block_tokens} if isinstance(row, Row) and row.block_tokens else set()
    tally.judge()
    if not requests:
        raise TraceError([f"{path}: no requests in it as {name}", *tally.examples])
    if len(sizes) > 1:
        raise TraceError([f"{path}: block_size differs between its lines: {sorted(sizes)}"])
    notes = measuring.notes()
    requests = [
        replace(request, session_id=None) if measuring.is_alone(request.session_id) else request
        for request in requests
    ]
    if not form.own and not keep_text:
        requests = _renumbered(requests)
    timed = (
        _spread(requests, form.step_s, seed, notes) if rate is None else _drawn(requests, rate, seed, notes)
    )
    trace = assemble(timed, block_tokens=sizes.pop() if sizes else BLOCK_TOKENS, notes=notes)
    return trace, tally.report(name, len(requests))


def _guess(path: Path) -> str:
    begins = head(path)
    for name, form in FORMATS.items():
        if form.recognises(begins):
            return name
    raise TraceError([f"{path}: no format recognises it: name one of {', '.join(FORMATS)}"])


def _known(name: str) -> str:
    if name in FORMATS:
        return name
    near = nearest(name, list(FORMATS))
    hint = f"is it {near!r}?" if near else f"there are {', '.join(FORMATS)}"
    raise TraceError([f"unknown format {name!r}: {hint}"])


def _renumbered(requests: list[Request]) -> list[Request]:
    """The requests with session ids that tell nothing: numbers in order of appearance."""
    names: dict[str, str] = {}
    return [
        request
        if request.session_id is None
        else replace(request, session_id=names.setdefault(request.session_id, f"s{len(names)}"))
        for request in requests
    ]


def _request(row: Row, keep_text: bool) -> Request | Dropped:
    """The request that a row records, or why there is none."""
    if row.input_length is None or row.output_length is None:
        return Dropped(line=row.line, reason="no length", detail="neither usage nor text")
    if row.input_length == 0 or row.output_length == 0:
        return Dropped(line=row.line, reason="no tokens asked or given", bad=False)
    if max(row.input_length, row.output_length) > MAX_TOKENS:
        return Dropped(line=row.line, reason="length out of range", detail=f"over {MAX_TOKENS} tokens")
    return Request(
        arrival_s=row.at_s or 0.0,
        input_length=row.input_length,
        output_length=row.output_length,
        hash_ids=row.hash_ids,
        duration_s=row.duration_s if row.duration_s is not None and row.duration_s <= _LONGEST_S else None,
        session_id=row.session_id,
        prompt=row.prompt if keep_text else None,
        messages=row.messages if keep_text else None,
    )


def _drawn(requests: list[Request], rate: float, seed: int, notes: list[str]) -> list[Request]:
    """The requests in their order with Poisson arrivals, whatever arrivals they had."""
    notes.append(f"arrivals were drawn: Poisson at {rate:g} requests per second")
    requests = [replace(request, duration_s=None) for request in requests]  # it says nothing of drawn gaps
    random = np.random.Generator(np.random.PCG64(seed))
    return _placed(requests, np.cumsum(random.exponential(1 / rate, size=len(requests))).tolist())


def _spread(requests: list[Request], step_s: float | None, seed: int, notes: list[str]) -> list[Request]:
    """The requests in order of arrival, spread over what their recorder rounded away, if it did."""
    arrivals = [request.arrival_s for request in requests]
    late = sum(b < a for a, b in pairwise(arrivals))
    if late:
        notes.append("rows were out of order of arrival: sorted")
        requests = sorted(requests, key=lambda request: request.arrival_s)
        arrivals.sort()
    step = quantum(arrivals) if step_s is None else step_s
    if step is None:
        return requests
    notes.append(
        f"arrivals were rounded by their recorder ({len(requests)} requests on {len(set(arrivals))} "
        f"timestamps): spread at random over its step of {step:g} s"
    )
    return _placed(requests, spread(arrivals, step, seed=seed))


def _placed(requests: list[Request], arrivals_s: list[float]) -> list[Request]:
    return [replace(request, arrival_s=at) for request, at in zip(requests, arrivals_s, strict=True)]
