from collections.abc import Sequence

from cluster.traffic.held_out import held_out_prompts, shipped_count
from cluster.traffic.trace import Message, Request, Trace

BARE = Trace(requests=(Request(arrival_s=0.0, input_length=8, output_length=4),))


def encode(text: str) -> Sequence[int]:
    """A token a word, by its letters."""
    return [int.from_bytes(word.encode()[:6], "big") for word in text.split()]


def spoken(*texts: str) -> Trace:
    return Trace(
        requests=tuple(
            Request(arrival_s=float(at), input_length=8, output_length=4, prompt=text)
            for at, text in enumerate(texts)
        )
    )


def test_a_trace_without_text_is_judged_by_the_shipped_passages() -> None:
    found = held_out_prompts(BARE, encode, count=100, seed=0)
    assert len(found) == shipped_count() == 32
    assert len(set(found)) == 32
    assert min(map(len, found)) > 15
    assert held_out_prompts(BARE, encode, count=12, seed=3) == found[:12]


def test_every_second_one_begins_alike_so_that_a_prefix_cache_has_something_to_keep() -> None:
    found = held_out_prompts(BARE, encode, count=32, seed=0)
    assert len({prompt[:100] for prompt in found[1::2]}) == 1
    assert len({prompt[:10] for prompt in found[::2]}) == 16


def test_a_trace_with_text_is_judged_by_its_own_prompts_each_once() -> None:
    trace = spoken("one two", "three four", "one two", "five six")
    found = held_out_prompts(trace, encode, count=3, seed=0)
    assert sorted(found) == sorted(tuple(encode(text)) for text in ("one two", "three four", "five six"))


def test_where_its_own_are_too_few_shipped_passages_make_up_the_number() -> None:
    found = held_out_prompts(spoken("one two"), encode, count=10, seed=0)
    assert found == (tuple(encode("one two")), *held_out_prompts(BARE, encode, count=9, seed=0))


def test_which_of_many_are_drawn_hangs_on_the_seed_alone() -> None:
    trace = spoken(*(f"prompt {chr(97 + n)}" for n in range(26)))
    first = held_out_prompts(trace, encode, count=5, seed=1)
    assert len(first) == 5
    assert held_out_prompts(trace, encode, count=5, seed=1) == first
    assert any(held_out_prompts(trace, encode, count=5, seed=seed) != first for seed in range(2, 6))


def test_messages_are_written_one_below_the_other_behind_their_roles() -> None:
    request = Request(
        arrival_s=0.0,
        input_length=8,
        output_length=4,
        messages=(Message(role="system", content="be brief"), Message(role="user", content="why")),
    )
    (found,) = held_out_prompts(Trace(requests=(request,)), encode, count=1, seed=0)
    assert found == tuple(encode("system: be brief user: why"))


def test_of_a_long_prompt_the_end_is_kept() -> None:
    (found,) = held_out_prompts(spoken("a b c d e"), encode, count=1, seed=0, longest=2)
    assert found == tuple(encode("d e"))
