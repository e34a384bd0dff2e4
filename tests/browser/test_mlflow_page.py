"""MLflow's own pages of a study, clicked through: `tuner ui` on a real MLflow, in a real browser."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import PATIENCE_MS
from tests.browser.studies import logged, small_study

# MLflow 3.17 on SQLAlchemy 2.1.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")


TUNER = "from tuner.cli import main; main()"
"""As the command, whether or not it is on the path."""


@pytest.fixture(scope="module")
def study_page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address that `tuner ui` says; asked for once MLflow answers. Needs the browser, so that nothing is
    started where there is none."""
    runs = tmp_path_factory.mktemp("runs")
    logged(runs, small_study(runs))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-c", TUNER, "ui", "--runs", str(runs), "--port", str(port)]
    log = (runs / "ui.log").open("w+")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as server:
        try:
            assert server.stdout is not None
            said = ""
            while "tea: http" not in said:
                line = server.stdout.readline()
                assert line, (runs / "ui.log").read_text()
                said += line
            address = re.search(r"tea: (\S+)", said)
            assert address is not None
            _answers(runs / "ui.log")
            yield address[1]
        finally:
            server.terminate()
            server.wait()
            log.close()


def _answers(log: Path) -> None:
    """Wait until the server says that it is up."""
    until = time.monotonic() + 3 * PATIENCE_MS / 1000  # it imports for long where cores are few
    while "startup complete" not in log.read_text():
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.2)


def test_the_page_that_tuner_ui_names_tells_the_study_and_draws_it(page: Page, study_page: str) -> None:
    page.goto(study_page)
    expect(page.get_by_text("simulated · tea").first).to_be_visible(timeout=PATIENCE_MS)
    # On a narrow screen the description lies further down.
    expect(page.get_by_text("Best by capacity: trial 2").first).to_be_attached(timeout=PATIENCE_MS)
    expect(page.get_by_text("trial 4 (simulated)").first).to_be_attached(timeout=PATIENCE_MS)
    page.get_by_text("Artifacts", exact=True).first.click()
    for name in ("front.html", "curves.html", "history.html", "parallel.html"):
        page.get_by_text(name, exact=True).first.click()
        drawn = page.frame_locator("iframe").locator(".main-svg")
        expect(drawn.first).to_be_visible(timeout=PATIENCE_MS)


def test_the_view_of_the_front_has_its_trials_alone_with_the_objectives_as_columns(
    page: Page, study_page: str
) -> None:
    page.goto(study_page)
    with page.context.expect_page() as opened:  # MLflow opens a description's links beside its page
        page.get_by_role("link", name="the front", exact=True).first.click()
    table = opened.value
    expect(table.get_by_text("front of tea").first).to_be_visible(timeout=PATIENCE_MS)
    for name in ("capacity_rps", "tpot_p95_ms"):
        expect(table.get_by_role("columnheader", name=name).first).to_be_visible(timeout=PATIENCE_MS)
    trials = table.get_by_role("link", name=re.compile(r"^trial \d"))
    # The best first; the control, what is dominated and what failed are on no front.
    expect(trials).to_have_text([re.compile("^trial 2 "), re.compile("^trial 1 ")], timeout=PATIENCE_MS)
