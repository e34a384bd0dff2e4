import dataclasses
import math

import pytest

from cluster.traffic.text import corpus
from cluster.traffic.trace import Message, Request, assemble
from cluster.traffic.workload import Sessions, Workload, identity, materialise, prompts, warm_up_prompts
from tests.cluster.traffic.encoding import words

BARE = Request(arrival_s=0.0, input_length=100, output_length=7)
BLOCKED = dataclasses.replace(BARE, arrival_s=3.0, input_length=40, hash_ids=(5, 6, 7), session_id="s")


def workload(*requests: Request, speed: float = 1.0, seed: int = 0, block_tokens: int = 16) -> Workload:
    return Workload(trace=assemble(requests, block_tokens=block_tokens), speed=speed, seed=seed)


def shared(a: tuple[int, ...] | None, b: tuple[int, ...] | None) -> int:
    """Leading tokens that two prompts have in common, counted one by one."""
    assert a is not None
    assert b is not None
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_prompts_carry_what_the_trace_says() -> None:
    first, second = materialise(workload(BARE, BLOCKED, speed=2.0), words)
    assert (first.request, first.due_s, first.max_tokens, first.session_id) == (0, 0.0, 7, None)
    assert (second.request, second.due_s, second.input_length, second.session_id) == (1, 1.5, 40, "s")
    assert first.token_ids is not None
    assert len(first.token_ids) == 100
    assert second.token_ids is not None
    assert len(second.token_ids) == 40


def test_turns_wait_only_where_sessions_are_causal_and_speed_leaves_thinking_alone() -> None:
    first = dataclasses.replace(BLOCKED, arrival_s=0.0, duration_s=1.0)
    recorded = workload(first, BLOCKED, speed=2.0)
    assert [(p.due_s, p.after, p.think_s) for p in materialise(recorded, words)] == [
        (0.0, None, 0.0),
        (1.5, None, 0.0),
    ]
    causal = dataclasses.replace(recorded, sessions=Sessions.CAUSAL)
    assert [(p.due_s, p.after, p.think_s) for p in materialise(causal, words)] == [
        (0.0, None, 0.0),
        (1.5, 0, 2.0),
    ]


def test_equal_blocks_are_equal_text_and_the_partial_one_is_cut() -> None:
    longer = dataclasses.replace(BLOCKED, input_length=70, hash_ids=(5, 6, 7, 8, 9))
    other = dataclasses.replace(BLOCKED, hash_ids=(5, 9, 7))
    a, b, c = (p.token_ids for p in materialise(workload(BLOCKED, longer, other), words))
    assert shared(a, b) == 40
    assert shared(a, c) == 16


def test_requests_without_blocks_share_nothing() -> None:
    made = [p.token_ids for p in materialise(workload(*[BARE] * 50, BLOCKED), words)]
    assert all(shared(a, b) == 0 for i, a in enumerate(made) for b in made[:i])


def test_literal_text_passes_through() -> None:
    messages = (Message(role="user", content="hello"),)
    text = dataclasses.replace(BARE, prompt="Once upon")
    chat = dataclasses.replace(BARE, messages=messages)
    first, second = materialise(workload(text, chat), words)
    assert (first.text, first.token_ids, first.messages) == ("Once upon", None, None)
    assert (second.text, second.token_ids, second.messages) == (None, None, messages)


def test_the_same_workload_gives_the_same_prompts_and_another_seed_others() -> None:
    once = materialise(workload(BARE, BLOCKED), words)
    corpus.cache_clear()
    assert materialise(workload(BARE, BLOCKED), words) == once
    assert materialise(workload(BARE, BLOCKED, seed=1), words)[1].token_ids != once[1].token_ids


@pytest.mark.parametrize("speed", [0.0, -1.0, math.nan, math.inf])
def test_a_speed_that_is_none_is_refused(speed: float) -> None:
    with pytest.raises(ValueError, match="speed must be a positive number"):
        next(prompts(workload(BARE, speed=speed), words))


def test_warm_up_shares_no_token_with_the_trace_or_with_itself() -> None:
    traced = workload(BARE, BLOCKED, *(dataclasses.replace(BLOCKED, hash_ids=(i, 0, 0)) for i in range(300)))
    warm = warm_up_prompts(traced, words, count=30, lengths=[50, 200], max_tokens=3)
    assert [p.input_length for p in warm] == [50, 200] * 15
    assert {p.max_tokens for p in warm} == {3}
    assert all(p.request < 0 and p.due_s == 0 for p in warm)
    played = [p.token_ids for p in materialise(traced, words)]
    mine = [p.token_ids for p in warm]
    assert all(len(ids or ()) == p.input_length for ids, p in zip(mine, warm, strict=True))
    assert all(shared(a, b) == 0 for a in mine for b in played)
    assert all(shared(a, b) == 0 for i, a in enumerate(mine) for b in mine[:i])


def test_identity_changes_with_anything_that_changes_what_is_sent() -> None:
    base = workload(BARE)
    others = [
        workload(BARE, BLOCKED),
        dataclasses.replace(base, speed=2.0),
        dataclasses.replace(base, seed=1),
        dataclasses.replace(base, tokenizer="m"),
        dataclasses.replace(base, temperature=0.5),
        dataclasses.replace(base, sessions=Sessions.CAUSAL),
    ]
    assert len({identity(w) for w in [base, *others]}) == 7
    assert identity(workload(BARE)) == identity(base)
