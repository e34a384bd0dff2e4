"""Makes the pictures of docs/images that show pages and the terminal: `make screenshots`.

Two studies on the simulated engine, of 8 and of 300 trials, are searched under `--runs` if they are missing,
and what a browser shows of them is photographed: the report, the pages that MLflow keeps, its own pages of
a study. A third, short search gives the terminal's live view. `--only` makes some of them.
"""

import argparse
import io
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, TimeoutError, sync_playwright
from rich.console import Console

from tests.browser.chromium import arguments, found
from tuner.curve_plot import curves_html
from tuner.events import Event, UnderWay
from tuner.front import FrontView, read_view
from tuner.history_plot import history_html
from tuner.live import LiveState, picture
from tuner.parallel_plot import parallel_html
from tuner.plot import front_html
from tuner.report.write import report

IMAGES = Path(__file__).parent.parent / "docs" / "images"
SMALL, LARGE = 8, 300
_LIVE, _SHOWN_AT = 24, 18
"""Trials of the search that is shown alive, and how many have ended then."""
_PATIENCE_MS = 600_000
"""A study of 300 trials is a long page where cores are few."""
_ASSISTANT_MS = 15_000
"""By then MLflow's assistant has opened, or it never does."""
_COLOURS = 128
"""Of a picture: pages have few, and the file is a third."""
_TUNER = "from tuner.cli import main; main()"

_PAGES: tuple[tuple[str, int, Callable[[FrontView], str], tuple[int, int]], ...] = (
    ("front", SMALL, front_html, (1000, 620)),
    ("front-300", LARGE, front_html, (1000, 620)),
    ("curves", SMALL, curves_html, (1000, 780)),
    ("history", LARGE, history_html, (1200, 700)),
    ("parallel", LARGE, parallel_html, (1300, 720)),
)
_REPORTS = (("report", SMALL), ("report-300", LARGE))
_MLFLOW = (("study-run", SMALL), ("study-run-300", LARGE), ("runs-front-300", LARGE))
_TERMINAL = "live"
_OF = {page[0]: page[1] for page in _PAGES} | dict(_REPORTS) | dict(_MLFLOW)
"""Which study each is of."""


def main() -> None:
    """Search what is missing, then photograph."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--runs", type=Path, default=Path("runs/screenshots"))
    asked.add_argument("--out", type=Path, default=IMAGES)
    asked.add_argument("--only", nargs="+", choices=(*_OF, _TERMINAL), metavar="NAME")
    given = asked.parse_args()
    only = given.only or [*_OF, _TERMINAL]
    if set(only) & set(_OF):
        _browsed(given.runs, given.out, only)
    if _TERMINAL in only:
        _live(given.out / f"{_TERMINAL}.svg")


def _browsed(runs: Path, out: Path, only: list[str]) -> None:
    program = found()
    if program is None:
        sys.exit("no Chromium: python -m tests.browser.chromium installs one")
    for trials in sorted({trials for name, trials in _OF.items() if name in only}):
        _searched(runs, trials)
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as folder:
        browser = driver.chromium.launch(executable_path=program, args=arguments(), timeout=_PATIENCE_MS)
        for name, trials, html, size in _PAGES:
            if name in only:
                page = Path(folder) / f"{name}.html"
                page.write_text(html(read_view(runs / _name(trials))), encoding="utf-8")
                with _shown(browser, page.as_uri(), size) as seen:
                    seen.locator(".main-svg").first.wait_for()
                    _kept(seen, out / f"{name}.png")
        for name, trials in _REPORTS:
            if name in only:
                page = Path(folder) / f"{name}.html"
                report(_name(trials), runs, page)
                with _shown(browser, page.as_uri(), (1200, 1750)) as seen:
                    seen.locator("svg.chart").first.wait_for()
                    _kept(seen, out / f"{name}.png")
        if any(name in only for name, _ in _MLFLOW):
            for trials in sorted({trials for name, trials in _MLFLOW if name in only}):
                # What MLflow lacks of a study that was stopped, or searched before.
                _tuner("sync", _name(trials), "--runs", str(runs))
            with _mlflow(runs) as pages:
                _mlflow_pages(browser, pages, out, only)
        browser.close()


def _mlflow_pages(
    browser: Browser, pages: Callable[[int], Mapping[str, str]], out: Path, only: list[str]
) -> None:
    for name, trials in _MLFLOW:
        if name in only and name.startswith("study-run"):
            with _shown(browser, pages(trials)[f"study {_name(trials)}"], (1500, 1250)) as seen:
                # Attached: on a narrow screen it lies further down.
                seen.get_by_text("Best by capacity").first.wait_for(state="attached")
                _without_assistant(seen)
                seen.get_by_text("Show more", exact=True).first.click()
                seen.get_by_text("Show less", exact=True).first.wait_for()
                _kept(seen, out / f"{name}.png")
    if "runs-front-300" in only:
        with _shown(browser, pages(LARGE)[f"front of {_name(LARGE)}"], (1500, 900)) as seen:
            seen.get_by_text("(simulated)").first.wait_for()
            _without_assistant(seen)
            _kept(seen, out / "runs-front-300.png")


def _without_assistant(page: Page) -> None:
    """MLflow's assistant opens by itself at the right of its pages, somewhat later than they do."""
    close = page.locator('[data-component-id="mlflow.assistant.chat_panel.close"]')
    try:
        close.click(timeout=_ASSISTANT_MS)
    except TimeoutError:
        return
    close.wait_for(state="hidden")


def _live(out: Path) -> None:
    """The live view of a search late in its budget, as it was once."""
    from tuner.session import SearchRequest
    from tuner.usecases import search

    state, shown = LiveState(), list[str]()

    def show(event: Event | str) -> None:
        state.take(event)
        if isinstance(event, UnderWay) and state.done >= _SHOWN_AT:
            console = Console(record=True, width=120, file=io.StringIO())
            console.print(picture(state, width=console.width, height=40))
            shown.append(console.export_svg(title="tuner search", unique_id="live"))

    with tempfile.TemporaryDirectory() as folder:
        search(
            SearchRequest(
                space="spaces/8b.yaml", engine="simulated", name="live", trials=_LIVE, runs=Path(folder)
            ),
            show,
        )
    # Its letters would come from a network.
    out.write_text(re.sub(r"@font-face \{.*?\}", "", shown[0], flags=re.DOTALL), encoding="utf-8")
    print(out)


def _name(trials: int) -> str:
    return f"demo-{trials}"


def _searched(runs: Path, trials: int) -> None:
    """Search it, or what it lacks."""
    name = _name(trials)
    begun = (runs / name / "study.json").exists()
    if begun and len(read_view(runs / name).trials) >= trials:
        return
    new = ["--space", "spaces/8b.yaml", "--engine", "simulated"]
    more = ["--resume"] if begun else new
    _tuner("search", *more, "--study", name, "--trials", str(trials), "--runs", str(runs))


def _tuner(*words: str) -> None:
    subprocess.run([sys.executable, "-c", _TUNER, *words], check=True, stdout=subprocess.DEVNULL)


@contextmanager
def _shown(browser: Browser, address: str, size: tuple[int, int]) -> Iterator[Page]:
    """A page of that size in a light browser."""
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme="light")
    context.set_default_timeout(_PATIENCE_MS)
    context.set_default_navigation_timeout(_PATIENCE_MS)
    page = context.new_page()
    page.goto(address)
    yield page
    context.close()


def _kept(page: Page, out: Path) -> None:
    """What the page shows now, as a small file."""
    shot = Image.open(io.BytesIO(page.screenshot(timeout=_PATIENCE_MS))).convert("RGB")
    shot.quantize(_COLOURS, dither=Image.Dither.NONE).save(out, optimize=True)
    print(out)


@contextmanager
def _mlflow(runs: Path) -> Iterator[Callable[[int], Mapping[str, str]]]:
    """`tuner ui`; gives the addresses of the pages of the study of so many trials."""
    from tuner.ledger import study_pages

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

            def pages(trials: int) -> Mapping[str, str]:
                store = f"sqlite:///{runs.resolve() / 'mlflow.db'}"
                found = study_pages(store, read_view(runs / _name(trials)).study)
                return {what: f"http://127.0.0.1:{port}/{place}" for what, place in found.items()}

            yield pages
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
