import dataclasses
import re
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tuner.ablation.desks import Desk, S, measured, refused
from tests.tuner.ablation.reports import FACTORS, report
from tuner.ablation.page import report_html
from tuner.ablation.report import EffectReport, Report, report_json
from tuner.ablation.words import ratio, times
from tuner.titles import number

_VOID = {"meta", "input", "br", "line", "rect", "circle"}
_CELLS = [frozenset(f for f, on in zip(FACTORS, f"{i:03b}", strict=True) if on == "1") for i in range(8)]


class _Page(HTMLParser):
    """A page taken apart: what can be read of it, its tags, and how many columns each table's rows have."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[tuple[str, bool]] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.rows: list[list[int]] = []
        """By table, the columns that each row fills."""
        self._spanning: list[list[int]] = []
        self.feed(page)
        self.close()
        assert self.open == []

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        told = dict(attrs)
        match tag:
            case "table":
                self.rows.append([])
                self._spanning.append([])
            case "tr":
                # Cells of rows above that reach down into this one
                self._spanning[-1] = [left - 1 for left in self._spanning[-1] if left > 1]
                self.rows[-1].append(len(self._spanning[-1]))
            case "td" | "th":
                self.rows[-1][-1] += int(told.get("colspan") or 1)
                self._spanning[-1] += [int(told.get("rowspan") or 1)] if told.get("rowspan") else []
            case _:
                pass
        if tag not in _VOID:
            unread = tag in ("style", "title") or told.get("aria-hidden") == "true"
            tick = "tick" in (told.get("class") or "").split()
            self.open.append((tag, unread or tick or any(hidden for _, hidden in self.open)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        if not any(hidden for _, hidden in self.open):
            self.words.append(data)


def _page(made: Report) -> _Page:
    return _Page(report_html(made))


def test_the_heading_says_what_was_measured_on_what_and_when() -> None:
    text = _page(report()).text
    for told in (
        "night, trial 7",
        "org/Model-8B",
        "NVIDIA H100, up to 1 GPU a trial (node-3)",
        "vllm 0.32.0",
        "chat.jsonl (0123456789ab), 400 requests",
        "fixed load: speed 1.5, 6 requests/s offered",
        "TTFT at most 500 ms, for 95% of requests",
        "2026-01-02 03:04 UTC to 2026-01-02 05:06 UTC",
        "every combination of 3 factors, 8 cells, in 2 blocks; 18 of 18 runs done",
    ):
        assert told in text


def test_simulated_is_said_at_the_top_in_the_title_and_at_every_number() -> None:
    page = report_html(report())
    assert "<title>SIMULATED" in page
    assert "SIMULATED: nothing on this page was measured on an engine." in _Page(page).text
    headings = re.findall(r"<h2.*?>(.*?)</h2>", page)
    numbers = [heading for heading in headings if heading != "How to read this"]
    assert all("SIMULATED" in heading for heading in numbers)
    assert "SIMULATED" not in report_html(report(simulated=False))


def test_promise_combination_and_difference_are_told_for_every_number() -> None:
    made = report()
    text = _page(made).text
    for outcome in made.outcomes:
        for effect in (outcome.product, outcome.combination, outcome.shortfall):
            assert effect is not None
            assert times(effect) in text
        for factor in outcome.factors:
            for effect in (factor.isolated, factor.in_company, factor.average):
                assert effect is not None
                assert times(effect) in text


def test_every_number_that_can_be_read_is_the_reports() -> None:
    made = report(lost=[frozenset({"speculation"})])
    known = {form for value in _values(report_json(made)) for form in _forms(value)}
    counts = {str(len(items)) for items in (made.factors, made.cells)}
    allowed = known | counts | {"1", "2", "95", "100", "0"}  # block 2, "95 %", "to 100 %", "start at 0"
    read = re.findall(r"\d+(?:\.\d+)?", _page(made).text)
    assert len(read) > 200
    assert set(read) <= allowed


def _values(found: object) -> Iterator[float | str]:
    match found:
        case Mapping():
            for key, value in found.items():
                yield str(key)
                yield from _values(value)
        case list():
            for value in found:
                yield from _values(value)
        case int() | float() | str():
            yield found
        case _:
            pass


def _forms(value: float | str) -> Iterator[str]:
    """How a number may be written: as a ratio, in three digits, in thousand millions, in per cent."""
    if isinstance(value, str):
        yield from re.findall(r"\d+(?:\.\d+)?", value)
        return
    yield from (ratio(value), number(value), number(value / 1e9), f"{100 * value:.0f}", f"{100 * value:.2g}")


def test_nothing_is_fetched_and_nothing_runs() -> None:
    page = report_html(report())
    for sign in ("http:", "https:", "src=", "href", "url(", "@import", "<script", "<link", "<img"):
        assert sign not in page


_HOSTILE = "<evil onload=\"x('&')\">"


def test_whatever_text_the_report_holds_is_shown_and_never_run() -> None:
    hostile = _poisoned(report(lost=[frozenset({"speculation"})]), "")
    page = report_html(hostile)
    taken = _Page(page)
    assert "evil" not in taken.tags
    assert "<evil" not in page
    for shown in (hostile.study, hostile.setup.model, hostile.factors[0].name, hostile.cells[3].name):
        assert shown in taken.text
    reason = hostile.cells[4].runs[0].reason
    assert reason is not None
    assert reason in taken.text


def _poisoned(value: Any, field: str) -> Any:
    """Every text of a report but those that are of a closed set, and the names of metrics."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(
            value, **{f.name: _poisoned(getattr(value, f.name), f.name) for f in dataclasses.fields(value)}
        )
    match value:
        case str() if field not in ("metric", "better", "fraction", "state", "verdict"):
            return value + _HOSTILE
        case tuple():
            return tuple(_poisoned(item, field) for item in value)
        case Mapping():
            named = field in ("cells", "config")
            return {
                _poisoned(key, "") if named else key: _poisoned(item, field) for key, item in value.items()
            }
        case _:
            return value


@settings(deadline=None, max_examples=20)
@given(lost=st.sets(st.sampled_from(_CELLS)), replicates=st.sampled_from([1, 2]))
def test_whatever_is_missing_the_page_has_no_hole(lost: set[frozenset[str]], replicates: int) -> None:
    page = _page(report(lost=lost, replicates=replicates))
    for table in page.rows:
        assert len(set(table)) == 1
    assert not re.search(r"\b(None|nan|inf|Undefined)\b", page.text)


def test_runs_that_were_judged_make_a_page(tmp_path: Path) -> None:
    seen = Desk(tmp_path).run(
        lambda cell, run: (
            refused()
            if cell == frozenset({S})
            else measured(goodput_rps=4.0 + len(cell) + 0.01 * run.number, tpot_mean_s=0.02 / (1 + len(cell)))
        )
    )
    text = _page(seen).text
    assert "Cell speculation has no measurement: failed (unsupported: not on this chip)." in text
    for told in (*seen.summary, *seen.cannot, *seen.notes, *(answer.answer for answer in seen.answers)):
        assert " ".join(told.split()) in text


def test_a_cell_that_failed_is_listed_with_its_cause() -> None:
    text = _page(report(lost=[frozenset({"speculation"})])).text
    assert "speculation failed : the engine refuses it" in text
    assert "unsupported the engine refuses it" in text


def test_what_cannot_be_told_is_said_so() -> None:
    text = _page(report(lost=[frozenset({"speculation"})])).text
    assert "product of the isolated effects cannot be told from these runs" in text
    assert "cannot be told from the mean" in text


def test_a_fractions_aliases_are_printed() -> None:
    made = report(tuple("abcde"))
    alias = made.outcomes[0].factors[0].aliases[0]
    assert alias.factors
    text = _page(made).text
    assert "a fraction of resolution V" in text
    assert re.search(r"holds -?[\d.]+ of \w × \w × \w", text)


def test_a_pair_is_coloured_as_the_words_beside_it_say() -> None:
    made = report(("a", "b"))
    (pair,) = made.outcomes[0].interactions
    for contend, look, words in (
        (True, "worse", "contend"),
        (False, "better", "help each other"),
        (None, "untold", "neither, as far as told"),
    ):
        told = dataclasses.replace(pair, contend=contend)
        outcome = dataclasses.replace(made.outcomes[0], interactions=(told,))
        page = report_html(dataclasses.replace(made, outcomes=(outcome,)))
        row = page[page.index("together, over the product") :].partition("</tbody>")[0]
        assert f'class="bar {look}"' in row
        assert words in row


def test_a_number_that_the_load_pins_is_marked() -> None:
    made = report()
    pinned = dataclasses.replace(made.outcomes[0], informative=False)
    text = _page(dataclasses.replace(made, outcomes=(pinned, *made.outcomes[1:]))).text
    assert "Pinned by the offered load: effects on goodput say nothing here." in text


def test_before_anything_ran_there_is_a_page_all_the_same() -> None:
    made = report(lost=_CELLS)
    empty = dataclasses.replace(
        made,
        summary=(),
        drops=(),
        without=None,
        setup=dataclasses.replace(made.setup, engine=(), hardware=(), nodes=(), begun=None, ended=None),
        cells=tuple(dataclasses.replace(cell, state="not run", why=None, runs=()) for cell in made.cells),
    )
    text = _page(empty).text
    assert "the control was not measured" in text
    assert "No config can be named yet" in text


def test_the_config_and_its_command_can_be_copied_as_they_are() -> None:
    made = report()
    assert made.without is not None
    page = report_html(made)
    assert "<pre>quantisation: w4a16\nspeculation.depth: 3\n</pre>" in page
    assert f"<pre>{made.without.command}</pre>" in page


def test_the_config_without_what_is_dropped_is_held_against_all_on() -> None:
    made = report()
    assert made.without is not None
    effect = EffectReport(ratio=1.07, low=1.02, high=1.12, told=True)
    rest = dataclasses.replace(made.without, dropped=("speculation",), against_all={"goodput_rps": effect})
    text = _page(dataclasses.replace(made, without=rest)).text
    assert "The config without speculation (trial 7)" in text
    assert "goodput against all on: ×1.07 (1.02 to 1.12) better" in text


@pytest.mark.parametrize("fraction", ["full", "IV"])
def test_the_same_report_gives_the_same_page(fraction: Any) -> None:
    names = FACTORS if fraction == "full" else tuple("abcdef")
    first, second = (report_html(report(names, fraction=fraction)) for _ in range(2))
    assert first == second


def test_the_page_stays_small_enough_to_be_mailed() -> None:
    assert len(report_html(report()).encode()) < 300_000
