import json

import pytest
from click.testing import CliRunner

from tuner.mistakes import Mistake
from tuner.quality_tasks import Served, TaskScore
from tuner.tasks_commands import EXIT_WORSE, tasks

ASKED = ["arc_easy", "--endpoint", "http://new:8000/v1", "--tokenizer", "m"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Served]:
    """Servers that tasks were run against; the new one is worse."""
    from cluster.node.running_server import RunningServer

    seen: list[Served] = []

    def run(names: list[str], server: Served, **_: object) -> tuple[TaskScore, ...]:
        seen.append(server)
        value = 0.3 if "new" in server.url else 0.5
        return (TaskScore(task=names[0], metric="acc", value=value, stderr=0.01, higher_is_better=True),)

    monkeypatch.setattr("tuner.quality_tasks.run_tasks", run)
    monkeypatch.setattr(RunningServer, "check", lambda self: "m")
    return seen


def test_a_server_that_is_worse_than_another_is_told_and_ends_in_3(asked: list[Served]) -> None:
    done = CliRunner().invoke(tasks, [*ASKED, "--beside", "http://old:8000", "--may-load"])
    assert done.exit_code == EXIT_WORSE
    assert done.output.splitlines() == [
        "arc_easy acc: 0.3 ± 0.01, beside 0.5 ± 0.01",
        "worse: arc_easy acc is 0.3, the reference's 0.5",
    ]
    assert [server.url for server in asked] == ["http://new:8000", "http://old:8000"]


def test_alone_its_scores_are_told_as_data_too(asked: list[Served]) -> None:
    done = CliRunner().invoke(tasks, [*ASKED, "--may-load", "--json"])
    assert done.exit_code == 0
    told = json.loads(done.output)
    assert [one["value"] for one in told["scores"]] == [0.3]
    assert told["worse"] == told["beside"] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (ASKED, "--may-load says"),
        ([",", *ASKED[1:], "--may-load"], "no task is named"),
        ([*ASKED, "--may-load", "--key-variable", "NO_SUCH_KEY"], "no such variable"),
    ],
)
def test_bad_input_is_refused_before_any_server_is_asked(
    asked: list[Served], words: list[str], said: str
) -> None:
    with pytest.raises(Mistake, match=said):
        CliRunner().invoke(tasks, words, catch_exceptions=False)
    assert not asked
