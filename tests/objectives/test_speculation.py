import pytest

from objectives.measurement import Record, Sample
from objectives.speculation import Speculation, delivered_per_step, speculation
from tests.objectives.replays import answered, failed


def counted(*, drafts: float | None = None, accepted: float | None = None) -> Speculation:
    return Speculation(drafts=drafts, proposed=None, accepted=accepted, accepted_per_position=None)


Reading = tuple[float, float, float, tuple[float, ...]]


def between(before: Reading, after: Reading) -> list[Sample]:
    return [
        Sample(
            at_s=float(at),
            drafts_total=drafts,
            draft_tokens_total=proposed,
            accepted_tokens_total=accepted,
            accepted_per_position_total=positions,
        )
        for at, (drafts, proposed, accepted, positions) in enumerate((before, after))
    ]


def test_counters_give_acceptance_tokens_per_step_and_acceptance_by_position() -> None:
    # 10 drafts of 4 tokens: 9, 8, 2 and 1 accepted at positions one to four, 20 in all.
    found = speculation(between((5, 20, 7, (4, 2, 1, 0)), (15, 60, 27, (13, 10, 3, 1))))
    assert found.tokens_per_step == pytest.approx(3.0)
    assert found.acceptance == pytest.approx(0.5)
    assert found.accepted_per_position == pytest.approx((0.9, 0.8, 0.2, 0.1))


def test_without_drafts_nothing_is_said_of_acceptance() -> None:
    found = speculation(between((0, 0, 0, (0, 0)), (0, 0, 0, (0, 0))))
    assert found.tokens_per_step is None
    assert found.acceptance is None
    assert found.accepted_per_position is None


def test_without_counters_nothing_is_known() -> None:
    assert speculation([Sample(at_s=0), Sample(at_s=1)]) == counted()


def test_a_restarted_engine_leaves_nothing_known() -> None:
    found = speculation(between((15, 60, 27, (13, 10)), (5, 20, 7, (4, 2))))
    assert found.drafts is None
    assert found.accepted_per_position is None


def test_a_last_step_cut_off_by_max_tokens_delivers_less_than_counters_say() -> None:
    # Seen with vLLM 0.32: 10 drafts, 40 accepted, 46 tokens after the first: 5.0 counted, 4.6 delivered.
    record = answered(0, due_s=0, chunk_tokens=(1, *range(6, 46, 5), 46, 47))
    assert delivered_per_step([record], counted(drafts=10, accepted=40)) == pytest.approx(4.6)


def test_steps_without_a_draft_count_as_steps() -> None:
    # n-gram lookup found a draft in 2 of 8 steps: 2·(1 + 3) + 6 = 14 tokens after the first.
    record = answered(0, due_s=0, chunk_tokens=(1, 5, 9, 10, 11, 12, 13, 14, 15))
    assert delivered_per_step([record], counted(drafts=2, accepted=6)) == pytest.approx(14 / 8)


def test_chunks_that_hold_several_steps_do_not_look_like_speculation() -> None:
    # 20 tokens after the first in 4 chunks: the server was slow to write, the engine took 20 steps.
    record = answered(0, due_s=0, chunk_tokens=(1, 6, 11, 16, 21))
    assert delivered_per_step([record], counted(drafts=20, accepted=0)) == pytest.approx(1.0)
    assert delivered_per_step([record], counted(), speculates=False) == 1.0
    assert delivered_per_step([record], counted(drafts=0, accepted=0)) == 1.0


def test_chunks_of_one_token_each_show_that_nothing_speculates() -> None:
    assert delivered_per_step([answered(0, due_s=0)], counted()) == 1.0


def test_chunks_of_several_tokens_without_counters_prove_nothing() -> None:
    assert delivered_per_step([answered(0, due_s=0, chunk_tokens=(1, 4))], counted()) is None


def test_a_speculating_engine_without_counters_is_unknown() -> None:
    assert delivered_per_step([answered(0, due_s=0)], counted(), speculates=True) is None


def test_single_tokens_leave_nothing_to_divide() -> None:
    assert delivered_per_step([answered(0, due_s=0, tokens=1)], counted(), speculates=False) is None


def told(request: int, chunk_tokens: tuple[int, ...], *, drafts: int, accepted: int) -> Record:
    return answered(
        request,
        due_s=request,
        chunk_tokens=chunk_tokens,
        drafts=drafts,
        draft_tokens=4 * drafts,
        accepted_tokens=accepted,
    )


def test_what_is_said_of_each_request_comes_before_the_counters() -> None:
    # The counters hold 6 drafts more, of a request that is not of the replay.
    records = [told(0, (1, 5, 9), drafts=2, accepted=6), told(1, (1, 2, 3), drafts=2, accepted=0)]
    found = speculation(between((0, 0, 0, (0,)), (10, 40, 20, (5,))), records)
    assert (found.drafts, found.proposed, found.accepted) == (4, 16, 6)
    assert found.acceptance == pytest.approx(6 / 16)
    assert found.tokens_per_step == pytest.approx(1 + 6 / 4)
    assert found.accepted_per_position == pytest.approx((0.5,))


def test_the_counters_are_read_where_an_answered_request_says_nothing() -> None:
    records = [told(0, (1, 5, 9), drafts=2, accepted=6), answered(1, due_s=1)]
    assert speculation(between((0, 0, 0, (0,)), (10, 40, 20, (5,))), records).drafts == 10


def test_a_failed_request_of_which_nothing_is_said_does_not_silence_the_others() -> None:
    records = [told(0, (1, 5, 9), drafts=2, accepted=6), failed(1, due_s=1)]
    found = speculation([], records)
    assert found.drafts == 2
    assert delivered_per_step(records, found) == pytest.approx(8 / 2)


def test_steps_bounded_request_by_request_are_nearer_to_the_truth() -> None:
    # One request took 5 steps without a draft (5 tokens, read in one chunk), one took 2 drafts and was cut
    # off inside the second: 10 accepted, 7 delivered. Of the sums the largest is 3, that of the chunks.
    records = [told(0, (1, 6), drafts=0, accepted=0), told(1, (1, 6, 8), drafts=2, accepted=10)]
    found = speculation([], records)
    assert delivered_per_step(records, found) == pytest.approx(12 / (5 + 2))
    assert delivered_per_step(
        [answered(0, due_s=0, chunk_tokens=(1, 6)), answered(1, due_s=1, chunk_tokens=(1, 6, 8))], found
    ) == pytest.approx(12 / 3)
