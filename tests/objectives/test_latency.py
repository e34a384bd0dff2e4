import math

import numpy as np
import pytest

from objectives.latency import latencies, token_gaps
from tests.objectives.replays import answered, failed


def test_tokens_that_come_together_share_the_time_since_the_chunk_before() -> None:
    # Chunks of 2, 3 and 1 tokens, 0.06 s apart: nothing for the first, 3 gaps of 0.02, 1 gap of 0.06.
    gaps = token_gaps([answered(0, due_s=0, gap_s=0.06, chunk_tokens=(2, 5, 6))])
    assert gaps.gap_s == pytest.approx([0.02, 0.06])
    assert gaps.count.tolist() == [3, 1]


def test_gaps_and_tpot_agree_on_a_request_whose_first_chunk_is_one_token() -> None:
    record = answered(0, due_s=1, gap_s=0.05, chunk_tokens=(1, 4, 5, 9))
    gaps = token_gaps([record])
    assert (gaps.gap_s * gaps.count).sum() / gaps.count.sum() == pytest.approx(record.tpot_s)


def test_a_chunk_without_tokens_makes_no_gap_and_loses_no_time() -> None:
    gaps = token_gaps([answered(0, due_s=0, gap_s=0.05, chunk_tokens=(1, 1, 2))])
    assert gaps.gap_s == pytest.approx([0.1])


def test_a_failed_request_owns_as_many_infinite_gaps_as_it_was_asked_for() -> None:
    gaps = token_gaps([answered(0, due_s=0, tokens=3), failed(1, due_s=0, tokens=5)])
    assert gaps.count[gaps.owner == 1].tolist() == [4]
    assert np.isinf(gaps.gap_s[gaps.owner == 1]).all()


def test_tpot_leaves_out_requests_with_nothing_to_time_and_keeps_failed_ones() -> None:
    found = latencies([answered(0, due_s=0, tokens=1), answered(1, due_s=0), failed(2, due_s=0)])
    assert found["tpot"] == pytest.approx([0.02, math.inf])
    assert found["ttft"] == pytest.approx([0.1, 0.1, math.inf])
