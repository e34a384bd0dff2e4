"""What an ablation will measure: its factors, the cells of its design, and the runs in their order.

    runs/<study>/ablations/trial-0007/design.json     all of that, written before anything runs
                                     /trials/0000/    one folder a run, as a trial's (`tuner.records`)
                                     /report.json     what they show, as far as they are

An ablation of some factors only lies under `trial-0007-kv-dtype+speculation`. Blocks are drawn one by one
from the seed, so one more block leaves those before it as they are.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from objectives.factorial import Cell, Design, DesignError, Fraction, design
from search_spaces.factors import Change, Factor, differences, without
from search_spaces.settings import Settings, gpus_needed
from search_spaces.space import Space
from search_spaces.values import Json, Scalar
from search_spaces.vllm_rules import refusals
from tuner.mistakes import Mistake
from tuner.records import RecordError, StoredTrial, StudyFile
from tuner.redaction import redacted, redacted_environment, redacted_settings

DESIGN = "design.json"
REPORT = "report.json"
ABLATIONS = "ablations"
SCHEMA = 1
"""Of design.json."""

LEAST_REPLICATES = 2
"""Below it there is no noise to make intervals of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which ablation. None leaves a choice to the design that there is already, else to the defaults."""

    trial: int
    factors: tuple[str, ...] | None = None
    replicates: int | None = None
    fraction: Fraction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """One cell, once."""

    number: int
    block: int
    cell: Cell


class Runs(Protocol):
    """What is run one after the other, whatever for: `tuner.ablation.run` needs no more than this."""

    @property
    def folder(self) -> Path: ...
    @property
    def runs(self) -> tuple[PlannedRun, ...]:
        """A run of the empty cell failing by its own fault ends them all."""

    def name(self, cell: Cell) -> str: ...
    def levels(self, cell: Cell) -> dict[str, Scalar]:
        """What is set in the cell, as its run's config."""

    def is_control(self, cell: Cell) -> bool: ...
    def raw(self) -> dict[str, Json]:
        """As it is written down before anything runs."""


class Cells(Runs, Protocol):
    """What is measured cell by cell, run after run: a factorial or a cost surface."""

    @property
    def study(self) -> StudyFile: ...
    @property
    def space(self) -> Space: ...
    @property
    def trial(self) -> StoredTrial: ...
    @property
    def cells(self) -> tuple[Cell, ...]:
        """Those that are run; the empty one is what all others are held against."""

    @property
    def refused(self) -> Mapping[Cell, str]:
        """Those that are not, being known to fail, and why."""

    def settings(self, cell: Cell) -> Settings: ...
    def gpus(self, cell: Cell) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """An ablation of one trial."""

    study: StudyFile
    space: Space
    trial: StoredTrial
    folder: Path
    """The ablation's own."""
    chosen: Settings
    """The trial's, as its space renders it."""
    factors: tuple[Factor, ...]
    kept: tuple[Factor, ...]
    """Differences from the control that every cell has, as `factors` were asked for by name."""
    same: tuple[Change, ...]
    """Differences that are none in effect."""
    design: Design
    refused: Mapping[Cell, str]
    """Cells that are known to fail, and why; they are not run."""
    replicates: int

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(factor.name for factor in self.factors)

    @property
    def base(self) -> str:
        """What none on is, in words."""
        if not self.kept:
            return "the control"
        return f"trial {self.trial.number} without {_listed(self.names)}"

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Those that are run."""
        return tuple(cell for cell in self.design.cells if cell not in self.refused)

    @property
    def runs(self) -> tuple[PlannedRun, ...]:
        """Block by block: none on, the other cells in the block's own random order, none on again."""
        none = frozenset[str]()
        others = [cell for cell in self.cells if cell]
        found: list[PlannedRun] = []
        for block in range(self.replicates):
            rng = np.random.default_rng([self.study.seed, self.trial.number, block])
            order = [none, *(others[at] for at in rng.permutation(len(others))), none]
            found += [
                PlannedRun(number=len(found) + place, block=block, cell=cell)
                for place, cell in enumerate(order)
            ]
        return tuple(found)

    def name(self, cell: Cell) -> str:
        """The cell in few words."""
        if not cell:
            return "base" if self.kept else "control"
        if cell == frozenset(self.names):
            return "all"
        return " + ".join(name for name in self.names if name in cell)

    def settings(self, cell: Cell) -> Settings:
        """The trial's, with the factors that are off set back to what they are in the control."""
        return without(self.chosen, [factor for factor in self.factors if factor.name not in cell])

    def gpus(self, cell: Cell) -> int:
        return 0 if self.space.resources.gpus == 0 else gpus_needed(self.settings(cell))

    def levels(self, cell: Cell) -> dict[str, Scalar]:
        return {name: "on" if name in cell else "off" for name in self.names}

    def is_control(self, cell: Cell) -> bool:
        return not cell and not self.kept

    def raw(self) -> dict[str, Json]:
        return _raw(self)


def plan(
    asked: Asked, study: StudyFile, space: Space, trials: Sequence[StoredTrial], study_folder: Path
) -> Plan:
    """The ablation that is asked for, in agreement with the one that is on disk already, if any.

    Raises:
        Mistake: the trial cannot be ablated, or another design of the same factors was begun.
        SpaceError: the trial's config is none of the space's.
    """
    trial = next(trial for trial in trials if trial.number == asked.trial)
    control = next((trial for trial in trials if trial.is_control), None)
    if trial.is_control:
        raise Mistake(f"trial {trial.number} is the control; an ablation takes a trial that differs from it")
    if trial.measurement is None or trial.config is None:
        raise Mistake(f"trial {trial.number} failed ({trial.cause}); ablate one that was measured")
    chosen = space.settings(space.config(trial.config))
    found = differences(
        space.common,
        chosen,
        space.parameters,
        control_effective={} if control is None else control.ran.effective,
        config_effective=trial.ran.effective,
    )
    named = _named(asked, found.factors, found.same)
    folder = study_folder / ABLATIONS / _folder_name(asked, named)
    begun = _read(folder)
    try:
        made = design(
            [factor.name for factor in named],
            asked.fraction or (None if begun is None else begun.fraction),
        )
    except DesignError as error:
        raise Mistake(str(error)) from error
    drawn = Plan(
        study=study,
        space=space,
        trial=trial,
        folder=folder,
        chosen=chosen,
        factors=named,
        kept=tuple(factor for factor in found.factors if factor not in named),
        same=found.same,
        design=made,
        refused={},
        replicates=asked.replicates or (LEAST_REPLICATES if begun is None else begun.replicates),
    )
    refused = {cell: why for cell in made.cells if (why := _refusal(drawn, cell, control)) is not None}
    drawn = replace(drawn, refused=refused)
    _check_same(drawn, begun)
    return drawn


def write_design(plan: Runs) -> None:
    """Put the design on disk, whole or not at all."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    part = plan.folder / f".{DESIGN}.part"
    part.write_text(json.dumps(plan.raw(), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    part.replace(plan.folder / DESIGN)


def _named(asked: Asked, factors: tuple[Factor, ...], same: tuple[Change, ...]) -> tuple[Factor, ...]:
    """The factors asked for, all of them where none is named."""
    there = ", ".join(factor.name for factor in factors)
    told = f" ({', '.join(change.setting for change in same)}: the same in effect)" if same else ""
    if not factors:
        raise Mistake(f"trial {asked.trial} does not differ from the control{told}; ablate another")
    if asked.factors is None:
        return factors
    unknown = [name for name in asked.factors if name not in {factor.name for factor in factors}]
    if unknown or not asked.factors:
        raise Mistake(
            f"--factors {','.join(unknown) or 'names none'}: trial {asked.trial} differs from the control "
            f"in {there}{told}"
        )
    return tuple(factor for factor in factors if factor.name in asked.factors)


def _folder_name(asked: Asked, named: tuple[Factor, ...]) -> str:
    some = "" if asked.factors is None else "-" + "+".join(factor.name for factor in named)
    return f"trial-{asked.trial:04d}{some}"


def _refusal(plan: Plan, cell: Cell, control: StoredTrial | None) -> str | None:
    """Why a cell is known to fail, in one line; None where nothing is known against it."""
    settings = plan.settings(cell)
    found = list(refusals(settings))
    needed, most = gpus_needed(settings), plan.space.resources.gpus
    if most and needed > most:
        found.append(f"needs {needed} GPUs, where resources.gpus is {most}")
    values, unknown = _values(plan, cell, control)
    for constraint in plan.space.constraints:
        told = all(path.partition(".")[0] not in unknown for path in constraint.paths.values())
        if told and constraint.holds(values) is False:
            found.append(constraint.sentence(values))
    return "; ".join(found) or None


def _values(plan: Plan, cell: Cell, control: StoredTrial | None) -> tuple[dict[str, Scalar], set[str]]:
    """The cell's values by path, and the top parameters that are at no place of the space there."""
    off = {path for factor in plan.factors if factor.name not in cell for path in factor.parameters}
    assert plan.trial.config is not None
    values = {path: value for path, value in plan.trial.config.items() if path.partition(".")[0] not in off}
    if control is None or control.config is None:
        return values, off
    return values | {p: v for p, v in control.config.items() if p.partition(".")[0] in off}, set()


def config_of(plan: Plan, cell: Cell, trials: Sequence[StoredTrial]) -> dict[str, Scalar] | None:
    """The cell as a config by the space's paths; None where it is no point of the space."""
    control = next((trial for trial in trials if trial.is_control), None)
    values, unknown = _values(plan, cell, control)
    if unknown:
        return None
    return {path: values[path] for path in _in_order(plan, values)}


def _in_order(plan: Plan, values: Mapping[str, Scalar]) -> list[str]:
    tops = [parameter.path for parameter in plan.space.parameters]
    return sorted(values, key=lambda path: tops.index(path.partition(".")[0]))


def _raw(plan: Plan) -> dict[str, Json]:
    return {
        "schema": SCHEMA,
        "study": plan.study.name,
        "trial": plan.trial.number,
        "trace_digest": plan.study.trace_digest,
        "fraction": plan.design.fraction,
        "replicates": plan.replicates,
        "seed": plan.study.seed,
        "factors": {factor.name: [_change(change) for change in factor.changes] for factor in plan.factors},
        "kept": {factor.name: [_change(change) for change in factor.changes] for factor in plan.kept},
        "cells": [_cell(plan, cell) for cell in plan.design.cells],
        "runs": [
            {"number": run.number, "block": run.block, "cell": plan.name(run.cell)} for run in plan.runs
        ],
    }


def _cell(plan: Plan, cell: Cell) -> dict[str, Json]:
    settings = plan.settings(cell)
    return {
        "name": plan.name(cell),
        "on": [name for name in plan.names if name in cell],
        "refused": plan.refused.get(cell),
        "model": settings.model,
        "arguments": redacted_settings(settings.arguments),
        "environment": {**redacted_environment(settings.environment)},
    }


def _change(change: Change) -> dict[str, Json]:
    name = change.place[-1]
    return {
        "setting": change.setting,
        "off": redacted(change.off, name),
        "on": redacted(change.on, name),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """What a design.json says."""

    fraction: Fraction
    replicates: int
    raw: Mapping[str, Json]


def _read(folder: Path) -> _Begun | None:
    path = folder / DESIGN
    if not path.exists():
        return None
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw["schema"] != SCHEMA:
            raise ValueError(f"schema {raw['schema']}, this version reads {SCHEMA}")
        return _Begun(fraction=raw["fraction"], replicates=int(raw["replicates"]), raw=raw)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{path}: cannot be read ({type(error).__name__}: {error})") from error


_DECIDED = ("factors", "kept", "fraction", "seed", "trace_digest", "cells")
"""What must be as it was when the design was written."""


def _check_same(plan: Plan, begun: _Begun | None) -> None:
    """Raise Mistake where what was begun is another design; more replicates are more of the same."""
    if begun is None:
        return
    if plan.replicates < begun.replicates:
        raise Mistake(
            f"{plan.folder} was begun with {begun.replicates} replicates; ask for as many, or for more"
        )
    wanted = plan.raw()
    differing = [name for name in _DECIDED if begun.raw.get(name) != wanted[name]]
    if differing:
        raise Mistake(
            f"{plan.folder} was begun with other {_listed(differing)}; ask the same, or move that folder away"
        )


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
