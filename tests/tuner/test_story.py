import dataclasses

from cluster.order import Cause
from tests.tuner import stories
from tuner.front import view
from tuner.records import StudyFile
from tuner.story import ROWS, story


def _study(engine: str = "vllm") -> StudyFile:
    return dataclasses.replace(stories.study_file(), engine=engine)


def test_a_study_is_told_with_its_front_control_failures_and_next_commands() -> None:
    trials = [
        stories.stored(stories.measured(1.0, 0.05), 0),
        stories.stored(stories.measured(2.0, 0.03), 1),
        stories.stored(stories.failed(Cause.OUT_OF_MEMORY, "needs 3 | has 2\nGiB"), 2),
    ]
    told = story(view(_study(), trials), runs="elsewhere")
    assert "3 trials finished: 2 measured, 1 failed" in told
    assert "| 1 | 2 (1.5 to 2.5) | 30 (27 to ?) | ngram · depth 3 · max_num_seqs 16 |" in told
    assert "| 0 | 1 (0.5 to 1.5) | 50 (45 to ?) | the engine's defaults |" in told
    assert "| out of memory | 1 | trial 2: needs 3 \\| has 2 GiB |" in told
    assert "    tuner export tea --trial 1 --to vllm --out deploy/ --runs elsewhere" in told


def test_simulated_numbers_are_marked_and_not_offered_for_export() -> None:
    told = story(view(_study("simulated"), [stories.stored(stories.measured(), 1)]))
    assert "SIMULATED" in told
    assert "tuner export" not in told


def test_a_study_that_has_measured_nothing_says_so() -> None:
    told = story(view(_study(), []))
    assert "No trial has been measured yet." in told
    assert "Not measured yet." in told


def test_a_long_front_is_cut_with_the_number_of_the_rest() -> None:
    trials = [stories.stored(stories.measured(1.0 + n, 0.01 * (1 + n)), n) for n in range(1, ROWS + 6)]
    assert "… and 5 more." in story(view(_study(), trials))
