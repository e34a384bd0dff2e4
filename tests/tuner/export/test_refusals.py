"""What is refused, and that each flag lets its own fault pass and no other."""

from dataclasses import replace

import pytest

from cluster.order import Cause, Ran
from tests.tuner.export.subjects import QUALITY, TRIAL, VERIFICATION
from tuner.export.refusals import ExportError, Mark, check_marks, check_measured, marks_of
from tuner.records import State, StoredTrial

FAILED = replace(VERIFICATION, held=False, why="capacity did not hold")
WORSE = replace(QUALITY, passed=False, reasons=("agreement 0.4 is below 0.9",))
SIMULATED = replace(TRIAL, ran=Ran(engine="simulated"))


@pytest.mark.parametrize(
    ("trial", "told"),
    [
        (replace(TRIAL, state=State.FAILED, cause=Cause.UNSUPPORTED, reason="no kernel"), "no kernel"),
        (replace(TRIAL, state=State.UNSCORED, reason="no p95"), "no p95"),
        (replace(TRIAL, measurement=None, reason="lost"), "lost"),
    ],
)
def test_a_trial_without_a_measurement_is_refused_with_the_reason_and_no_flag(
    trial: StoredTrial, told: str
) -> None:
    with pytest.raises(ExportError, match=told) as refused:
        check_measured(trial)
    assert "--allow" not in str(refused.value)


def test_a_measured_verified_passing_trial_has_no_mark() -> None:
    assert marks_of(TRIAL, QUALITY, VERIFICATION) == ()


def test_marks_are_what_is_missing_or_failed() -> None:
    assert marks_of(TRIAL, None, None) == (Mark.UNVERIFIED, Mark.QUALITY_UNCHECKED)
    assert marks_of(TRIAL, WORSE, FAILED) == (Mark.NOT_HELD, Mark.QUALITY_FAILED)


def test_of_a_simulated_trial_nothing_more_is_expected_but_what_is_known_against_it_counts() -> None:
    assert marks_of(SIMULATED, None, None) == (Mark.SIMULATED,)
    assert marks_of(SIMULATED, WORSE, FAILED) == (Mark.SIMULATED, Mark.NOT_HELD, Mark.QUALITY_FAILED)


@pytest.mark.parametrize("mark", list(Mark))
def test_each_mark_is_refused_with_its_flag_and_passes_with_its_own_alone(mark: Mark) -> None:
    others = [other for other in Mark if other is not mark]
    with pytest.raises(ExportError, match=mark.flag):
        check_marks(TRIAL, [mark], others, quality=WORSE, verification=FAILED)
    check_marks(TRIAL, [mark], [mark])


def test_all_refusals_are_told_at_once_with_their_reasons_and_flags() -> None:
    with pytest.raises(ExportError) as refused:
        check_marks(TRIAL, [Mark.NOT_HELD, Mark.QUALITY_FAILED], [], quality=WORSE, verification=FAILED)
    assert str(refused.value) == (
        "trial 17 is not exported: its verification failed (capacity did not hold); "
        "its quality failed (agreement 0.4 is below 0.9). "
        "--allow-not-held --allow-quality failed exports it all the same, marked"
    )


def test_an_unverified_trial_is_told_the_command_that_verifies_it() -> None:
    with pytest.raises(ExportError, match="tuner verify chat_8B --trial 17"):
        check_marks(TRIAL, [Mark.UNVERIFIED], [])
