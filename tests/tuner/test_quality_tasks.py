import pytest

from tuner.mistakes import Mistake
from tuner.quality_tasks import Served, TaskScore, run_tasks, scores_of, worse

# As lm-eval 0.4.13 returns it.
RESULTS = {
    "results": {
        "arc": {"alias": "arc", "acc,none": 0.5, "acc_stderr,none": 0.02, "acc_norm,none": 0.4},
        "words": {"alias": "words", "word_perplexity,none": 12.0, "word_perplexity_stderr,none": "N/A"},
        "sums": {"alias": "sums", "exact_match,strict-match": 0.3, "exact_match_stderr,strict-match": 0.01},
    },
    "higher_is_better": {"arc": {"acc": True, "acc_norm": True}, "words": {"word_perplexity": False}},
}


def score(value: float, stderr: float | None = 0.02, *, higher: bool = True) -> TaskScore:
    return TaskScore(task="arc", metric="acc", value=value, stderr=stderr, higher_is_better=higher)


def test_scores_come_with_their_errors_direction_and_filter() -> None:
    assert scores_of(RESULTS) == (
        TaskScore(task="arc", metric="acc", value=0.5, stderr=0.02, higher_is_better=True),
        TaskScore(task="arc", metric="acc_norm", value=0.4, stderr=None, higher_is_better=True),
        TaskScore(task="words", metric="word_perplexity", value=12.0, stderr=None, higher_is_better=False),
        TaskScore(
            task="sums", metric="exact_match (strict-match)", value=0.3, stderr=0.01, higher_is_better=True
        ),
    )


def test_worse_is_what_chance_does_not_explain() -> None:
    # One score: one-sided 5 % is 1.645 of the difference's deviation, 0.02 · √2 = 0.0283, so 0.0465.
    assert worse([score(0.454)], [score(0.5)]) == ()
    assert worse([score(0.453)], [score(0.5)]) == ("arc acc is 0.453, the reference's 0.5",)
    assert worse([score(0.6)], [score(0.5)]) == ()


def test_where_less_is_better_more_is_worse() -> None:
    assert worse([score(13, 0.1, higher=False)], [score(12, 0.1, higher=False)])
    assert not worse([score(11, 0.1, higher=False)], [score(12, 0.1, higher=False)])


def test_a_task_that_the_reference_did_not_run_is_compared_with_nothing() -> None:
    assert worse([score(0.1)], []) == ()


def test_without_the_library_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(Mistake, match=r"pip install '\.\[quality\]'"):
        run_tasks(["arc_easy"], Served(url="http://127.0.0.1:1", model="m"), tokenizer="m")
