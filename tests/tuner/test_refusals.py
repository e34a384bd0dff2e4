import pytest

from cluster.order import Cause
from tuner.refusals import Picks, Refusals, refusals


def _picks(**values: str) -> Picks:
    return frozenset(values.items())


BF16_OFF = _picks(scheme="bf16", speculation="off")
FP8_OFF = _picks(scheme="fp8", speculation="off")
FP8_NGRAM = _picks(scheme="fp8", speculation="ngram")
BF16_NGRAM = _picks(scheme="bf16", speculation="ngram")


def test_a_choice_alone_unexplained_in_an_unsupported_config_is_the_culprit() -> None:
    found = refusals([BF16_OFF], [(FP8_OFF, Cause.UNSUPPORTED)])
    assert found.choices == {("scheme", "fp8")}
    assert found.forbid(FP8_NGRAM)
    assert not found.forbid(BF16_NGRAM)


def test_between_two_unexplained_choices_only_their_combination_is_avoided() -> None:
    found = refusals([BF16_OFF], [(FP8_NGRAM, Cause.UNSUPPORTED)])
    assert found.choices == frozenset()
    assert found.forbid(FP8_NGRAM)
    assert not found.forbid(FP8_OFF)
    assert not found.forbid(BF16_NGRAM)


def test_a_later_measurement_clears_one_of_two_suspects_and_leaves_the_other() -> None:
    found = refusals([BF16_OFF, BF16_NGRAM], [(FP8_NGRAM, Cause.UNSUPPORTED)])
    assert found.choices == {("scheme", "fp8")}


def test_choices_that_all_work_elsewhere_are_blamed_only_together() -> None:
    found = refusals([BF16_OFF, FP8_OFF, BF16_NGRAM], [(FP8_NGRAM, Cause.UNSUPPORTED)])
    assert found == Refusals(frozenset(), frozenset({FP8_NGRAM}))


@pytest.mark.parametrize("cause", [Cause.INVALID_ARGUMENT, Cause.SETTINGS_DIFFER])
def test_where_a_number_may_be_at_fault_a_choice_is_condemned_only_when_it_comes_twice(cause: Cause) -> None:
    once = [(FP8_OFF, cause)]
    assert refusals([BF16_OFF], once).choices == frozenset()
    assert refusals([BF16_OFF], once * 2).choices == {("scheme", "fp8")}


def test_a_failure_that_a_condemned_choice_explains_condemns_nothing_else() -> None:
    refused = [(FP8_OFF, Cause.UNSUPPORTED), (FP8_NGRAM, Cause.UNSUPPORTED)]
    found = refusals([BF16_OFF], refused)
    assert found == Refusals(frozenset({("scheme", "fp8")}), frozenset())


def test_running_out_of_memory_condemns_nothing() -> None:
    for cause in Cause:
        if cause not in (Cause.UNSUPPORTED, Cause.INVALID_ARGUMENT, Cause.SETTINGS_DIFFER):
            assert refusals([BF16_OFF], [(FP8_OFF, cause)] * 3) == Refusals()


def test_before_anything_was_measured_nothing_is_condemned_alone() -> None:
    assert refusals([], [(FP8_OFF, Cause.UNSUPPORTED)]).choices == frozenset()
