"""What the tests of a start share: a clock that stands still until it is put on, and an engine's log."""

from pathlib import Path

import pytest


class Clock:
    """Tells `at_s`, whatever time it is."""

    def __init__(self) -> None:
        self.at_s = 100.0

    def __call__(self) -> float:
        return self.at_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Empty."""
    path = tmp_path / "engine.log"
    path.touch()
    return path
