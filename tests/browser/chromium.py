"""A Chromium to look at pages with: one that is on the machine, or one that is installed by `python -m` this.

`make test` does so first. Where none can be had, the tests of this folder are skipped and say so.
"""

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
PATIENCE_S = 300.0
"""For one try at installing."""
FLAGS = ("--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync")
"""Without the network ones a browser keeps asking its maker's servers, which a closed network refuses."""


def found() -> str | None:
    """Its program; None where there is none."""
    for name in NAMES:
        path = shutil.which(name)
        if path is not None:
            return path
    return _playwrights_own()


def arguments() -> list[str]:
    """Of its command line. As root it has no sandbox to run in."""
    return [*FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]


def _playwrights_own() -> str | None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        path = driver.chromium.executable_path
    return path if Path(path).exists() else None


def install() -> str:
    """Get one if there is none: the distribution's where this user may install it, else Playwright's own.

    What came of it, in words; never fails, since a machine without a browser can do all else.
    """
    there = found()
    if there is not None:
        return f"browser: {there}"
    ways = []
    if os.geteuid() == 0 and shutil.which("apt-get"):
        ways.append(
            ["apt-get", "install", "--yes", "--no-install-recommends", "chromium", "fonts-dejavu-core"]
        )
        _try(["apt-get", "update", "--quiet"])
    ways.append([sys.executable, "-m", "playwright", "install", "chromium"])
    for way in ways:
        _try(way)
        there = found()
        if there is not None:
            return f"browser: installed {there}"
    return "browser: none could be installed; tests that look at pages are skipped"


def _try(command: list[str]) -> None:
    """Whatever comes of it: a closed network may also keep it waiting."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(command, check=False, capture_output=True, env=environment, timeout=PATIENCE_S)


if __name__ == "__main__":
    print(install())
