import json
from collections import defaultdict

import pytest

from cluster.traffic.prefixes import share_by_block, shared_tokens, tokens_shared_with
from cluster.traffic.trace import Request, assemble, read_trace
from tests.cluster.traffic.encoding import public


def asked(length: int, *ids: int) -> Request:
    return Request(arrival_s=0.0, input_length=length, output_length=1, hash_ids=ids)


def test_share_by_block_of_three_prompts_worked_by_hand() -> None:
    trace = assemble([asked(10, 1, 2, 3), asked(12, 1, 2, 4), asked(5, 1, 2)], block_tokens=4)
    # shared: 0, 8, 5. First blocks: 8 of 12 tokens; second: 4 + 1 of 4 + 4 + 1; third: 0 of 2 + 4.
    assert share_by_block(trace, blocks=9) == (8 / 12, 5 / 9, 0.0)
    assert share_by_block(trace, blocks=1) == (8 / 12,)


def test_tokens_shared_with_others_do_not_count_what_is_shared_among_themselves() -> None:
    ones, others = [asked(8, 1, 2), asked(8, 1, 3), asked(8, 1, 3)], [asked(8, 1, 2)]
    assert tokens_shared_with(ones, others, block_tokens=4) == 8 + 4 + 4


@pytest.mark.parametrize("name", ["mooncake_conversation.jsonl", "mooncake_synthetic.jsonl"])
def test_the_public_traces_share_by_block_what_sets_of_prefixes_say(name: str) -> None:
    path = public(name)
    # Another route: per place, whether the whole prefix of ids up to it was seen before, full blocks only.
    seen: set[tuple[int, int]] = set()
    hits: dict[int, int] = defaultdict(int)
    with path.open() as file:
        for line in file:
            row = json.loads(line)
            for k in range(1, min(8, row["input_length"] // 512) + 1):
                key = (k, hash(tuple(row["hash_ids"][:k])))
                hits[k - 1] += 512 * (key in seen)
                seen.add(key)
    trace = read_trace(path)
    tokens = [sum(min(512, max(0, r.input_length - 512 * k)) for r in trace.requests) for k in range(8)]
    for place, share in enumerate(share_by_block(trace, blocks=8)):
        # Partial last blocks, which this route leaves out, are few tokens of all.
        assert hits[place] / tokens[place] <= share <= hits[place] / tokens[place] + 0.02
    assert len(shared_tokens(trace)) == len(trace.requests)
