"""A study that can be killed anywhere: `python -m tests.tuner.mortal FOLDER TOTAL SEED KILLS`.

One process imports everything and forks a driver after the other. Each searches the same study on with a real
database, real records and a real MLflow, and dies by SIGKILL at one of its own writes, drawn by the seed: a
file opened for writing, a rename, a statement or a commit of either database. When KILLS have died the last
one lives to the end. Whatever was on disk after a death must be there, unchanged, after the next.

Prints JSON: how many died, the orders that were sent out by all of them, what the deaths interrupted.
"""

import hashlib
import json
import os
import random
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

from cluster.order import Measured, Order
from tests.tuner.dispatches import FakeDispatch
from tests.tuner.test_study import Desk, good
from tuner.ledger import Ledger
from tuner.records import read_trials
from tuner.study import search

MOST_WRITES = 120
"""A driver dies before it has written more often; it must be fewer than a whole study takes."""


class Death:
    """Kills this process at its n-th write."""

    def __init__(self, at: int, place: Path) -> None:
        self._left = at
        self._place = place
        self._dying = False
        sys.addaudithook(self._seen)
        for name in ("before_cursor_execute", "commit"):
            event.listen(Engine, name, self._statement)

    def _seen(self, name: str, arguments: tuple[Any, ...]) -> None:
        writes = name == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if writes or name in ("os.rename", "os.mkdir", "os.remove", "shutil.rmtree", "fcntl.flock"):
            self._write(f"{name} {Path(str(arguments[0])).name}")

    def _statement(self, *arguments: object) -> None:
        said = str(arguments[2]).split()[:3] if len(arguments) > 2 else ["COMMIT"]
        if said[0] not in ("SELECT", "PRAGMA"):
            self._write(" ".join(said))

    def _write(self, what: str) -> None:
        self._left -= 1
        if self._left <= 0 and not self._dying:
            self._dying = True
            self._place.write_text(what)
            os.kill(os.getpid(), signal.SIGKILL)


def drive(folder: Path, total: int) -> None:
    """Search the study on, noting every order before it is sent out."""

    def answer(order: Order) -> Measured:
        assert order.number not in {trial.number for trial in read_trials(folder / "tea")}
        with (folder / "orders").open("a") as orders:
            orders.write(f"{order.number} {json.dumps(order.arguments, sort_keys=True)}\n")
        return good(order)

    desk = Desk(folder)
    ledger = Ledger(f"sqlite:///{folder}/mlflow.db", artifacts=folder / "artifacts", say=print)
    for _ in search(desk.plan(total), FakeDispatch(answer, gpus=2), desk.open(), ledger):
        pass


def kept(folder: Path) -> dict[str, str]:
    """Digest of every file of every finished trial."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((folder / "tea" / "trials").glob("[0-9]*/**/*"))
        if path.is_file()
    }


def in_a_child(folder: Path, total: int, at: int | None) -> int:
    """Drive in a process of its own; what it ended with."""
    if (pid := os.fork()) == 0:
        status = 1
        try:
            if at is not None:
                Death(at, folder / "death")
            drive(folder, total)
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def deaths(folder: Path, total: int, seed: int, kills: int) -> Iterator[str]:
    """Kill so many drivers, and say at what; then let one live."""
    draw = random.Random(seed)
    before: dict[str, str] = {}
    for _ in range(kills):
        if in_a_child(folder, total, draw.randint(1, MOST_WRITES)) == 0:
            return
        yield (folder / "death").read_text()
        now = kept(folder)
        assert {name: now.get(name) for name in before} == before
        before = now
    assert in_a_child(folder, total, None) == 0
    now = kept(folder)
    assert {name: now.get(name) for name in before} == before


def main(folder: str, total: str, seed: str, kills: str) -> None:
    warnings.simplefilter("ignore")
    place = Path(folder)
    died = list(deaths(place, int(total), int(seed), int(kills)))
    orders = [line.split(" ", 1) for line in (place / "orders").read_text().splitlines()]
    print(json.dumps({"died": died, "orders": [[int(number), asked] for number, asked in orders]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
