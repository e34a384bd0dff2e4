import dataclasses

from cluster.order import Cause, Outcome
from search_spaces.load import load_space
from tests.tuner import loads, stories
from tests.tuner.verdicts import passed, verdict
from tuner.entries import TAG_LENGTH
from tuner.front import view
from tuner.quality import Checks
from tuner.records import State, StudyFile
from tuner.story import ROWS, story

SPACE = """
name: small
model: some/model
parameters:
  speculation: {choices: {off: {}, ngram: {parameters: {depth: {int: [1, 4]}}}}}
  max_num_seqs: {int: [4, 64]}
  block_size: {choices: [16]}
"""


def _study(engine: str = "vllm") -> StudyFile:
    return dataclasses.replace(stories.study_file(), engine=engine, space_text=SPACE)


def test_a_study_is_told_with_its_front_control_failures_and_next_commands() -> None:
    trials = [
        stories.stored(stories.measured(1.0, 0.05), 0),
        stories.stored(stories.measured(2.0, 0.03), 1),
        stories.stored(stories.failed(Cause.OUT_OF_MEMORY, "needs 3 | has 2\nGiB"), 2),
        stories.stored(stories.failed(Cause.OUT_OF_MEMORY, "needs 4"), 3),
    ]
    told = story(view(_study(), trials, passed(trials)), runs="elsewhere")
    assert told.startswith(
        "Trials finished: 4 (2 measured, 2 failed). "
        "Best by goodput: trial 1, 2 (1.5 to 2.5) requests/s, the control 1 (0.5 to 1.5); "
        "measured once.\n"
    )
    assert "| 1 | 2 (1.5 to 2.5) | 30 (27 to ?) | ngram · depth 3 · seqs 16 |" in told
    assert "| 0 | 1 (0.5 to 1.5) | 50 (45 to ?) | the engine's defaults |" in told
    assert "| out of memory | 2, 3 | trial 2, ngram · depth 3 · seqs 16: needs 3 \\| has 2 GiB |" in told
    assert "    tuner verify tea --trial 1 --runs elsewhere\n    tuner export tea --trial 1 --to vllm" in told
    assert "--out deploy/ --runs elsewhere" in told


def test_it_begins_with_what_was_searched_for_what_and_on_what_load() -> None:
    told = story(view(_study(), []))
    assert "space `small` of some/model over `speculation`, `speculation.depth`, `max_num_seqs`, for" in told
    assert "goodput (up) and tpot_p95 (down), sampler tpe, seed 11" in told
    assert "TTFT at most 500 ms for 95% of requests" in told
    # 4 requests/s as recorded, played 1.5 times as fast
    assert (
        "trace traces/small.jsonl (abababababab), 2 requests, recorded at 4 requests/s, "
        "played at speed 1.5, so 6 requests/s offered." in told
    )


def test_simulated_numbers_are_marked_and_not_offered_for_export() -> None:
    told = story(view(_study("simulated"), [stories.stored(stories.measured(), 1)]))
    assert told.startswith("**SIMULATED, not measured.** Trials finished: 1")
    assert "tuner export" not in told
    assert "without `--engine simulated`" in told


def test_the_trial_to_export_is_the_best_by_the_first_objective() -> None:
    trials = [stories.stored(stories.measured(n, 0.01 * n), n) for n in (1, 2, 3)]
    assert "--trial 3 " in story(view(_study(), trials, passed(trials)))


def test_where_the_defaults_are_best_nothing_is_offered_for_export() -> None:
    trials = [
        stories.stored(stories.measured(3.0, 0.05), 0),
        stories.stored(stories.measured(2.0, 0.03), 1),
    ]
    told = story(view(_study(), trials, passed(trials)))
    assert "No trial beat the engine's defaults on goodput" in told
    assert "tuner export" not in told


def test_a_study_that_has_measured_nothing_says_so() -> None:
    told = story(view(_study(), []))
    assert "No trial has been measured yet." in told
    assert "Not measured yet." in told


def test_a_trial_without_a_score_is_told_with_its_reason() -> None:
    trial = dataclasses.replace(
        stories.stored(stories.measured(), 1), state=State.UNSCORED, reason="tpot_p95 is missing"
    )
    assert "| no score | 1 | trial 1, ngram · depth 3 · seqs 16: tpot_p95 is missing |" in story(
        view(_study(), [trial])
    )


def test_a_long_front_is_cut_with_the_number_of_the_rest() -> None:
    trials = [stories.stored(stories.measured(1.0 + n, 0.01 * (1 + n)), n) for n in range(1, ROWS + 6)]
    assert "… and 5 more." in story(view(_study(), trials))


def test_trials_of_the_front_with_the_same_numbers_share_a_row_that_counts_them() -> None:
    crowd = [stories.stored(stories.measured(2.0, 0.03), n) for n in range(1, 6)]
    trials = [*crowd, stories.stored(stories.measured(1.0, 0.02), 6)]
    told = story(view(_study(), trials, passed(trials)))
    assert "| 1 (+4) | 2 (1.5 to 2.5) |" in told
    assert "| 6 | 1 (0.5 to 1.5) |" in told
    assert "\n| 2 |" not in told
    assert "more." not in told


def test_who_is_like_whom_is_told_of_rows_not_of_the_trials_that_share_one() -> None:
    numbers = [(2.0, 0.03), (2.0, 0.03), (2.1, 0.031)]
    trials = [stories.stored(stories.measured(*values), 1 + n) for n, values in enumerate(numbers)]
    assert "Their intervals do not tell apart trials 1 and 3." in story(
        view(_study(), trials, passed(trials))
    )


def test_what_a_long_front_leaves_out_counts_every_trial_of_its_rows() -> None:
    values = [(1.0 + n, 0.01 * (1 + n)) for n in range(ROWS + 1)]
    trials = [stories.stored(stories.measured(*values[n // 3]), 1 + n) for n in range(3 * len(values))]
    assert "… and 3 more." in story(view(_study(), trials, passed(trials)))


def test_a_note_with_full_tables_fits_the_tag_that_keeps_it() -> None:
    space = load_space("spaces/8b.yaml")
    config = max(space.covering(), key=lambda config: len(config.values)).values
    outcomes: list[Outcome] = [
        loads.measured(loads.BETWEEN, tpot_p95_s=0.05, disagreements=("the client counted more " * 20,)),
        *(
            loads.measured((loads.whole(1.5), loads.whole(1.5 + n / 7)), tpot_p95_s=0.01 * (1 + n / 7))
            for n in range(1, 30)
        ),
        *(stories.failed(cause, f"{cause} for a reason " * 20) for cause in list(Cause)[:4]),
    ]
    trials = [
        dataclasses.replace(stories.stored(outcome, number), config=config)
        for number, outcome in enumerate(outcomes)
    ]
    study = dataclasses.replace(loads.study(engine="vllm"), space_text=space.text)
    assert len(story(view(study, trials))) <= TAG_LENGTH


def test_it_tells_how_capacity_was_found_and_what_cuts_saved() -> None:
    trials = [
        stories.stored(loads.measured(loads.BETWEEN), 0),
        stories.stored(loads.measured(loads.ABOVE), 1),
    ]
    told = story(view(loads.study(engine="vllm"), trials, passed(trials)))
    assert (
        "Best by capacity: trial 1, at least 96 (91.2 to ?) requests/s, the control 12 (11.4 to 13.2); "
        "measured once." in told
    )
    assert "speeds that close in on the capacity to 5 %" in told
    assert "7 replays, 2 of them cut as soon as their verdict was certain, which saved 10 s." in told


def test_a_closed_loop_is_told_as_no_load_that_users_make_and_without_a_speed() -> None:
    told = story(view(loads.closed_study(), [stories.stored(loads.in_closed_loop(), 1)]))
    assert "**Load:** closed loop, 8 in flight: no load a user makes." in told
    assert "speed" not in told


def test_trials_whose_numbers_the_engine_contradicts_are_marked_with_one_reason() -> None:
    trials = [
        stories.stored(loads.measured(loads.BETWEEN, disagreements=("4012 tokens | 4300",)), 0),
        stories.stored(loads.measured(loads.ABOVE, disagreements=("TTFT differs",)), 1),
    ]
    told = story(view(loads.study(), trials))
    assert "| 1 ! | at least 96" in told
    assert "! In trials 0, 1 client and engine disagree, for example: 4012 tokens \\| 4300." in told


def test_what_is_known_of_quality_is_told_of_the_front_and_of_what_it_kept_off_it() -> None:
    trials = [stories.stored(stories.measured(n, 0.01 * n), n) for n in (1, 2)]
    trials[1] = dataclasses.replace(trials[1], arguments={"kv_cache_dtype": "fp8"})
    checks = Checks(
        verdicts={
            trials[0].artefact: verdict(trials[0].artefact),
            trials[1].artefact: verdict(trials[1].artefact, passed=False),
        }
    )
    study = dataclasses.replace(_study(), options={"quality": {}})
    told = story(view(study, trials, checks))
    assert "- trial 1 quality passed: NLL +0.0639 (0.0498 to 0.0765)" in told
    assert (
        "- trial 2: quality failed, so never recommended; trial 2 quality failed: the reference's words cost"
        in told
    )
    assert "tuner export tea --trial 1" in told
