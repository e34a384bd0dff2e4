"""MLflow's table of a study's trials, set up beforehand: which runs, in what order, with which columns. Pure.

By itself that table has no column for a metric or a parameter, and cuts names short. MLflow keeps saved views
as tags of an experiment, and a study has two: its front, and all its trials. The format is what the page of
MLflow 3.17 saves itself; a version that cannot read it shows the table as it would without.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from objectives.goal import Goal
from objectives.measurement import Mode
from objectives.metrics import METRICS
from search_spaces.values import Json
from tuner.entries import ON_FRONT, STUDY_ID, TRIAL
from tuner.loads import mode
from tuner.records import StudyFile
from tuner.titles import varied

_TAG = "mlflow.sharedViewState."
_OURS = "tuner-"
_NAME = "attributes.`Run Name`"
_NAME_WIDTH, _NARROWEST, _WIDEST = 300, 95, 230
"""Pixels."""

STUDIES = 15
"""Whose views one experiment keeps, two each: of 40 or more its page lets people save none of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsTable:
    """One saved view."""

    key: str
    """In the page's address."""
    name: str
    """In the page's menu of views."""
    state: Mapping[str, Json]

    @property
    def tag(self) -> str:
        """The experiment's tag that holds it."""
        return f"{_TAG}{self.key}"

    def text(self, saved: datetime) -> str:
        """What the tag says."""
        at = round(saved.timestamp() * 1000)
        return json.dumps(
            {"name": self.name, "createdAt": at, "updatedAt": at, "state": json.dumps(self.state)}
        )

    def place(self, experiment: str) -> str:
        """What comes behind MLflow's address."""
        # Without the last part MLflow 3 opens in the mode for language-model apps.
        return f"#/experiments/{experiment}/runs?viewStateShareKey={self.key}&workflowType=machine_learning"


def runs_tables(study: StudyFile) -> tuple[RunsTable, RunsTable]:
    """The front's table and that of all trials, the best by the first objective first."""
    own = f"tags.`{STUDY_ID}` = '{study.id}'"
    front = RunsTable(
        key=f"{_OURS}{study.id}-front",
        name=f"front of {study.name}",
        state=_state(study, f"tags.{ON_FRONT} = 'true' AND {own}", ()),
    )
    trials = RunsTable(
        key=f"{_OURS}{study.id}-trials",
        name=f"trials of {study.name}",
        state=_state(study, f"tags.{TRIAL} != '' AND {own}", (ON_FRONT, "cause")),
    )
    return front, trials


def outdated(tags: Mapping[str, str]) -> tuple[str, ...]:
    """Tags of an experiment with tables of studies of ours that are one too many, the oldest first."""
    saved: dict[str, list[tuple[int, str]]] = {}
    for name, text in tags.items():
        if name.startswith(f"{_TAG}{_OURS}"):
            saved.setdefault(name.rpartition("-")[0], []).append((_created(text), name))
    studies = sorted(saved.values(), key=max)
    return tuple(name for views in studies[: max(len(studies) - STUDIES, 0)] for _, name in sorted(views))


def _created(text: str) -> int:
    try:
        found = json.loads(text)["createdAt"]
    except (ValueError, TypeError, KeyError):
        return 0
    return found if isinstance(found, int) else 0


def _state(study: StudyFile, runs: str, beside: Iterable[str]) -> dict[str, Json]:
    """What MLflow's page keeps of a view: which runs, and how they are shown.

    Args:
        runs: the filter.
        beside: tags with a column of their own.
    """
    objectives = Goal.of(study.objectives).objectives
    aims = [METRICS[objective.metric].shown for objective in objectives]
    # A capacity may be a bound, which its number does not say.
    tags = [*beside, *(["capacity"] if mode(study) is Mode.CAPACITY else [])]
    columns: dict[str, Json] = {
        _NAME: _NAME_WIDTH,
        **{f"metrics.`{name}`": _width(name) for name in aims},
        **{f"tags.`{name}`": _WIDEST if name == "capacity" else _width(name) for name in tags},
        **{f"params.`{name}`": _width(name) for name in varied(study)},
    }
    return {
        "searchFilter": runs,
        "orderByKey": f"metrics.`{aims[0]}`",
        "orderByAsc": objectives[0].direction == "minimise",
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": [name for name in columns if name != _NAME],
        "columnOrder": list(columns),
        "columnWidths": columns,
    }


def _width(name: str) -> int:
    """For a heading of that name in MLflow's font, with its paddings."""
    return min(max(8 * len(name) + 30, _NARROWEST), _WIDEST)
