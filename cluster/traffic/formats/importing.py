"""A file of recorded traffic in, a trace and an account of its rows out."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from cluster.traffic.blocks import BlockIds
from cluster.traffic.formats import access_log, azure, burstgpt, mooncake, sharegpt, vllm_custom
from cluster.traffic.formats.row import Dropped, Row, Rows
from cluster.traffic.request import BLOCK_TOKENS, MAX_TOKENS, Message, Request, TraceError, nearest
from cluster.traffic.spread import quantum, spread
from cluster.traffic.text import Encode
from cluster.traffic.trace import FAULTS_SHOWN, Trace, assemble

HASHED_BLOCK_TOKENS = 16
"""Block size for text: the smallest that engines cache in, so that no sharing is lost."""

_HEAD_BYTES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One way in which traffic is recorded."""

    recognises: Callable[[str], bool]
    """Whether a file that begins like this is of it."""
    rows: Callable[[Path], Rows]
    timed: bool = True
    """Whether its rows say when they arrived: all of them or none."""


FORMATS: Mapping[str, Format] = {
    "mooncake": Format(recognises=mooncake.recognises, rows=mooncake.rows),
    "azure": Format(recognises=azure.recognises, rows=azure.rows),
    "burstgpt": Format(recognises=burstgpt.recognises, rows=burstgpt.rows),
    "sharegpt": Format(recognises=sharegpt.recognises, rows=sharegpt.rows, timed=False),
    "vllm-custom": Format(recognises=vllm_custom.recognises, rows=vllm_custom.rows, timed=False),
    "access-log": Format(recognises=access_log.recognises, rows=access_log.rows),
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
    read: int = 0
    bad: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def drop(self, row: Dropped) -> None:
        self.dropped[row.reason] += 1
        self.bad += row.bad
        if row.bad and len(self.examples) < FAULTS_SHOWN:
            detail = f": {row.detail}" if row.detail else ""
            self.examples.append(f"{self.path}:{row.line}: {row.reason}{detail}")

    def report(self, name: str, kept: int) -> Report:
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
    rate: float | None = None,
    keep_text: bool = False,
    block_tokens: int = HASHED_BLOCK_TOKENS,
    most_bad: float = 0.01,
    seed: int = 0,
) -> tuple[Trace, Report]:
    """The trace of a file in one of the `FORMATS`.

    Args:
        path: the file.
        format: its format's name; None: guessed from how it begins.
        encode: tokenizer that counts and hashes text; needed where the format has no lengths.
        rate: requests per second of Poisson arrivals, for formats that have no times; given for one
            that has, its times are not used.
        keep_text: whether literal text stays in the trace.
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
    if rate is None and not FORMATS[name].timed:
        raise TraceError([f"{path}: {name} has no times of arrival: give a rate in requests per second"])
    tally = _Tally(path)
    requests: list[Request] = []
    sizes: set[int] = set()
    notes: list[str] = []
    for row in _measured(FORMATS[name].rows(path), path, encode, BlockIds(block_tokens), notes):
        tally.read += 1
        made = row if isinstance(row, Dropped) else _request(row, keep_text)
        if isinstance(made, Dropped):
            tally.drop(made)
        else:
            requests.append(made)
            sizes |= {row.block_tokens} if isinstance(row, Row) and row.block_tokens else set()
    if tally.bad > most_bad * tally.read:
        share = f"{tally.bad} of {tally.read} rows are bad as {name}, over the {most_bad:.0%} allowed"
        raise TraceError([f"{path}: {share}", *tally.examples])
    if not requests:
        raise TraceError([f"{path}: no requests in it as {name}", *tally.examples])
    if len(sizes) > 1:
        raise TraceError([f"{path}: block_size differs between its lines: {sorted(sizes)}"])
    timed = _spread(requests, seed, notes) if rate is None else _drawn(requests, rate, seed, notes)
    trace = assemble(timed, block_tokens=sizes.pop() if sizes else BLOCK_TOKENS, notes=notes)
    return trace, tally.report(name, len(requests))


def _guess(path: Path) -> str:
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES).decode("utf-8-sig", errors="replace")
    except OSError as error:
        raise TraceError([f"{path}: cannot be read: {error.strerror or error}"]) from error
    for name, form in FORMATS.items():
        if form.recognises(head):
            return name
    raise TraceError([f"{path}: no format recognises it: name one of {', '.join(FORMATS)}"])


def _known(name: str) -> str:
    if name in FORMATS:
        return name
    near = nearest(name, list(FORMATS))
    hint = f"is it {near!r}?" if near else f"there are {', '.join(FORMATS)}"
    raise TraceError([f"unknown format {name!r}: {hint}"])


def _measured(rows: Rows, path: Path, encode: Encode | None, hashing: BlockIds, notes: list[str]) -> Rows:
    """The rows, those with text given the lengths that they lack and the blocks that they are of.

    Raises:
        TraceError: where a length must be counted and there is no tokenizer to do it.
    """
    unhashed = False
    for row in rows:
        if isinstance(row, Dropped) or row.hash_ids or (row.prompt is None and row.messages is None):
            yield row
        elif encode is not None:
            yield _counted(row, encode, hashing)
        elif row.input_length is None or row.output_length is None:
            raise TraceError(
                [f"{path}:{row.line}: its tokens must be counted: give a model, for its tokenizer"]
            )
        else:
            unhashed = True
            yield row
    if unhashed:
        notes.append("prefix sharing was not found out: that needs a model, for its tokenizer")


def _counted(row: Row, encode: Encode, hashing: BlockIds) -> Row:
    tokens = encode(row.prompt if row.prompt is not None else _as_text(row.messages or ()))
    length = len(tokens) if row.input_length is None else row.input_length
    output = row.output_length
    if output is None and row.answer is not None:
        output = len(encode(row.answer))
    # A length out of range is dropped by what follows; making its blocks first would only cost memory.
    ids = hashing.of(tokens, length=length) if length <= MAX_TOKENS else ()
    return replace(
        row, input_length=length, output_length=output, hash_ids=ids, block_tokens=hashing.block_tokens
    )


def _as_text(messages: Iterable[Message]) -> str:
    """Messages in a row. A model's own template would differ, but shares where this does."""
    return "".join(f"{message.role}\n{message.content}\n" for message in messages)


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
        session_id=row.session_id,
        prompt=row.prompt if keep_text else None,
        messages=row.messages if keep_text else None,
    )


def _drawn(requests: list[Request], rate: float, seed: int, notes: list[str]) -> list[Request]:
    """The requests in their order with Poisson arrivals, whatever arrivals they had."""
    notes.append(f"arrivals were drawn: Poisson at {rate:g} requests per second")
    random = np.random.Generator(np.random.PCG64(seed))
    return _placed(requests, np.cumsum(random.exponential(1 / rate, size=len(requests))).tolist())


def _spread(requests: list[Request], seed: int, notes: list[str]) -> list[Request]:
    """The requests in order of arrival, spread over what their recorder rounded away, if it did."""
    arrivals = [request.arrival_s for request in requests]
    late = sum(b < a for a, b in pairwise(arrivals))
    if late:
        notes.append("rows were out of order of arrival: sorted")
        requests = sorted(requests, key=lambda request: request.arrival_s)
        arrivals.sort()
    step = quantum(arrivals)
    if step is None:
        return requests
    notes.append(
        f"arrivals were rounded by their recorder ({len(requests)} requests on {len(set(arrivals))} "
        f"timestamps): spread at random over its step of {step:g} s"
    )
    return _placed(requests, spread(arrivals, step, seed=seed))


def _placed(requests: list[Request], arrivals_s: list[float]) -> list[Request]:
    return [replace(request, arrival_s=at) for request, at in zip(requests, arrivals_s, strict=True)]
