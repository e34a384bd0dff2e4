import dataclasses
import json
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from cluster.order import Cause, Outcome
from objectives.measurement import Estimate
from objectives.slo import Slo
from tests.tuner import loads, stories
from tests.tuner.report.pages import Page
from tuner.chosen import CHOSEN
from tuner.cli import main
from tuner.mistakes import Mistake
from tuner.records import StoredTrial, StudyFile, write_outcome, write_study
from tuner.report.gather import read_report
from tuner.report.page import duration, report_html
from tuner.report.pictures import looks
from tuner.report.shapes import Report
from tuner.report.write import report

NASTY = '<script>alert("x")</script> & more'


def keep(folder: Path, number: int, outcome: Outcome, **changes: object) -> StoredTrial:
    trial = dataclasses.replace(stories.stored(outcome, number), **changes)  # type: ignore[arg-type]
    write_outcome(folder, trial, outcome)
    return trial


def begun(tmp_path: Path, study: StudyFile | None = None) -> Path:
    folder = tmp_path / "tea"
    write_study(folder, study or loads.study())
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A control, one that is better in capacity, one better in both, one dominated, three failures."""
    made = begun(tmp_path)
    keep(made, 0, loads.measured(tpot_p95_s=0.04), config=None)
    keep(made, 1, loads.measured((loads.whole(1.5), loads.whole(6.0), loads.cut(6.3)), tpot_p95_s=0.02))
    keep(made, 2, loads.measured((loads.whole(1.5), loads.whole(9.0), loads.cut(9.3)), tpot_p95_s=0.03))
    keep(made, 3, loads.measured(loads.BELOW, tpot_p95_s=0.09))
    keep(made, 4, stories.failed(Cause.OUT_OF_MEMORY, NASTY))
    keep(made, 5, stories.failed(Cause.OUT_OF_MEMORY, "again"))
    keep(made, 6, stories.failed(Cause.UNSUPPORTED, "no such kernel"))
    return made


@pytest.fixture
def found(folder: Path) -> Report:
    return read_report(folder)


def test_the_report_holds_the_front_the_control_and_what_is_recommended(found: Report) -> None:
    assert found.front == (2, 1)  # capacities 36 and 24 requests/s; 12 of the control is dominated
    assert found.recommended == 2
    assert found.chosen == (0, 2, 1)
    assert found.config(0).is_control
    assert not found.config(0).on_front
    assert found.config(2).objectives["capacity"].value == pytest.approx(36)
    assert [config.number for config in found.configs] == [0, 1, 2, 3]


def test_numbers_stand_against_the_controls(found: Report) -> None:
    assert found.config(2).against_control == pytest.approx({"capacity": 36 / 12, "tpot_p95": 30 / 40})
    assert found.config(0).against_control == {}


def test_failures_are_told_by_cause_the_commonest_first(found: Report) -> None:
    assert [(f.cause, f.trials) for f in found.failures] == [("out of memory", (4, 5)), ("unsupported", (6,))]
    assert NASTY in found.failures[0].example


def test_time_is_split_into_start_replay_and_the_rest(found: Report) -> None:
    # Four trials ran: 1.5 s to start, 2.5 s of replay, 5 s each. Three failed untimed, 30 s each.
    assert found.time.start_s == pytest.approx(4 * 1.5)
    assert found.time.replay_s == pytest.approx(4 * 2.5)
    assert found.time.rest_s == pytest.approx(4 * 1.0 + 3 * 30)
    assert found.time.elapsed_s == pytest.approx(timedelta(minutes=6, seconds=30).total_seconds())


def test_a_long_front_is_compared_by_a_few_from_end_to_end(tmp_path: Path) -> None:
    made = begun(tmp_path)
    keep(made, 0, loads.measured(tpot_p95_s=0.5), config=None)
    for number in range(1, 31):
        curve = (loads.whole(1.5), loads.whole(3 + number), loads.cut(4 + number))
        keep(made, number, loads.measured(curve, tpot_p95_s=0.001 * number))
    found = read_report(made)
    assert len(found.front) == 30
    assert len(found.chosen) == CHOSEN
    assert found.chosen[:2] == (0, 30)
    assert found.chosen[-1] == 1  # the other end
    assert len({(look.shape, look.dash) for look in looks(found).values()}) == CHOSEN


def test_who_cannot_be_told_apart_is_said_of_each(tmp_path: Path) -> None:
    made = begun(tmp_path, stories.study_file())
    for number, (goodput, tpot) in enumerate([(2.0, 0.040), (2.1, 0.041), (9.0, 0.2)]):
        keep(made, number, stories.measured(goodput, tpot))
    found = read_report(made)
    assert found.config(0).alike == (1,)
    assert found.config(1).alike == (0,)
    assert found.config(2).alike == ()


def test_the_page_stands_alone(found: Report) -> None:
    html = report_html(found)
    page = Page(html)
    assert "script" not in page.tags
    assert not {"link", "img", "iframe", "object"} & set(page.tags)
    assert not [value for name, value in page.attributes if name in ("src", "srcset", "xlink:href")]
    assert all(value.startswith("#") for name, value in page.attributes if name == "href")
    assert "url(" not in html
    assert "@import" not in html
    assert len(html) < 200_000
    assert len(page.ids) == len(set(page.ids))
    for name, value in page.attributes:
        assert name != "href" or value[1:] in page.ids


def test_the_page_is_the_same_each_time(folder: Path, found: Report) -> None:
    assert report_html(found) == report_html(read_report(folder))


def test_what_comes_from_outside_is_escaped(tmp_path: Path) -> None:
    study = dataclasses.replace(loads.study(), trace=NASTY, space_name=NASTY, name="tea")
    made = begun(tmp_path, study)
    doubtful = loads.measured(disagreements=(NASTY,))
    keep(made, 0, doubtful, config={"speculation": NASTY}, model=NASTY)
    keep(made, 1, stories.failed(Cause.DIED_AT_START, NASTY))
    html = report_html(read_report(made))
    page = Page(html)
    assert "<script" not in html
    assert page.text.count("alert") >= 4
    assert NASTY in page.text


def test_the_page_shows_each_section_with_its_numbers(found: Report) -> None:
    text = Page(report_html(found)).text
    for words in (
        "Trial 2 is recommended: capacity 36",
        "×3",
        "Latency against rate",
        "TTFT p95, ms",
        "SLO attainment",
        "The front",
        "out of memory",
        "Time spent",
        "vllm serve --config",
    ):
        assert words in text
    assert "below 1.5" in " ".join(Page(report_html(found)).hovers)  # the dominated one, where the mouse is


def test_a_simulated_study_says_so_in_every_section_with_numbers_and_in_what_is_copied(found: Report) -> None:
    text = Page(report_html(found)).text
    assert text.count("SIMULATED") >= 6
    assert found.launch is not None
    assert found.launch.yaml.startswith("# SIMULATED")


def test_the_config_to_copy_is_yaml_with_what_speaks_against_it(found: Report) -> None:
    assert found.launch is not None
    assert yaml.safe_load(found.launch.yaml)["max-num-seqs"] == 16
    assert any(line.startswith("quality not checked") for line in found.launch.beware)
    assert any(line.startswith("verification not checked") for line in found.launch.beware)


def test_a_secret_is_not_in_the_page(tmp_path: Path) -> None:
    made = begun(tmp_path)
    trial = stories.stored(loads.measured(), 0, HF_TOKEN="hf_secretsecret")
    write_outcome(made, trial, loads.measured(), secrets=["hf_secretsecret"])
    assert "hf_secretsecret" not in report_html(read_report(made))


def test_a_study_without_a_score_still_has_a_page(tmp_path: Path) -> None:
    made = begun(tmp_path)
    keep(made, 0, stories.failed())
    found = read_report(made)
    assert found.recommended is None
    assert found.launch is None
    assert "No trial gave a score" in Page(report_html(found)).text


def test_a_study_that_has_not_begun_has_a_page(tmp_path: Path) -> None:
    assert Page(report_html(read_report(begun(tmp_path)))).text


@pytest.mark.parametrize("objectives", [("goodput",), ("goodput", "tpot_p95", "ttft_p95")])
def test_fronts_of_one_and_of_three_objectives_are_drawn(tmp_path: Path, objectives: tuple[str, ...]) -> None:
    made = begun(tmp_path, dataclasses.replace(stories.study_file(), objectives=objectives))
    for number in range(3):
        more = {"ttft_p95_s": Estimate(value=0.1 * (number + 1))}
        keep(made, number, stories.measured(2.0 + number, 0.04, more))
    page = Page(report_html(read_report(made)))
    assert page.tags.count("figure") == max(len(objectives) - 1, 1)


def test_a_limit_of_the_slo_is_drawn_where_it_stands(tmp_path: Path) -> None:
    made = begun(tmp_path, dataclasses.replace(loads.study(), slo=Slo(ttft_s=0.25, attainment=0.95)))
    keep(made, 0, loads.measured())
    text = Page(report_html(read_report(made))).text
    assert "SLO 250" in text
    assert "SLO 95%" in text


def test_an_ablation_is_summed_up_and_a_damaged_one_is_said_to_be(folder: Path) -> None:
    whole, damaged = folder / "ablations" / "trial-0002", folder / "ablations" / "trial-0003"
    for place, text in ((whole, json.dumps({"summary": [NASTY], "version": 1})), (damaged, "{")):
        place.mkdir(parents=True)
        (place / "report.json").write_text(text)
    found = read_report(folder)
    assert found.ablations[0].summary == (NASTY,)
    assert "cannot be read" in found.ablations[1].summary[0]
    assert NASTY in Page(report_html(found)).text


def test_the_command_writes_the_page_and_its_json_twin(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    runs = ["--runs", str(folder.parent)]
    told = CliRunner().invoke(main, ["report", "tea", "--out", str(out), *runs])
    assert told.exit_code == 0
    assert "4 configs, 2 on the front" in told.output
    assert Page(out.read_text()).text
    twin = json.loads(CliRunner().invoke(main, ["report", "tea", "--json", *runs]).output)
    assert twin["recommended"] == 2
    assert twin["simulated"] is True


def test_mistakes_end_in_one_line(folder: Path, tmp_path: Path) -> None:
    runs = ["--runs", str(folder.parent)]
    for arguments, words in (
        (["report", "tea", *runs], "--out report.html"),
        (["report", "coffee", "--json", *runs], "no study 'coffee'"),
        (["report", "tea", "--out", str(tmp_path / "no" / "x.html"), *runs], "cannot be written"),
    ):
        told = CliRunner().invoke(main, arguments)
        assert told.exit_code == 2, told.output
        assert words in told.output
        assert len(told.output.strip().splitlines()) == 1


def test_a_study_with_objectives_that_nobody_knows_is_a_mistake(tmp_path: Path) -> None:
    begun(tmp_path, dataclasses.replace(stories.study_file(), objectives=("joy",)))
    with pytest.raises(Mistake, match="joy"):
        report("tea", tmp_path, None)


def test_durations_are_told_as_people_say_them() -> None:
    assert [duration(seconds) for seconds in (0.5, 90, 600, 9000)] == ["0.5 s", "90 s", "10 min", "2.5 h"]
