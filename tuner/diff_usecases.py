"""What a user can ask for of two configs. Nothing here prints; what the user got wrong is a `Mistake`."""

from pathlib import Path

from tuner.diff.compare import Compared, compared
from tuner.diff.side import read_side
from tuner.usecases import users_mistakes


def diff(a: str, b: str, *, runs: Path) -> Compared:
    """Two configs side by side, each `STUDY:TRIAL`, `STUDY:control` or an export's folder."""
    with users_mistakes():
        return compared(read_side(a, runs), read_side(b, runs))
