import csv
import json
import math
import statistics

import pytest

from cluster.traffic.prefixes import shared_tokens
from cluster.traffic.show import figures, histogram, hit_share, session_figures
from cluster.traffic.trace import Request, Trace, assemble, read_trace
from tests.cluster.traffic.encoding import public


def asked(length: int, *ids: int, at: float = 0.0, session: str | None = None) -> Request:
    return Request(arrival_s=at, input_length=length, output_length=10, hash_ids=ids, session_id=session)


def test_figures_of_four_requests_worked_by_hand() -> None:
    trace = assemble(
        [
            asked(10, 1, 2, 3, at=0, session="a"),
            asked(12, 1, 2, 4, at=1, session="b"),
            asked(4, 9, at=2),
            asked(14, 1, 2, 3, 5, at=6, session="a"),
        ],
        block_tokens=4,
    )
    shown = figures(trace)
    assert (shown.requests, shown.duration_s, shown.rate) == (4, 6.0, 0.5)
    # gaps 1, 1, 4: mean 2, variance (1 + 1 + 4) / 3 = 2
    assert shown.gap_cv == pytest.approx(math.sqrt(2) / 2)
    assert (shown.input_length.mean, shown.input_length.total, shown.input_length.longest) == (10, 40, 14)
    assert (shown.sessions, shown.turns, shown.literal) == (2, 1.5, 0)
    # The second shares two blocks (8); the fourth two blocks and the half block that the first had (10).
    assert shared_tokens(trace) == (0, 8, 0, 10)
    assert shown.prefix_share == 18 / 40


def test_an_engine_hits_whole_blocks_and_never_the_last_token() -> None:
    twice = assemble([asked(12, 1, 2, 3), asked(12, 1, 2, 3)], block_tokens=4)
    assert figures(twice).prefix_share == 12 / 24
    assert hit_share(twice, engine_block=1) == 11 / 24
    assert hit_share(twice, engine_block=4) == 8 / 24
    assert hit_share(twice, engine_block=16) == 0


def test_a_block_seen_elsewhere_than_at_the_same_prefix_is_not_shared() -> None:
    trace = assemble([asked(8, 1, 2), asked(8, 2, 1), asked(8, 3, 2)], block_tokens=4)
    assert shared_tokens(trace) == (0, 0, 0)


def test_requests_at_one_instant_have_no_rate() -> None:
    shown = figures(assemble([asked(4), asked(4)]))
    assert (shown.rate, shown.gap_cv, shown.turns) == (None, None, None)


def test_a_trace_without_requests_has_no_figures() -> None:
    with pytest.raises(ValueError, match="without requests"):
        figures(Trace(requests=()))


@pytest.mark.parametrize("name", ["mooncake_conversation.jsonl", "mooncake_synthetic.jsonl"])
def test_figures_of_the_public_traces_by_another_route(name: str) -> None:
    path = public(name)
    with path.open() as file:
        rows = [json.loads(line) for line in file]
    shown = figures(read_trace(path))
    assert shown.requests == len(rows)
    assert shown.input_length.mean == pytest.approx(statistics.fmean(r["input_length"] for r in rows))
    assert shown.output_length.cv == pytest.approx(
        statistics.pstdev(r["output_length"] for r in rows)
        / statistics.fmean(r["output_length"] for r in rows)
    )
    assert shown.duration_s == pytest.approx((rows[-1]["timestamp"] - rows[0]["timestamp"]) / 1000)
    # Another route to the share: sets of whole id prefixes, partial blocks counted by the longest seen.
    seen: dict[tuple[int, ...], int] = {}
    shared = 0
    for row in rows:
        best = 0
        for k in range(1, len(row["hash_ids"]) + 1):
            head = hash(tuple(row["hash_ids"][:k]))
            key = (head, k)
            tokens = min(512 * k, row["input_length"])
            best = max(best, min(tokens, seen.get(key, 0)))
            seen[key] = max(seen.get(key, 0), tokens)
        shared += best
    assert shown.prefix_share == pytest.approx(shared / sum(r["input_length"] for r in rows), abs=1e-12)


def test_the_public_azure_trace_has_the_figures_that_its_columns_add_up_to() -> None:
    with public("azure_llm_2023_conv.csv").open() as file:
        rows = [(int(r["ContextTokens"]), int(r["GeneratedTokens"])) for r in csv.DictReader(file)]
    trace = assemble(
        Request(arrival_s=float(i), input_length=a, output_length=b) for i, (a, b) in enumerate(rows)
    )
    shown = figures(trace)
    assert shown.input_length.total == sum(a for a, _ in rows)
    assert shown.output_length.p50 == statistics.median_high(b for _, b in rows)
    assert (shown.prefix_share, shown.sessions) == (0.0, 0)


def test_sessions_are_counted_with_the_time_between_their_turns() -> None:
    trace = assemble(
        [
            asked(4, at=0, session="a"),
            asked(4, at=1),
            asked(4, at=2, session="b"),
            asked(4, at=3, session="a"),
            asked(4, at=9, session="a"),
        ]
    )
    seen = session_figures(trace)
    assert seen is not None
    assert (seen.sessions, seen.requests, seen.turns_mean, seen.turns_longest, seen.single) == (
        2,
        4,
        2.0,
        3,
        1,
    )
    assert (seen.gap_p50_s, seen.gap_p90_s) == (6.0, 6.0)  # gaps 3 and 6; the higher of two at the median
    assert session_figures(assemble([asked(4)])) is None


def test_a_histogram_holds_every_length_once() -> None:
    lengths = [1, 2, 2, 9, 10, 99]
    found = histogram(lengths, bins=10)
    assert (found.width, found.counts) == (10, (4, 1, 0, 0, 0, 0, 0, 0, 0, 1))
    assert sum(histogram(lengths, bins=7).counts) == len(lengths)
