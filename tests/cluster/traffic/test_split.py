import pytest

from cluster.traffic.make import make_trace, recipe_from
from cluster.traffic.split import By, split
from cluster.traffic.trace import Request, Trace, TraceError, assemble, read_trace
from tests.cluster.traffic.encoding import public


def asked(at: float, *ids: int, session: str | None = None) -> Request:
    return Request(arrival_s=at, input_length=4 * len(ids), output_length=1, hash_ids=ids, session_id=session)


def talks() -> Trace:
    base = {
        "requests": 1000,
        "rate": 10,
        "input_mean": 1500,
        "output_mean": 60,
        "turns": 3,
        "block_tokens": 64,
    }
    return make_trace(recipe_from({**base, "shared_prefix": 0.3, "prefixes": 5}))


@pytest.mark.parametrize("by", list(By))
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_parts_make_the_whole_and_share_no_session(by: By, share: float) -> None:
    trace = talks()
    parts = split(trace, held_out=share, by=by)
    one, other = parts.search.requests, parts.held_out.requests
    assert len(one) + len(other) == 1000
    assert len(other) == pytest.approx(share * 1000, abs=15)
    assert not {r.session_id for r in one} & {r.session_id for r in other}
    together = sorted((r.input_length, r.output_length, r.hash_ids) for r in (*one, *other))
    assert together == sorted((r.input_length, r.output_length, r.hash_ids) for r in trace.requests)


def test_by_time_what_begins_later_is_held_out_and_late_turns_stay_with_their_session() -> None:
    trace = assemble(
        [
            asked(0, 1, session="a"),
            asked(1, 2),
            asked(2, 3, session="b"),
            asked(3, 1, 4, session="a"),
            asked(4, 5),
        ],
        block_tokens=4,
    )
    parts = split(trace, held_out=0.4)
    assert [r.hash_ids for r in parts.search.requests] == [(1,), (2,), (1, 4)]
    assert [(r.arrival_s, r.hash_ids) for r in parts.held_out.requests] == [(0.0, (3,)), (2.0, (5,))]


def test_what_the_parts_share_is_told_worked_by_hand() -> None:
    trace = assemble([asked(0, 1, 2), asked(1, 9), asked(2, 1, 3, 4), asked(3, 8)], block_tokens=4)
    parts = split(trace, held_out=0.5)
    # Of 12 + 4 held-out tokens the first 4 were searched on; one of the two prompts begins so.
    assert (parts.shared_prefixes, parts.shared_tokens) == (1, 4 / 16)


def test_the_public_traces_held_out_part_shares_what_sets_of_blocks_say() -> None:
    trace = read_trace(public("mooncake_synthetic.jsonl"))
    parts = split(trace, held_out=0.3)
    first = {r.hash_ids[0] for r in parts.search.requests if r.input_length >= 512}
    begun = sum(r.hash_ids[0] in first for r in parts.held_out.requests)
    assert parts.shared_prefixes == pytest.approx(begun, abs=len(parts.held_out.requests) * 0.01)
    assert 0 < parts.shared_tokens < 1


def test_one_session_cannot_be_split() -> None:
    with pytest.raises(TraceError, match="1 sessions of 2 requests cannot be split"):
        split(assemble([asked(0, 1, session="a"), asked(1, 2, session="a")]), held_out=0.5)
