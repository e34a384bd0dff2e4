"""Steps laid out from chunk times: against timelines made by hand, and what must hold of any."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.step_timeline import timeline
from tests.objectives.streams import STEP_S, stream


def test_a_prompt_that_the_budget_splits_is_put_into_the_steps_that_were_full() -> None:
    # A budget of 101: beside one decoding sequence 100 prompt tokens a step. 250 tokens take three steps, and
    # the next prompt, which was there from the first of them, shares the third: 50 and 30 of its 30.
    main = stream(0, first_s=1.0, steps=20)
    at = 1.0 + 10 * STEP_S
    long = stream(1, first_s=at, steps=0, prompt=250, prefill_s=3 * STEP_S)
    short = stream(2, first_s=at, steps=0, prompt=30, prefill_s=STEP_S)
    seen = timeline([main, long, short], usual_s=STEP_S, reserved=1.0, budget=101.0, hit_rate=0.0)
    assert seen.prompt_tokens[7:12].tolist() == [0, 100, 100, 80, 0]
    assert seen.prompts[7:12].tolist() == [0, 0, 0, 2, 0]
    # the second hundred are read with the first, and each is paired with those before it and itself
    assert seen.prompt_read[9] == 200
    assert seen.prompt_pairs[9] == sum(range(101, 201))


def test_a_prompt_with_room_for_all_of_it_was_not_begun_before_its_last_step() -> None:
    main = stream(0, first_s=1.0, steps=20)
    early = stream(1, first_s=1.0 + 10 * STEP_S, steps=0, prompt=80, prefill_s=2.5 * STEP_S)
    seen = timeline([main, early], usual_s=STEP_S, reserved=1.0, budget=101.0, hit_rate=0.0)
    assert seen.prompt_tokens[8:11].tolist() == [0, 0, 80]
    assert seen.first_prompt_step.tolist() == [0, 10]


def test_a_request_has_one_chunk_a_step_however_close_they_are() -> None:
    fast, slow = stream(0, first_s=1.0, steps=20, step_s=0.001), stream(1, first_s=1.0, steps=20)
    seen = timeline([fast, slow], usual_s=STEP_S, reserved=1.0, budget=math.inf, hit_rate=0.0)
    assert len(set(seen.step_of_chunk[0].tolist())) == 21


@given(
    st.lists(
        st.tuples(st.floats(0.0, 3.0), st.integers(1, 400), st.integers(0, 30), st.floats(0.01, 2.0)),
        min_size=1,
        max_size=12,
    ),
    st.integers(40, 500),
)
def test_every_prompt_token_is_computed_once_and_no_step_has_more_than_there_is_room_for(
    requests: list[tuple[float, int, int, float]], budget: int
) -> None:
    streams = [
        stream(number, first_s=1.0 + STEP_S * round(at / STEP_S), steps=steps, prompt=prompt, prefill_s=took)
        for number, (at, prompt, steps, took) in enumerate(requests)
    ]
    seen = timeline(streams, usual_s=STEP_S, reserved=1.0, budget=float(budget), hit_rate=0.0)
    assert seen.prompt_tokens.sum() == pytest.approx(sum(record.tokens_in for record in streams))
    assert seen.prompts.sum() == len(streams)
    assert seen.prompt_pairs.sum() == pytest.approx(sum(n * (n + 1) / 2 for _, n, _, _ in requests))
    room = np.maximum(budget - seen.sequences, 1.0) * seen.passes
    assert (seen.prompt_tokens <= room + 1e-6).all()
