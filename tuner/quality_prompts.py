"""What a study's artefacts are asked: which prompts, and how long they may be."""

from cluster.traffic.held_out import LONGEST, held_out_prompts
from cluster.traffic.text import Encode
from cluster.traffic.trace import Trace
from objectives.answers import Tokens
from search_spaces.space import Space
from tuner.mistakes import Mistake


def quality_prompts(space: Space, trace: Trace, encode: Encode) -> tuple[Tokens, ...]:
    """The prompts, as token ids; of any that would not fit the space's `max_model_len` the end.

    Raises Mistake where nothing would fit beside the continuations.
    """
    length = space.engine.get("max_model_len")
    longest = LONGEST
    if isinstance(length, int) and not isinstance(length, bool) and length > 0:
        longest = min(LONGEST, length - space.quality.tokens - 1)
    if longest < 1:
        raise Mistake(
            f"quality.tokens {space.quality.tokens} of {space.source} leaves no room for a prompt within "
            f"max_model_len {length}; make it smaller"
        )
    return held_out_prompts(
        trace, encode, count=space.quality.prompts, seed=space.traffic.seed, longest=longest
    )
