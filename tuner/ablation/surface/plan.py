"""Which cells a cost surface has: the trial without speculation, and every depth at every acceptance.

    runs/<study>/ablations/trial-0007-acceptance/design.json     written before anything runs
                                                /trials/0000/    one folder a run, as a trial's
                                                /report.json     what they show

Acceptance is vLLM's synthetic one: at acceptance a and depth k a draft's tokens are accepted up to and with
position i with probability a^i, whatever the draft says. So the draft costs what it costs, and how good it
is, is set.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from objectives.factorial import Cell
from search_spaces.parameters import active
from search_spaces.settings import Settings, gpus_needed
from search_spaces.space import Space
from search_spaces.values import Json, Scalar
from search_spaces.vllm_rules import refusals
from tuner.ablation.plan import ABLATIONS, DESIGN, LEAST_REPLICATES, PlannedRun
from tuner.mistakes import Mistake
from tuner.records import RecordError, StoredTrial, StudyFile
from tuner.redaction import redacted_environment, redacted_settings

SPECULATION = "speculative_config"
SCHEMA = 1
"""Of design.json."""

_DEPTH = "num_speculative_tokens"
_SET_ANEW = (
    _DEPTH,
    "num_speculative_tokens_per_batch_size",
    "rejection_sample_method",
    "synthetic_acceptance_rates",
    "synthetic_acceptance_length",
)
NONE: Cell = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedSurface:
    """Which cost surface. None leaves a choice to the one that there is already, else to the defaults."""

    trial: int
    acceptances: tuple[float, ...]
    depths: tuple[int, ...] | None = None
    replicates: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Speculation at one depth, with one acceptance."""

    depth: int
    acceptance: float

    @property
    def cell(self) -> Cell:
        return frozenset({f"depth {self.depth}", f"acceptance {self.acceptance!r}"})

    @property
    def rates(self) -> list[float]:
        """By position, as vLLM takes them: accepted up to and with it."""
        return [self.acceptance**power for power in range(1, self.depth + 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfacePlan:
    """The cost surface of one trial's speculation."""

    study: StudyFile
    space: Space
    trial: StoredTrial
    folder: Path
    """The surface's own."""
    chosen: Settings
    """The trial's, as its space renders it."""
    points: tuple[Point, ...]
    """By depth, then acceptance."""
    refused: Mapping[Cell, str]
    """Cells that are known to fail, and why; they are not run."""
    replicates: int

    @property
    def asked(self) -> Mapping[str, Json]:
        """The trial's `speculative_config`."""
        found = self.chosen.arguments[SPECULATION]
        assert isinstance(found, dict)
        return found

    @property
    def base(self) -> str:
        return f"trial {self.trial.number} without speculation"

    @property
    def depths(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(point.depth for point in self.points))

    @property
    def acceptances(self) -> tuple[float, ...]:
        return tuple(dict.fromkeys(point.acceptance for point in self.points))

    @property
    def cells(self) -> tuple[Cell, ...]:
        return (NONE, *(point.cell for point in self.points if point.cell not in self.refused))

    @property
    def runs(self) -> tuple[PlannedRun, ...]:
        """Block by block: no speculation, the others in random order, no speculation again."""
        others = [cell for cell in self.cells if cell]
        found: list[PlannedRun] = []
        for block in range(self.replicates):
            rng = np.random.default_rng([self.study.seed, self.trial.number, block])
            order = [NONE, *(others[at] for at in rng.permutation(len(others))), NONE]
            found += [
                PlannedRun(number=len(found) + place, block=block, cell=cell)
                for place, cell in enumerate(order)
            ]
        return tuple(found)

    def name(self, cell: Cell) -> str:
        point = self.point(cell)
        return "no speculation" if point is None else f"depth {point.depth} at {point.acceptance:g}"

    def point(self, cell: Cell) -> Point | None:
        """None for the cell without speculation."""
        return next((point for point in self.points if point.cell == cell), None)

    def settings(self, cell: Cell) -> Settings:
        """The trial's own but for `speculative_config`."""
        point = self.point(cell)
        arguments = {name: value for name, value in self.chosen.arguments.items() if name != SPECULATION}
        if point is not None:
            arguments[SPECULATION] = {
                **{name: value for name, value in self.asked.items() if name not in _SET_ANEW},
                _DEPTH: point.depth,
                "rejection_sample_method": "synthetic",
                "synthetic_acceptance_rates": [*point.rates],
            }
        return replace(self.chosen, arguments=arguments)

    def gpus(self, cell: Cell) -> int:
        return 0 if self.space.resources.gpus == 0 else gpus_needed(self.settings(cell))

    def levels(self, cell: Cell) -> dict[str, Scalar]:
        point = self.point(cell)
        if point is None:
            return {"speculation": "off"}
        return {"speculation": "synthetic", "depth": point.depth, "acceptance": point.acceptance}

    def is_control(self, cell: Cell) -> bool:
        """Never: what it is held against is the trial without speculation, not the engine's defaults."""
        return False

    def raw(self) -> dict[str, Json]:
        return {
            "schema": SCHEMA,
            "study": self.study.name,
            "trial": self.trial.number,
            "trace_digest": self.study.trace_digest,
            "acceptances": [*self.acceptances],
            "depths": [*self.depths],
            "replicates": self.replicates,
            "seed": self.study.seed,
            "cells": [self._raw_cell(cell) for cell in (NONE, *(point.cell for point in self.points))],
            "runs": [
                {"number": run.number, "block": run.block, "cell": self.name(run.cell)} for run in self.runs
            ],
        }

    def _raw_cell(self, cell: Cell) -> dict[str, Json]:
        settings = self.settings(cell)
        return {
            "name": self.name(cell),
            "refused": self.refused.get(cell),
            "model": settings.model,
            "arguments": redacted_settings(settings.arguments),
            "environment": {**redacted_environment(settings.environment)},
        }


def surface_plan(
    asked: AskedSurface, study: StudyFile, space: Space, trials: Sequence[StoredTrial], study_folder: Path
) -> SurfacePlan:
    """The surface that is asked for, in agreement with the one that is on disk already, if any.

    Raises:
        Mistake: the trial does not speculate, its engine plays no synthetic acceptance, or another surface
            of it was begun.
        SpaceError: the trial's config is none of the space's.
    """
    if study.engine != "simulated" and space.resources.gpus == 0:
        raise Mistake(
            "--acceptance: vLLM's CPU engine takes synthetic acceptance and dies at the first draft it "
            "verifies (0.32: Synthetic acceptance not supported with CPU sampling); it needs a GPU"
        )
    trial = next(trial for trial in trials if trial.number == asked.trial)
    chosen = space.common if trial.config is None else space.settings(space.config(trial.config))
    speculation = chosen.arguments.get(SPECULATION)
    if not isinstance(speculation, dict):
        raise Mistake(
            f"trial {asked.trial} does not speculate, so --acceptance has no draft to draw the cost of; "
            "ablate a trial with a speculative_config"
        )
    folder = study_folder / ABLATIONS / f"trial-{asked.trial:04d}-acceptance"
    begun = _read(folder)
    depths = asked.depths or _begun_depths(begun) or default_depths(_own_depth(asked, speculation))
    points = tuple(
        Point(depth=depth, acceptance=acceptance)
        for depth in sorted(set(depths))
        for acceptance in sorted(set(asked.acceptances))
    )
    drawn = SurfacePlan(
        study=study,
        space=space,
        trial=trial,
        folder=folder,
        chosen=chosen,
        points=points,
        refused={},
        replicates=asked.replicates or _begun_replicates(begun) or LEAST_REPLICATES,
    )
    refused = {point.cell: why for point in points if (why := _refusal(drawn, point)) is not None}
    drawn = replace(drawn, refused=refused)
    _check_same(drawn, begun)
    return drawn


def asked_surface(
    trial: int, acceptance: str | None, depths: str | None, replicates: int | None
) -> AskedSurface:
    """From the words of a command line, numbers by comma. Raises Mistake."""
    if acceptance is None:
        raise Mistake("--depths is of a cost surface; say at which acceptances with --acceptance 0.2,0.5,0.8")
    accepted = _numbers("--acceptance", acceptance, "numbers from 0 to 1 by comma")
    if not all(0 <= value <= 1 for value in accepted):
        raise Mistake(f"--acceptance {acceptance}: give numbers from 0 to 1 by comma")
    deep = None if depths is None else _numbers("--depths", depths, "whole numbers from 1 by comma")
    if deep is not None and not all(value >= 1 and value.is_integer() for value in deep):
        raise Mistake(f"--depths {depths}: give whole numbers from 1 by comma")
    return AskedSurface(
        trial=trial,
        acceptances=accepted,
        depths=None if deep is None else tuple(int(value) for value in deep),
        replicates=replicates,
    )


def _numbers(option: str, text: str, wanted: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise Mistake(f"{option} {text}: give {wanted}") from None


def default_depths(own: int) -> tuple[int, ...]:
    """1, the trial's own, and halfway between; where nothing lies between, twice its own."""
    third = (1 + own) // 2 if own > 2 else 2 * own
    return tuple(sorted({1, own, third}))


def _own_depth(asked: AskedSurface, speculation: Mapping[str, Json]) -> int:
    depth = speculation.get(_DEPTH)
    if isinstance(depth, int) and depth > 0:
        return depth
    raise Mistake(f"trial {asked.trial} leaves its depth to the engine; say which with --depths 1,3")


def _refusal(plan: SurfacePlan, point: Point) -> str | None:
    """Why a cell is known to fail, in one line; None where nothing is known against it."""
    settings = plan.settings(point.cell)
    found = list(refusals(settings))
    needed, most = gpus_needed(settings), plan.space.resources.gpus
    if most and needed > most:
        found.append(f"needs {needed} GPUs, where resources.gpus is {most}")
    values = _values(plan, point)
    found += [one.sentence(values) for one in plan.space.constraints if one.holds(values) is False]
    return "; ".join(found) or None


def _values(plan: SurfacePlan, point: Point) -> dict[str, Scalar]:
    """The trial's values by path, with the depth that is asked where a parameter sets it."""
    if plan.trial.config is None:
        return {}
    values = dict(plan.trial.config)
    for parameter, _ in active(plan.space.parameters, values):
        if getattr(parameter, "argument", None) == f"{SPECULATION}.{_DEPTH}":
            values[parameter.path] = point.depth
    return values


def _read(folder: Path) -> Mapping[str, Json] | None:
    path = folder / DESIGN
    if not path.exists():
        return None
    try:
        raw: dict[str, Json] = json.loads(path.read_text(encoding="utf-8"))
        if raw["schema"] != SCHEMA:
            raise ValueError(f"schema {raw['schema']}, this version reads {SCHEMA}")
        return {name: raw[name] for name in ("depths", "replicates", *_DECIDED)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{path}: cannot be read ({type(error).__name__}: {error})") from error


def _begun_depths(begun: Mapping[str, Json] | None) -> tuple[int, ...]:
    found = None if begun is None else begun["depths"]
    return tuple(one for one in found if isinstance(one, int)) if isinstance(found, list) else ()


def _begun_replicates(begun: Mapping[str, Json] | None) -> int:
    found = None if begun is None else begun["replicates"]
    return found if isinstance(found, int) else 0


_DECIDED = ("acceptances", "depths", "seed", "trace_digest", "cells")
"""What must be as it was when the design was written."""


def _check_same(plan: SurfacePlan, begun: Mapping[str, Json] | None) -> None:
    """Raise Mistake where what was begun is another surface; more replicates are more of the same."""
    if begun is None:
        return
    least = _begun_replicates(begun)
    if plan.replicates < least:
        raise Mistake(f"{plan.folder} was begun with {least} replicates; ask for as many, or for more")
    wanted = plan.raw()
    differing = [name for name in _DECIDED if begun[name] != wanted[name]]
    if differing:
        raise Mistake(
            f"{plan.folder} was begun with other {', '.join(differing)}; ask the same, or move that folder "
            "away"
        )
