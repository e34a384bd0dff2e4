from collections.abc import Sequence
from dataclasses import replace

import pytest

from cluster.traffic.trace import Request, Trace
from search_spaces.space import Quality, Space
from tuner.mistakes import Mistake
from tuner.quality_prompts import quality_prompts

SPACE = Space(name="s", source="s.yaml", model="m", quality=Quality(prompts=12, tokens=20))
TRACE = Trace(requests=(Request(arrival_s=0.0, input_length=8, output_length=4),))


def encode(text: str) -> Sequence[int]:
    return list(range(len(text)))


def test_there_are_as_many_as_the_space_asks_for_of_at_most_256_tokens() -> None:
    lengths = [len(prompt) for prompt in quality_prompts(SPACE, TRACE, encode)]
    assert max(lengths) == 256
    assert len(quality_prompts(replace(SPACE, quality=Quality(prompts=10)), TRACE, encode)) <= 10


def test_prompt_continuation_and_one_token_more_fit_the_models_length() -> None:
    space = replace(SPACE, engine={"max_model_len": 64})
    assert max(map(len, quality_prompts(space, TRACE, encode))) + 20 + 1 == 64


def test_continuations_that_leave_no_room_are_refused_with_both_numbers() -> None:
    space = replace(SPACE, engine={"max_model_len": 21})
    with pytest.raises(Mistake, match=r"quality\.tokens 20 of s\.yaml leaves no room .* max_model_len 21"):
        quality_prompts(space, TRACE, encode)
