"""Which traffic a verification plays."""

from dataclasses import replace
from pathlib import Path

import pytest

from cluster.traffic.make import make_trace, recipe_from
from cluster.traffic.trace import write_trace
from tests.tuner.verify.promises import PROMISED, RECIPE
from tuner.mistakes import Mistake
from tuner.verify.traffic import HeldOut, held_out


def drawn(draw: int = 0, pairs: int = 3) -> HeldOut:
    return held_out(PROMISED, None, pairs=pairs, draw=draw, tokenizer="some/model")


def test_made_traffic_is_made_anew_for_each_pair_and_each_verification() -> None:
    searched = make_trace(recipe_from(RECIPE)).digest
    digests = [one.trace.digest for draw in (0, 1) for one in drawn(draw).workloads]
    assert len({*digests, searched}) == 7
    assert drawn(0) == drawn(0)
    assert all(len(one.trace.requests) == RECIPE["requests"] for one in drawn().workloads)
    assert drawn().held_out


def test_more_pairs_leave_those_before_them_as_they_were() -> None:
    assert drawn(pairs=4).workloads[:3] == drawn(pairs=3).workloads


def test_prompts_differ_from_the_searchs_even_where_the_trace_is_the_same(tmp_path: Path) -> None:
    trace = make_trace(recipe_from(RECIPE))
    path = tmp_path / "searched.jsonl"
    write_trace(trace, path)
    promised = replace(
        PROMISED, traffic=replace(PROMISED.traffic, make=None, trace=str(path), digest=trace.digest)
    )
    found = held_out(promised, None, pairs=2, draw=0, tokenizer="some/model")
    assert not found.held_out
    assert "no part of it was held out" in found.words
    assert len({PROMISED.traffic.seed, *(one.seed for one in found.workloads)}) == 3
    with pytest.raises(Mistake, match="is the trace that was searched on"):
        held_out(promised, str(path), pairs=2, draw=0, tokenizer="some/model")
    moved = replace(promised, traffic=replace(promised.traffic, digest="e" * 64))
    with pytest.raises(Mistake, match="is another trace"):
        held_out(moved, None, pairs=2, draw=0, tokenizer="some/model")


def test_a_long_trace_is_cut_into_windows_as_long_as_what_was_searched_on(tmp_path: Path) -> None:
    # 120 requests at 10 a second are about 12 s: four windows of 3 s, and no two pairs get one of them.
    path = tmp_path / "long.jsonl"
    write_trace(make_trace(recipe_from({**RECIPE, "requests": 140, "seed": 9})), path)
    found = held_out(PROMISED, str(path), pairs=4, draw=0, tokenizer="some/model")
    assert found.held_out
    assert len({one.trace.digest for one in found.workloads}) == 4
    assert all(one.trace.requests[-1].arrival_s <= 3.0 for one in found.workloads)
    short = held_out(
        replace(PROMISED, traffic=replace(PROMISED.traffic, duration_s=None)),
        str(path),
        pairs=2,
        draw=0,
        tokenizer="some/model",
    )
    assert [len(one.trace.requests) for one in short.workloads] == [140, 140]
