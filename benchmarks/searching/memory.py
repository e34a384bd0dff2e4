"""Noise-free evaluations of configs, each played once and kept in a file."""

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.searching.evaluation import Crash, Evaluation, Evaluator, Worth
from cluster.order import Cause
from search_spaces.space import Config
from search_spaces.values import Scalar

_PROBES = 8
"""Random configs whose worth, with the space's text, tells one problem on one version of the engine from
another: what was kept of another is not read."""


class Memory:
    """True worth by config, of one problem."""

    def __init__(self, file: Path, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        file.parent.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(file, isolation_level=None)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS truth "
            "(problem TEXT, config TEXT, worth TEXT, PRIMARY KEY (problem, config)) WITHOUT ROWID"
        )
        self.problem = fingerprint(evaluator)
        self._known = {
            config: _read(worth)
            for config, worth in self._database.execute(
                "SELECT config, worth FROM truth WHERE problem = ?", (self.problem,)
            )
        }

    def __len__(self) -> int:
        return len(self._known)

    def true(self, config: Config) -> Evaluation:
        """From the file, or played now."""
        key = written(config.values)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._evaluator.true(config)
            self._database.execute(
                "INSERT OR REPLACE INTO truth VALUES (?, ?, ?)", (self.problem, key, _written(found))
            )
        return found

    def all(self) -> Iterator[tuple[Config, Evaluation]]:
        """Every config that is known."""
        for key, worth in self._known.items():
            yield Config(json.loads(key)), worth


def fingerprint(evaluator: Evaluator) -> str:
    """Of a problem and of the engine's answers to it."""
    rng = np.random.default_rng(0)
    space = evaluator.loaded.space
    configs = [space.sample(rng) for _ in range(_PROBES)]
    answers = [[written(config.values), _written(evaluator.true(config))] for config in configs]
    return hashlib.sha256(json.dumps([space.text, answers]).encode()).hexdigest()[:16]


def written(values: Mapping[str, Scalar]) -> str:
    """A config as text, the same for the same config."""
    return json.dumps(dict(values), separators=(",", ":"))


def _written(worth: Evaluation) -> str:
    if isinstance(worth, Crash):
        return json.dumps([worth.cause.value, worth.reason])
    return json.dumps([worth.violation, *worth.losses])


def _read(text: str) -> Evaluation:
    row: Sequence[str | float] = json.loads(text)
    if isinstance(row[0], str):
        return Crash(cause=Cause(row[0]), reason=str(row[1]))
    return Worth(losses=tuple(float(loss) for loss in row[1:]), violation=row[0])
