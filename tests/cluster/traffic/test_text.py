import itertools

import pytest

from cluster.traffic.text import Encode, Realm, block_tokens, corpus, corpus_digest
from tests.cluster.traffic.encoding import letters, words


def test_a_block_is_exactly_as_long_as_asked_even_beyond_the_corpus() -> None:
    made_of = corpus(words)
    for length in (1, 2, 16, 512, 3 * len(made_of.tokens)):
        assert len(block_tokens(made_of, 0, 7, length, block=512)) == length


def test_a_short_block_is_the_beginning_of_the_long_one() -> None:
    made_of = corpus(words)
    assert block_tokens(made_of, 3, 99, 512, block=512)[:100] == block_tokens(made_of, 3, 99, 100, block=512)


def test_a_block_is_running_text_after_its_first_word() -> None:
    made_of = corpus(words)
    block = block_tokens(made_of, 0, 5, 64, block=512)
    places = [i for i in range(len(made_of.tokens)) if made_of.tokens[i : i + 63] == block[1:]]
    assert places


def test_blocks_with_neighbouring_ids_read_on() -> None:
    made_of = corpus(words)
    # Ids of one run; a block's first word is its code, so only what follows it is text of the corpus.
    blocks = [block_tokens(made_of, 0, hash_id, 16, block=16) for hash_id in (64, 65, 66)]
    body = made_of.tokens * 2
    places = [i for i in range(len(made_of.tokens)) if body[i + 1 : i + 16] == blocks[0][1:]]
    assert any(
        body[i + 17 : i + 32] == blocks[1][1:] and body[i + 33 : i + 48] == blocks[2][1:] for i in places
    )


def test_seeds_change_the_text() -> None:
    made_of = corpus(words)
    assert block_tokens(made_of, 0, 5, 64, block=512) != block_tokens(made_of, 1, 5, 64, block=512)


@pytest.mark.parametrize("encode", [words, letters])
def test_no_two_passages_of_any_realm_begin_alike(encode: Encode) -> None:
    """Codes are compared pairwise through sorting: a prefix would sort right before what it begins."""
    made_of = corpus(encode)
    keys = [*range(2000), *(2**k + d for k in range(11, 63) for d in (-1, 0, 1)), 2**63 - 1]
    longest = 16  # ceil(66 bits / log2(64 words)) digits and what announces them, rounded up
    begins = sorted(made_of.passage(realm, key, seed=0, length=longest) for realm in Realm for key in keys)
    codes = sorted(made_of._code(key * 3 + realm) for realm in Realm for key in keys)
    assert all(b[: len(a)] != a for a, b in itertools.pairwise(codes))
    assert max(map(len, codes)) <= longest
    assert len(set(begins)) == len(begins)


def test_the_first_thousand_blocks_differ_in_their_first_token() -> None:
    made_of = corpus(words)
    assert len({block_tokens(made_of, 0, hash_id, 1, block=512) for hash_id in range(1000)}) == 1000


def test_a_tokenizer_of_few_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="only 1 different tokens"):
        corpus(lambda text: [0] * len(text))


def test_the_corpus_is_the_interpreters_and_its_digest_is_stable() -> None:
    assert len(corpus_digest()) == 64
    assert len(corpus(words).tokens) > 50_000
