"""Makes the pictures of docs/images that show pages: `make screenshots`.

Two studies on the simulated engine, of 8 and of 300 trials, are searched under `--runs` if they are not
there, and what a browser shows of them is photographed: the report, the pages that MLflow keeps, MLflow's own
page of a study.
"""

import argparse
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tests.browser.chromium import arguments, found
from tuner.curve_plot import curves_html
from tuner.front import FrontView, read_view
from tuner.history_plot import history_html
from tuner.parallel_plot import parallel_html
from tuner.plot import front_html
from tuner.report.write import report

IMAGES = Path(__file__).parent.parent / "docs" / "images"
SMALL, LARGE = 8, 300
_PATIENCE_MS = 300_000
_TUNER = "from tuner.cli import main; main()"

_PAGES: tuple[tuple[str, int, Callable[[FrontView], str], tuple[int, int]], ...] = (
    ("front", SMALL, front_html, (1000, 620)),
    ("curves", SMALL, curves_html, (1000, 780)),
    ("history", LARGE, history_html, (1200, 700)),
    ("parallel", LARGE, parallel_html, (1300, 720)),
)


def main() -> None:
    """Search what is missing, then photograph."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--runs", type=Path, default=Path("runs/screenshots"))
    asked.add_argument("--out", type=Path, default=IMAGES)
    given = asked.parse_args()
    program = found()
    if program is None:
        sys.exit("no Chromium: python -m tests.browser.chromium installs one")
    for trials in (SMALL, LARGE):
        _searched(given.runs, trials)
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as folder:
        browser = driver.chromium.launch(executable_path=program, args=arguments(), timeout=_PATIENCE_MS)
        for name, trials, html, size in _PAGES:
            page = Path(folder) / f"{name}.html"
            page.write_text(html(read_view(given.runs / _name(trials))), encoding="utf-8")
            _shot(browser, page.as_uri(), given.out / f"{name}.png", size, wait_for=".main-svg")
        for trials, name in ((SMALL, "report"), (LARGE, "report-300")):
            page = Path(folder) / f"{name}.html"
            report(_name(trials), given.runs, page)
            _shot(browser, page.as_uri(), given.out / f"{name}.png", (1200, 1750), wait_for="svg.chart")
        with _mlflow(given.runs) as address:
            for trials, name in ((SMALL, "study-run"), (LARGE, "study-run-300")):
                _study_run(browser, address(trials), given.out / f"{name}.png")
        browser.close()


def _name(trials: int) -> str:
    return f"demo-{trials}"


def _searched(runs: Path, trials: int) -> None:
    name = _name(trials)
    new = ["--space", "spaces/8b.yaml", "--engine", "simulated"]
    more = ["--resume"] if (runs / name / "study.json").exists() else new
    command = ["search", *more, "--study", name, "--trials", str(trials), "--runs", str(runs)]
    subprocess.run([sys.executable, "-c", _TUNER, *command], check=True, stdout=subprocess.DEVNULL)


def _shot(browser: Browser, address: str, out: Path, size: tuple[int, int], *, wait_for: str) -> None:
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme="light")
    context.set_default_timeout(_PATIENCE_MS)
    page = context.new_page()
    page.goto(address)
    page.locator(wait_for).first.wait_for()
    page.screenshot(path=out)
    context.close()
    print(out)


def _study_run(browser: Browser, address: str, out: Path) -> None:
    """MLflow's page of a study, its description unfolded."""
    context = browser.new_context(viewport={"width": 1800, "height": 1250}, color_scheme="light")
    context.set_default_timeout(_PATIENCE_MS)
    page = context.new_page()
    page.goto(address)
    page.get_by_text("Best by capacity").first.wait_for()
    more = page.get_by_text("Show more", exact=True)
    if more.count():
        more.first.click()
    page.screenshot(path=out)
    context.close()
    print(out)


@contextmanager
def _mlflow(runs: Path) -> Iterator[Callable[[int], str]]:
    """`tuner ui`; gives the address of the study of so many trials."""
    from tuner.ledger import study_page

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-c", _TUNER, "ui", "--runs", str(runs), "--port", str(port)]
    with (
        tempfile.NamedTemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log) as server,
    ):
        try:
            while "startup complete" not in Path(log.name).read_text(encoding="utf-8"):
                if server.poll() is not None:
                    sys.exit("MLflow did not start")
                time.sleep(0.2)

            def address(trials: int) -> str:
                store = f"sqlite:///{runs.resolve() / 'mlflow.db'}"
                place = study_page(store, read_view(runs / _name(trials)).study)
                return f"http://127.0.0.1:{port}/{place}"

            yield address
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
