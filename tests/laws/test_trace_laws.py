"""Laws of traces: what holds for any of them."""

import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.traffic.formats.importing import FORMATS, Report, import_trace
from cluster.traffic.prefixes import shared_tokens
from cluster.traffic.trace import Message, Request, Trace, TraceError, assemble, read_trace, write_trace
from cluster.traffic.workload import Workload, materialise
from tests.cluster.traffic.encoding import letters, words

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
chats = st.lists(st.builds(Message, role=texts, content=st.text(st.characters(codec="utf-8"))), min_size=1)


@st.composite
def traces(draw: st.DrawFn, *, ids: st.SearchStrategy[int] | None = None, literal: bool = True) -> Trace:
    """Any trace: few ids, so that prefixes are shared, in blocks of any size."""
    block = draw(st.sampled_from([1, 3, 16, 512]))
    one_id = ids if ids is not None else st.one_of(st.integers(0, 3), st.integers(0, 2**63 - 1))
    requests: list[Request] = []
    for _ in range(draw(st.integers(1, 6))):
        length = draw(st.integers(1, 4 * block))
        blocks = math.ceil(length / block)
        requests.append(
            Request(
                arrival_s=draw(st.integers(0, 10**9)) / 1e6,
                input_length=length,
                output_length=draw(st.integers(1, 1000)),
                hash_ids=draw(st.just(()) | st.tuples(*[one_id] * blocks)),
                duration_s=draw(st.none() | st.integers(0, 10**9).map(lambda us: us / 1e6)),
                session_id=draw(st.none() | texts),
                prompt=(prompt := draw(st.none() | texts) if literal else None),
                messages=draw(st.none() | chats.map(tuple)) if literal and prompt is None else None,
            )
        )
    # With no blocks in it a trace says nothing of their size to a reader unless it is written down.
    return assemble(requests, block_tokens=block)


@given(traces())
def test_reading_what_was_written_gives_it_back(trace: Trace) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "t.jsonl"
        write_trace(trace, path)
        assert read_trace(path) == trace


@given(traces(), st.randoms())
def test_order_and_origin_of_the_lines_do_not_matter_to_the_traffic(trace: Trace, random: object) -> None:
    later = [
        Request(**{**{f: getattr(r, f) for f in Request.__slots__}, "arrival_s": r.arrival_s + 1.5})
        for r in trace.requests
    ]
    assert assemble(later, block_tokens=trace.block_tokens).digest == trace.digest


@settings(deadline=None)
@given(traces(ids=st.integers(0, 5), literal=False), st.integers(0, 3))
def test_prompts_share_exactly_the_tokens_that_their_blocks_say(trace: Trace, seed: int) -> None:
    made = materialise(Workload(trace=trace, seed=seed), words)
    for i, (a, one) in enumerate(zip(trace.requests, made, strict=True)):
        assert one.token_ids is not None
        assert len(one.token_ids) == a.input_length
        for b, other in zip(trace.requests[:i], made[:i], strict=True):
            assert other.token_ids is not None
            same = _leading(a.hash_ids, b.hash_ids)
            said = min(same * trace.block_tokens, a.input_length, b.input_length)
            assert _leading(one.token_ids, other.token_ids) == said


@settings(deadline=None)
@given(traces(literal=False))
def test_with_any_ids_and_few_tokens_prompts_still_share_no_more_than_a_code(trace: Trace) -> None:
    # 66 bits in about a hundred different tokens are at most 11 digits, and one that announces them.
    made = materialise(Workload(trace=trace), letters)
    for i, (a, one) in enumerate(zip(trace.requests, made, strict=True)):
        for b, other in zip(trace.requests[:i], made[:i], strict=True):
            assert one.token_ids is not None
            assert other.token_ids is not None
            same = _leading(a.hash_ids, b.hash_ids) * trace.block_tokens
            said = min(same, a.input_length, b.input_length)
            truly = _leading(one.token_ids, other.token_ids)
            assert said <= truly
            if trace.block_tokens >= 16:
                assert truly - said <= 12


@settings(deadline=None)
@given(traces(ids=st.integers(0, 3), literal=False))
def test_the_share_told_is_the_longest_that_any_earlier_prompt_truly_has(trace: Trace) -> None:
    made = [prompt.token_ids or () for prompt in materialise(Workload(trace=trace), words)]
    for i, told in enumerate(shared_tokens(trace)):
        assert told == max((_leading(made[i], earlier) for earlier in made[:i]), default=0)


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_hostile_bytes_are_faults_and_nothing_else(content: bytes) -> None:
    _read_hostile(content)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
keys = st.sampled_from(
    [
        "timestamp",
        "input_length",
        "output_length",
        "hash_ids",
        "block_size",
        "session_id",
        "messages",
        "prompt",
    ]
)


@settings(deadline=None)
@given(st.lists(st.dictionaries(keys | st.text(max_size=14), values, max_size=8), max_size=5))
def test_hostile_lines_are_faults_or_a_trace_that_can_be_written(lines: list[dict[str, object]]) -> None:
    content = "".join(json.dumps(line) + "\n" for line in lines)
    _read_hostile(content.encode("utf-8", "surrogatepass"))


@settings(deadline=None)
@given(traces(), st.data())
def test_a_trace_cut_anywhere_is_a_fault_or_a_shorter_trace(trace: Trace, data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "t.jsonl"
        write_trace(trace, path)
        whole = path.read_bytes()
    _read_hostile(whole[: data.draw(st.integers(0, len(whole)))])


names = st.sampled_from(
    [
        *("timestamp", "ts", "usage", "prompt", "messages", "status", "session_id", "choices", "response"),
        *("startTime", "call_type", "cache_hit", "prompt_tokens", "completion_tokens", "kwargs"),
        *("start_time", "type", "input", "output", "usage_details", "level", "trace_id"),
        *("attributes", "events", "context", "resourceSpans", "startTimeUnixNano", "parent_id"),
        *("gen_ai.usage.input_tokens", "gen_ai.prompt", "gen_ai.prompt.0.content", "gen_ai.operation.name"),
        *("input_length", "output_length", "hash_ids", "chat_id", "parent_chat_id", "conversations"),
        *("role", "content", "parts", "tool_calls", "function", "text", "key", "value", "from", "arrayValue"),
    ]
)
telling = st.sampled_from(
    [0, 5, 1767225600, "2026-01-01T00:00:00Z", "1767225600000000000", "success", "GENERATION", "user", "x y"]
)
recorded = st.recursive(
    telling | values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=5),
    max_leaves=12,
)


@settings(deadline=None)
@given(
    st.sampled_from(list(FORMATS)),
    st.lists(st.dictionaries(names, recorded, max_size=8), max_size=4),
    st.booleans(),
)
def test_whatever_a_recorder_wrote_is_a_trace_or_a_fault_in_one_line(
    format: str, records: list[dict[str, object]], as_array: bool
) -> None:
    with TemporaryDirectory() as folder:
        path, out = Path(folder) / "recorded", Path(folder) / "t.jsonl"
        lines = "".join(json.dumps(record) + "\n" for record in records)
        path.write_bytes((json.dumps(records) if as_array else lines).encode("utf-8", "surrogatepass"))
        told = _import(path, format)
        if isinstance(told, TraceError):
            assert all(len(fault.splitlines()) == 1 for fault in told.faults)
            return
        trace, report = told
        assert report.read == report.kept + sum(report.dropped.values())
        write_trace(trace, out)
        assert read_trace(out).requests == trace.requests


def _import(path: Path, format: str) -> tuple[Trace, Report] | TraceError:
    try:
        return import_trace(path, format=format, encode=words, rate=1.0, most_bad=1.0, keep_text=True)
    except TraceError as error:
        return error


def _read_hostile(content: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "t.jsonl"
        path.write_bytes(content)
        read = _read(path)
        if isinstance(read, TraceError):
            assert all(fault.startswith(f"{path}:") for fault in read.faults)
            assert all(len(fault.splitlines()) == 1 for fault in read.faults)
        else:
            write_trace(read, path)
            assert read_trace(path) == read


def _read(path: Path) -> Trace | TraceError:
    try:
        return read_trace(path)
    except TraceError as error:
        return error


def _leading(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """How many leading items are equal."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
