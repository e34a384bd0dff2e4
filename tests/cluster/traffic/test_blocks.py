from hypothesis import given
from hypothesis import strategies as st

from cluster.traffic.blocks import BlockIds


@given(st.lists(st.lists(st.integers(0, 1), max_size=12), max_size=6), st.integers(1, 4))
def test_ids_are_equal_exactly_as_far_as_whole_prefixes_are(prompts: list[list[int]], block: int) -> None:
    hashing = BlockIds(block)
    made = [hashing.of(prompt) for prompt in prompts]
    for a, ids in zip(prompts, made, strict=True):
        assert len(ids) == -(-len(a) // block)
        for b, others in zip(prompts, made, strict=True):
            for k in range(min(len(ids), len(others))):
                whole = a[: (k + 1) * block] == b[: (k + 1) * block]
                assert (ids[k] == others[k]) == whole


def test_tokens_that_a_template_added_are_shared_with_nobody() -> None:
    hashing = BlockIds(4)
    assert hashing.of(list(range(10)), length=15) == (0, 1, 2, 3)
    assert hashing.of(list(range(10)), length=15) == (0, 1, 4, 5)
    assert hashing.of(list(range(10)), length=7) == (0, 6)


def test_the_block_not_met_for_longest_is_forgotten() -> None:
    hashing = BlockIds(1, most=2)
    assert [hashing.of([token]) for token in (1, 2, 1, 3, 1, 2)] == [(0,), (1,), (0,), (2,), (0,), (3,)]


def test_two_importers_share_no_key() -> None:
    a, b = BlockIds(4), BlockIds(4)
    a.of([1, 2, 3, 4])
    b.of([1, 2, 3, 4])
    assert set(a._numbers) != set(b._numbers)
