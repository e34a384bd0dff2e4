"""The two things that `tuner ablate` measures, cell by cell: a factorial of a trial, or its cost surface."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cluster.traffic.trace import Trace
from search_spaces.space import Space
from tuner.ablation.judge import report
from tuner.ablation.logged import artifacts, family
from tuner.ablation.plan import Asked, Cells, Plan, plan
from tuner.ablation.report import Report
from tuner.ablation.surface.judge import surface_report
from tuner.ablation.surface.logged import surface_artifacts, surface_family
from tuner.ablation.surface.plan import AskedSurface, SurfacePlan, surface_plan
from tuner.ablation.surface.report import SurfaceReport
from tuner.ablation.surface.terminal import surface_lines, surface_plan_lines
from tuner.ablation.terminal import plan_lines, report_lines
from tuner.family import Family
from tuner.records import StoredTrial, StudyFile, read_trials


class Ablation(Protocol):
    """A plan with what its runs show; what is on disk is read anew whenever it is asked."""

    @property
    def plan(self) -> Cells: ...
    def plan_lines(self, *, left: int, each_s: float | None) -> list[str]: ...
    def report(self) -> Report | SurfaceReport: ...
    def artifacts(self) -> dict[str, str]:
        """The report's files, by name."""

    def family(self, finished: Sequence[StoredTrial], *, drawn: bool) -> Family: ...


def ablation(
    asked: Asked | AskedSurface,
    study: StudyFile,
    space: Space,
    trials: Sequence[StoredTrial],
    folder: Path,
    trace: Trace,
    runs: Path,
) -> Ablation:
    """What is asked for, as it can be measured.

    Args:
        trials: the study's.
        folder: the study's.
        runs: the folder of studies, as commands give it.

    Raises:
        Mistake: the trial cannot be ablated so, or another design was begun.
        SpaceError: the trial's config is none of the space's.
    """
    if isinstance(asked, AskedSurface):
        return _Surface(surface_plan(asked, study, space, trials, folder))
    return _Factorial(plan(asked, study, space, trials, folder), trials, trace, runs)


def lines(found: Report | SurfaceReport) -> list[str]:
    """The report as a terminal shows it."""
    return surface_lines(found) if isinstance(found, SurfaceReport) else report_lines(found)


@dataclass(frozen=True, slots=True)
class _Factorial:
    plan: Plan
    trials: Sequence[StoredTrial]
    trace: Trace
    runs: Path

    def plan_lines(self, *, left: int, each_s: float | None) -> list[str]:
        return plan_lines(self.plan, left=left, each_s=each_s)

    def report(self) -> Report:
        return report(self.plan, read_trials(self.plan.folder), self.trials, self.trace, str(self.runs))

    def artifacts(self) -> dict[str, str]:
        return artifacts(self.report())

    def family(self, finished: Sequence[StoredTrial], *, drawn: bool) -> Family:
        return family(self.plan, self.report(), finished, drawn=drawn)


@dataclass(frozen=True, slots=True)
class _Surface:
    plan: SurfacePlan

    def plan_lines(self, *, left: int, each_s: float | None) -> list[str]:
        return surface_plan_lines(self.plan, left=left, each_s=each_s)

    def report(self) -> SurfaceReport:
        return surface_report(self.plan, read_trials(self.plan.folder))

    def artifacts(self) -> dict[str, str]:
        return surface_artifacts(self.report())

    def family(self, finished: Sequence[StoredTrial], *, drawn: bool) -> Family:
        return surface_family(self.plan, self.report(), finished, drawn=drawn)
