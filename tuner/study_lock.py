"""Whether a study is being searched just now, asked without getting in anybody's way."""

import fcntl
from pathlib import Path

from tuner.study import LOCK


def searched_by(folder: Path) -> str | None:
    """Who searches the study; None where nobody does, whatever a driver that died has left written there."""
    try:
        with (folder / LOCK).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read().strip() or "another process"
    except FileNotFoundError:
        pass
    return None
