import dataclasses
import json
from datetime import UTC, datetime, timedelta

from tests.tuner import loads
from tuner.records import StudyFile
from tuner.runs_table import STUDIES, outdated, runs_tables

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)

SPACE = """
name: small
model: some/model
parameters:
  speculation:
    choices:
      off: {}
      ngram: {parameters: {depth: {int: [1, 8]}, only: {choices: [one]}}}
traffic: {make: {requests: 10, rate: 1.0, input_mean: 10, output_mean: 10, seed: 1}}
slo: {ttft_p95_ms: 500}
"""


def _study(**changes: object) -> StudyFile:
    return dataclasses.replace(loads.study(), space_text=SPACE, **changes)  # type: ignore[arg-type]


def test_the_front_is_told_by_its_tag_and_the_studys_id_and_the_best_is_first() -> None:
    front, trials = runs_tables(_study())
    assert front.name == "front of tea"
    assert front.state["searchFilter"] == "tags.on_front = 'true' AND tags.`tuner.study_id` = 'tea-1f'"
    assert trials.state["searchFilter"] == "tags.trial != '' AND tags.`tuner.study_id` = 'tea-1f'"
    assert (front.state["orderByKey"], front.state["orderByAsc"]) == ("metrics.`capacity_rps`", False)
    least, _ = runs_tables(_study(objectives=("tpot_p95", "capacity")))
    assert (least.state["orderByKey"], least.state["orderByAsc"]) == ("metrics.`tpot_p95_ms`", True)


def test_columns_are_the_objectives_and_what_the_space_varies_each_with_a_width() -> None:
    front, trials = runs_tables(_study())
    assert front.state["selectedColumns"] == [
        "metrics.`capacity_rps`",
        "metrics.`tpot_p95_ms`",
        "tags.`capacity`",
        "params.`speculation`",
        "params.`speculation.depth`",
    ]
    assert {"tags.`on_front`", "tags.`cause`"} < set(trials.state["selectedColumns"])  # type: ignore[arg-type]
    assert front.state["columnOrder"] == ["attributes.`Run Name`", *front.state["selectedColumns"]]
    assert set(front.state["columnWidths"]) == set(front.state["columnOrder"])  # type: ignore[arg-type]


def test_a_view_is_kept_as_mlflows_page_keeps_its_own() -> None:
    front, _ = runs_tables(_study())
    kept = json.loads(front.text(NOON))
    assert (kept["name"], kept["createdAt"]) == ("front of tea", 1767355200000)
    assert json.loads(kept["state"]) == front.state
    assert front.tag == "mlflow.sharedViewState.tuner-tea-1f-front"
    assert "viewStateShareKey=tuner-tea-1f-front&" in front.place("3")


def test_the_oldest_studies_views_make_room_and_peoples_own_are_left_alone() -> None:
    tags = {"mlflow.sharedViewState.mine": "{}", "team": "a"}
    for number in range(STUDIES + 2):
        study = dataclasses.replace(_study(), id=f"{number:03d}-x")
        # The second is the oldest.
        at = NOON + timedelta(hours=-1 if number == 1 else number)
        tags |= {table.tag: table.text(at) for table in runs_tables(study)}
    assert set(outdated(tags)) == {
        f"mlflow.sharedViewState.tuner-{study}-x-{which}"
        for study in ("000", "001")
        for which in ("front", "trials")
    }
    assert (
        outdated({name: text for name, text in tags.items() if "000" not in name and "001" not in name}) == ()
    )
