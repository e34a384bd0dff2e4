import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objectives.drift import drift, paired_drift, stalls
from objectives.measurement import Record
from tests.objectives.replays import answered, failed


def replay(n: int = 60, *, every_s: float = 0.1, seed: int = 0) -> list[Record]:
    draw = np.random.default_rng(seed)
    ttft, gap = 0.1 * draw.lognormal(0, 0.3, n), 0.02 * draw.lognormal(0, 0.1, n)
    return [
        answered(i, due_s=every_s * i, ttft_s=float(ttft[i]), gap_s=float(gap[i]), tokens=20)
        for i in range(n)
    ]


def held_up(records: list[Record], at_s: float, for_s: float) -> list[Record]:
    """What a pause of the engine makes of them: every later token comes so much later."""
    paused = []
    for record in records:
        chunk_s = tuple(at + for_s if at >= at_s else at for at in record.chunk_s)
        paused.append(replace(record, chunk_s=chunk_s, finished_s=chunk_s[-1]))
    return paused


def test_stalls_are_the_times_between_tokens_in_which_someone_waits() -> None:
    records = [
        answered(0, due_s=0.0, ttft_s=1.0, gap_s=0.5, tokens=3),  # tokens at 1, 1.5, 2; sent at 0.001
        answered(1, due_s=1.2, ttft_s=0.6, tokens=1),  # token at 1.8
        answered(2, due_s=5.0, ttft_s=0.25, tokens=1),  # nobody waits from 2 to 5.001
    ]
    found = stalls(records)
    assert found.start_s == pytest.approx([0.001, 1.0, 1.5, 1.8, 5.001])
    assert found.length_s == pytest.approx([0.999, 0.5, 0.3, 0.2, 0.249])


def test_a_replay_without_tokens_has_no_stalls() -> None:
    assert len(stalls([failed(0, due_s=0)]).start_s) == 0


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0.001, 3), st.integers(1, 5)), min_size=1, max_size=8))
def test_stalls_agree_with_looking_at_every_moment(rows: list[tuple[float, float, int]]) -> None:
    records = [
        answered(i, due_s=due, ttft_s=0.01 + took, gap_s=took, tokens=tokens)
        for i, (due, took, tokens) in enumerate(rows)
    ]
    found = stalls(records)
    tokens = [at for record in records for at in record.chunk_s]
    for moment in np.linspace(0, max(tokens), 97).tolist():
        waiting = any((r.sent_s or 0.0) < moment < r.chunk_s[-1] for r in records)
        inside = [
            (start, start + length)
            for start, length in zip(found.start_s.tolist(), found.length_s.tolist(), strict=True)
            if start < moment < start + length
        ]
        assert len(inside) == (waiting and moment not in tokens)
        for start, end in inside:
            assert not any(start < at < end for at in tokens if not math.isclose(at, end))


def test_a_pause_at_the_beginning_is_told() -> None:
    said = drift(held_up(replay(), 0.5, 2.0))
    assert said is not None
    assert "gave nobody a token for 2" in said


@pytest.mark.parametrize("seed", range(20))
def test_an_undisturbed_replay_is_not_accused(seed: int) -> None:
    assert drift(replay(seed=seed)) is None


def test_a_pause_like_one_that_comes_later_is_how_the_engine_is() -> None:
    assert drift(held_up(held_up(replay(), 0.5, 2.0), 7.0, 2.0)) is None


def test_a_pause_after_the_beginning_is_not_drift() -> None:
    assert drift(held_up(replay(), 4.0, 2.0)) is None


def test_a_pause_too_short_to_be_a_compilation_is_let_pass() -> None:
    assert drift(held_up(replay(), 0.5, 0.1)) is None


def test_a_long_prompt_alone_is_not_drift() -> None:
    # 1 s for 10,000 prompt tokens, as 0.1 s for 1,000: nobody else is there while it is computed.
    records = [answered(0, due_s=0.0, ttft_s=1.0, tokens=20, tokens_in=10_000)]
    records += [answered(i, due_s=2 + i, ttft_s=0.1, tokens=20, tokens_in=1_000) for i in range(1, 60)]
    assert drift(records) is None
    # The same second for a prompt like the others' is.
    assert drift([replace(records[0], tokens_in=1_000), *records[1:]]) is not None


def test_a_few_requests_do_not_tell_what_is_usual() -> None:
    assert drift(held_up(replay(29), 0.1, 5.0)) is None


@settings(deadline=None)
@given(st.floats(0.1, 10), st.floats(-5, 5))
def test_neither_the_clocks_zero_nor_the_order_of_records_matters(for_s: float, shift_s: float) -> None:
    records = held_up(replay(), 0.5, for_s)
    moved = [
        replace(
            record,
            due_s=record.due_s + shift_s,
            sent_s=(record.sent_s or 0.0) + shift_s,
            chunk_s=tuple(at + shift_s for at in record.chunk_s),
        )
        for record in reversed(records)
    ]
    assert (drift(records) is None) == (drift(moved) is None)


def stretched(records: list[Record], until_s: float, factor: float) -> list[Record]:
    """Slower by a factor until some time, as fast as before from then on."""

    def later(at: float) -> float:
        return at * factor if at <= until_s else at + (factor - 1) * until_s

    return [replace(record, chunk_s=tuple(map(later, record.chunk_s))) for record in records]


def test_a_slow_beginning_without_a_pause_shows_beside_a_second_replay() -> None:
    first = stretched(replay(100), 3.0, 1.5)
    assert drift(first) is None
    said = paired_drift(first, replay(100))
    assert said is not None
    assert "the TPOT of the first 10 requests was 1.5" in said


def test_a_replay_that_is_slower_throughout_did_settle() -> None:
    slower = stretched(replay(100), math.inf, 1.5)
    assert paired_drift(slower, replay(100)) is None


def test_two_replays_of_one_engine_seldom_accuse_it() -> None:
    accused = 0
    for seed in range(200):
        draw = np.random.default_rng(seed)
        noisy = [
            replace(record, chunk_s=tuple(record.due_s + 0.1 + np.cumsum(0.02 * draw.lognormal(0, 0.2, 20))))
            for record in replay(60)
        ]
        accused += paired_drift(noisy, replay(60)) is not None
    assert accused <= 1
