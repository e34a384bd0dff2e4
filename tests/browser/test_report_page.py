"""The report, as a browser shows it: on a wide screen, on a phone, in the dark, printed, without scripts."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.studies import LARGE, large_study, small_study
from tuner.report.write import report


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    runs = tmp_path_factory.mktemp("runs")
    small_study(runs)
    report("tea", runs, runs / "report.html")
    return (runs / "report.html").as_uri()


def test_it_shows_the_pictures_and_links_lead_to_their_sections(page: Page, address: str) -> None:
    asked: list[str] = []
    faults: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.goto(address)
    assert page.title() == "SIMULATED · tea"
    pictures = page.locator("svg.chart")
    # TTFT, E2E, TPOT and attainment over rate, and the front.
    assert pictures.count() == 5
    for place in range(5):
        box = pictures.nth(place).bounding_box()
        assert box is not None
        assert box["width"] > 300
        assert box["height"] > 150
    page.get_by_role("link", name="failures").click()
    assert page.get_by_role("heading", name="Failures by cause").is_visible()
    assert page.get_by_text("no room for <b>weights</b>").is_visible()
    assert page.locator("tbody b").count() == 0
    page.get_by_text("The same in numbers").click()
    assert page.get_by_role("cell", name="held, capacity").first.is_visible()
    assert asked == [address, *(url for url in asked[1:] if url.startswith(f"{address}#"))]
    assert faults == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_but_tables_scrolls_sideways(browser: Browser, address: str, scheme: str) -> None:
    context = browser.new_context(
        viewport={"width": 375, "height": 800},
        color_scheme=scheme,  # type: ignore[arg-type]
        java_script_enabled=True,
    )
    page = context.new_page()
    page.goto(address)
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    paper, ink = (
        sum(
            map(
                int,
                page.evaluate(f"getComputedStyle(document.body).{name}").split("(")[1][:-1].split(",")[:3],
            )
        )
        for name in ("backgroundColor", "color")
    )
    assert (paper < ink) is (scheme == "dark")
    context.close()


def test_it_prints_on_white_paper_whatever_the_screen(browser: Browser, address: str) -> None:
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(address)
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.pdf().startswith(b"%PDF")
    context.close()


def test_the_config_is_selected_whole_by_one_click(page: Page, address: str) -> None:
    page.goto(address)
    page.locator("pre").first.click()
    selected = page.evaluate("getSelection().toString()")
    assert selected.startswith("# SIMULATED")
    assert "max-num-seqs: 16" in selected


def test_of_300_trials_it_draws_all_names_few_and_folds_the_rest_of_the_front(
    page: Page, tmp_path: Path
) -> None:
    large_study(tmp_path)
    report("kettle", tmp_path, tmp_path / "report.html")
    page.goto((tmp_path / "report.html").as_uri())
    front = page.locator("svg.chart").last
    # A failed trial, every tenth, has no numbers.
    assert front.locator(".mark").count() == LARGE - LARGE // 10
    assert front.locator("text.label").count() <= 6
    more = page.get_by_text("configs of the front", exact=False).first
    rows = page.locator("details tbody tr")
    assert not rows.last.is_visible()
    more.click()
    assert rows.last.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 1800
