"""Every trial to MLflow: the only home of MLflow.

MLflow is filled from disk by one operation, `Ledger.sync`, which writes what is missing and changes what is
different. So it may be called at any time and as often as wanted: a run that a killed driver left half
written is completed, none is written twice, and an MLflow that was down catches up at the next call.
Runs are found by their tags (the study's id and the trial's number), and only the client is used, so
nothing here depends on or changes MLflow's global state.

A search must not wait for an MLflow that is down or slow: no request is repeated, one that fails puts off the
next try, longer each time, and what there is to catch up with is written a few seconds at a time.
"""

import logging
import math
import os
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from tuner.curve_picture import curve_svg
from tuner.curve_plot import curves_html, has_curves
from tuner.durable import flush
from tuner.entries import (
    NAME_LENGTH,
    ON_FRONT,
    QUALITY,
    STUDY_ID,
    TRIAL,
    Entry,
    quality_tag,
    study_entry,
    trial_entry,
)
from tuner.family import FAMILY_ID, MEMBER, Family
from tuner.front import FrontView, front_json
from tuner.history_plot import history_html
from tuner.ledger_lock import LedgerBusy, writing
from tuner.parallel_plot import parallel_html
from tuner.plot import front_html
from tuner.reachable import check_reachable
from tuner.records import STUDY, State, StoredTrial, StudyFile, trial_folder
from tuner.redaction import without_passwords
from tuner.runs_table import outdated, runs_tables
from tuner.story import story
from tuner.titles import study_title, trial_title
from tuner.trial_note import trial_note

if TYPE_CHECKING:
    from mlflow.entities import Run, RunTag
    from mlflow.tracking import MlflowClient

Standing = Literal["RUNNING", "FINISHED", "KILLED"]
"""Of the study's own run: being searched, done, stopped before it was done."""

_DONE = ("FINISHED", "FAILED")
_BATCH = 100
"""Parameters or tags that MLflow takes at once."""

_PAUSE_S, _LONGEST_PAUSE_S = 30.0, 600.0
"""From a try that failed to the next one, doubled each time."""
_A_CALL_S = 10.0
"""How long one call may write trials while the search goes on; the next call writes more."""
_OTHERS_S = 30.0
"""How long a search that is done waits for another process that writes its study."""

_MANNERS = {
    # MLflow's defaults wait minutes for a server that is down, once a request; a study has better to do.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    # Measurements are the user's own: nothing about them is reported to anybody.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # Standard output is the front end's: it may be printing JSON.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""Set where the user has not."""

_CHATTY = ("alembic", "mlflow.store.db.utils", "mlflow.tracking", "mlflow.utils")


class _MoreToWrite(Exception):
    """A call has taken its time; there is nothing wrong."""


@dataclass
class _Runs:
    """What MLflow has of one study."""

    experiment: str
    study: str
    """Id of the study's own run."""
    trials: dict[int, "Run"]
    notes: dict[str, str] = field(default_factory=dict)
    """Tags of the study's run as last written."""
    drawn: tuple[int, ...] | None = None
    """Front that the study's pages were last drawn for; None: not by this process."""
    standing: Standing | None = None
    """As last written by this process."""


@dataclass
class _Kin:
    """What MLflow has of one family."""

    experiment: str
    own: str
    """Id of the run above."""
    members: dict[str, "Run"]
    written: tuple[Entry, Mapping[str, str], bool] | None = None
    """Entry, artifacts and whether it was finished, as last written by this process."""


class Ledger:
    """Writes one study, and ablations of it, to one MLflow."""

    def __init__(
        self,
        tracking_uri: str,
        *,
        artifacts: Path,
        say: Callable[[str], None],
        runs: str = "runs",
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            tracking_uri: a database URL or a server; a folder of SQLite is made if need be.
            artifacts: where artifacts go if the tracking URI is a database on this machine.
            say: told once when MLflow cannot be written, and once when it can again.
            runs: the folder of studies, as commands in the study's note give it.
            now: a clock that never goes back, seconds.
        """
        self._id = uuid.uuid4().hex
        self._now = now
        self._pause_s = _PAUSE_S
        self._again_s = -math.inf
        """When a search that goes on tries again; before that, MLflow is taken to be down."""
        self._uri = tracking_uri
        self._artifacts = artifacts
        self._say = say
        self._runs_folder = runs
        self._client: MlflowClient | None = None
        self._known: _Runs | None = None
        self._kin: dict[str, _Kin] = {}
        self._lost = False
        self._waited_for: str | None = None
        """Who had the study when this was last told."""

    def sync(self, study_folder: Path, view: FrontView, standing: Standing = "RUNNING") -> bool:
        """Write what MLflow lacks of this study; whether it has everything now.

        Never raises for want of an MLflow: what was measured is on disk, and the next call catches up.
        Only a search that is done tries an MLflow that failed a moment ago.
        """
        if standing != "FINISHED" and self._now() < self._again_s:
            return False
        return self._tried(lambda: self._write_alone(study_folder, view, standing))

    def write_family(self, family: Family) -> bool:
        """Write what MLflow lacks of an ablation, as `sync` does of a study."""
        return self._tried(lambda: self._write_family(family))

    def _tried(self, write: Callable[[], None]) -> bool:
        if not _loaded():
            if not self._lost:
                self._say("MLflow cannot be loaded: measurements are safe on disk; tuner sync writes them")
            self._lost = True
            return False
        failures = self._failures()
        try:
            with quiet():
                write()
        except _MoreToWrite:
            return False
        except LedgerBusy as busy:
            self._known = None
            if str(busy) != self._waited_for:
                self._say(f"{busy}; what is missing is written when that is done")
            self._waited_for = str(busy)
            return False
        except failures as error:
            self._client = self._known = None
            self._kin = {}
            self._again_s = self._now() + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            if not self._lost:
                reason = without_passwords(str(error)).strip().partition("\n")[0][:300]
                self._say(
                    f"MLflow at {without_passwords(self._uri)} cannot be written ({reason}); "
                    "measurements are safe on disk; it is tried again as the search goes on, "
                    "and tuner sync writes what is missing"
                )
            self._lost = True
            return False
        self._again_s, self._pause_s, self._waited_for = -math.inf, _PAUSE_S, None
        if self._lost:
            self._say(f"MLflow at {without_passwords(self._uri)} is written again and has everything")
        self._lost = False
        return True

    def _failures(self) -> tuple[type[Exception], ...]:
        """What an MLflow that is down, full, locked or not one raises. `requests` raises OSErrors."""
        from mlflow.exceptions import MlflowException

        return (MlflowException, SQLAlchemyError, OSError)

    def _write_alone(self, study_folder: Path, view: FrontView, standing: Standing) -> None:
        wait_s = _OTHERS_S if standing == "FINISHED" else 0.0
        with writing(study_folder, self._id, wait_s=wait_s) as unchanged:
            if not unchanged:
                self._known = None
            self._write(study_folder, view, standing)

    def _write(self, study_folder: Path, view: FrontView, standing: Standing) -> None:
        client = self._open()
        runs = self._known = self._known or self._find(client, view)
        began_s = self._now()
        for trial in view.trials:
            run = runs.trials.get(trial.number)
            if run is None or (run.info.status not in _DONE and not _thrown_away(run)):
                runs.trials[trial.number] = _write_trial(client, runs, run, study_folder, view, trial)
                if standing == "RUNNING" and self._now() - began_s > _A_CALL_S:
                    raise _MoreToWrite
        _mark_front(client, runs, view)
        self._write_study(client, runs, study_folder, view, standing)

    def _write_family(self, family: Family) -> None:
        """Members first, then the run above them, which says how far it all is."""
        client = self._open()
        kin = self._kin.get(family.id)
        if kin is None:
            kin = self._kin[family.id] = self._find_family(client, family)
        for member in family.members:
            run = kin.members.get(member.key)
            if run is None or (run.info.status not in _DONE and not _thrown_away(run)):
                kin.members[member.key] = _write_run(
                    client,
                    kin.experiment,
                    run,
                    parent=kin.own,
                    title=member.title,
                    entry=_with_tags(member.entry, {FAMILY_ID: family.id, MEMBER: member.key}),
                    folder=member.folder,
                    failed=member.failed,
                    started=member.started,
                    finished=member.finished,
                )
        state = (family.entry, family.artifacts, family.finished)
        if kin.written == state:
            return
        _write_params(client, client.get_run(kin.own), family.entry)
        for name, text in family.artifacts.items():
            client.log_text(kin.own, text, name)
        at = max((member.finished for member in family.members), default=family.started)
        _write_metrics(client, kin.own, family.entry, at, step=len(family.members))
        client.log_batch(kin.own, tags=_run_tags(family.entry.tags))
        if family.finished:
            client.set_terminated(kin.own, status="FINISHED", end_time=_milliseconds(at))
        else:
            client.update_run(kin.own, status="RUNNING")
        kin.written = state

    def _find_family(self, client: "MlflowClient", family: Family) -> "_Kin":
        """The family's runs; the one above is made if need be, below the study's where that is there."""
        experiment = self._experiment(client, f"tuner/{family.space}")
        own: str | None = None
        members: dict[str, Run] = {}
        for run in _search(client, experiment, family.id, tag=FAMILY_ID):
            key = run.data.tags.get(MEMBER)
            if key is not None:
                members[key] = run
            else:
                own = run.info.run_id
                if _thrown_away(run):
                    client.restore_run(own)
        if own is None:
            tags = {FAMILY_ID: family.id}
            for run in _search(client, experiment, family.study_id):
                if TRIAL not in run.data.tags:
                    tags["mlflow.parentRunId"] = run.info.run_id
            own = client.create_run(
                experiment,
                start_time=_milliseconds(family.started),
                tags=tags,
                run_name=family.title[:NAME_LENGTH],
            ).info.run_id
        return _Kin(experiment=experiment, own=own, members=members)

    def _open(self) -> "MlflowClient":
        from mlflow.tracking import MlflowClient

        if self._client is None:
            check_reachable(self._uri)
            _make_database(self._uri)
            self._client = MlflowClient(tracking_uri=self._uri)
        return self._client

    def _find(self, client: "MlflowClient", view: FrontView) -> _Runs:
        """The study's runs; its own one and its experiment are made if need be."""
        experiment = self._experiment(client, f"tuner/{view.study.space_name}")
        own: str | None = None
        trials: dict[int, Run] = {}
        for run in _search(client, experiment, view.study.id):
            number = run.data.tags.get(TRIAL)
            if number is not None:
                trials[int(number)] = run
            else:
                own = run.info.run_id
                if _thrown_away(run):
                    client.restore_run(own)
        if own is None:
            tags = {STUDY_ID: view.study.id, "study": view.study.name}
            started = _milliseconds(view.study.created)
            own = client.create_run(
                experiment, start_time=started, tags=tags, run_name=study_title(view.study)
            ).info.run_id
        return _Runs(experiment=experiment, study=own, trials=trials)

    def _experiment(self, client: "MlflowClient", name: str) -> str:
        """Id of the experiment of that name; one that was deleted is restored."""
        from mlflow.exceptions import MlflowException

        found = client.get_experiment_by_name(name)
        if found is None:
            try:
                made: str = client.create_experiment(name, artifact_location=self._artifact_location(name))
            except MlflowException:
                found = client.get_experiment_by_name(name)  # another study made it just now
                if found is None:
                    raise
            else:
                return made
        if found.lifecycle_stage == "deleted":
            client.restore_experiment(found.experiment_id)
        identity: str = found.experiment_id
        return identity

    def _artifact_location(self, name: str) -> str | None:
        """A folder where the tracking URI is a database here; a server knows better itself."""
        if self._uri.startswith(("http://", "https://", "databricks")):
            return None
        return (self._artifacts.resolve() / name).as_uri()

    def _write_study(
        self, client: "MlflowClient", runs: _Runs, folder: Path, view: FrontView, standing: Standing
    ) -> None:
        entry = study_entry(view, story(view, runs=self._runs_folder, experiment=runs.experiment))
        if not runs.notes:
            _save_tables(client, runs.experiment, view.study)
            run = client.get_run(runs.study)
            _write_params(client, run, entry)
            client.log_artifact(runs.study, str(folder / STUDY))
            client.log_text(runs.study, view.study.space_text, "space.yaml")
            runs.notes = dict(run.data.tags)
        changed = {name: text for name, text in entry.tags.items() if runs.notes.get(name) != text}
        if changed:
            client.log_dict(runs.study, front_json(view), "front.json")
            if runs.drawn != view.numbers or standing != "RUNNING":
                client.log_text(runs.study, front_html(view), "front.html")
                if has_curves(view):
                    client.log_text(runs.study, curves_html(view), "curves.html")
                runs.drawn = view.numbers
            at = view.trials[-1].finished if view.trials else view.study.created
            _write_metrics(client, runs.study, entry, at, step=len(view.trials))
            # Last, since it is by these tags that all of this is known to be written.
            client.log_batch(runs.study, tags=_run_tags(changed))
            runs.notes |= changed
        if runs.standing is None and standing == "KILLED":
            # A search that ended by itself did so, whoever comes to its records later.
            standing = "FINISHED" if client.get_run(runs.study).info.status == "FINISHED" else standing
        if runs.standing != standing:
            if standing == "RUNNING":
                client.update_run(runs.study, status=standing)
            else:
                # Some MB each, and of use once it is over; while it runs, MLflow charts `best/…` itself.
                client.log_text(runs.study, history_html(view), "history.html")
                client.log_text(runs.study, parallel_html(view), "parallel.html")
                # When its last trial ended, though it may be written later.
                ended = max((trial.finished for trial in view.trials), default=view.study.created)
                client.set_terminated(runs.study, status=standing, end_time=_milliseconds(ended))
            runs.standing = standing


def study_pages(uri: str, study: StudyFile) -> Mapping[str, str]:
    """Where MLflow's pages show a study: for each of them what comes behind the server's address. Empty where
    that store has no such study, or cannot be read."""
    prepare_environment()
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    try:
        with quiet():
            client = MlflowClient(tracking_uri=uri)
            experiment = client.get_experiment_by_name(f"tuner/{study.space_name}")
            if experiment is None:
                return {}
            own = experiment.experiment_id
            tables = {
                table.name: table.place(own) for table in runs_tables(study) if table.tag in experiment.tags
            }
            for run in _search(client, own, study.id):
                if TRIAL not in run.data.tags:
                    # Without the last part MLflow 3 opens in the mode for language-model apps.
                    place = f"#/experiments/{own}/runs/{run.info.run_id}?workflowType=machine_learning"
                    return {f"study {study.name}": place, **tables}
    except (MlflowException, SQLAlchemyError, OSError):
        return {}
    return {}


def _loaded() -> bool:
    """Whether MLflow can be imported. That takes seconds, and a Ctrl-C that breaks it off leaves halves of
    modules in this process, which do not import again."""
    prepare_environment()
    try:
        import mlflow.tracking  # noqa: F401
    except (ImportError, AttributeError):
        return False
    return True


def _save_tables(client: "MlflowClient", experiment: str, study: StudyFile) -> None:
    """Keep the study's tables of runs as views of its experiment, in place of those of the oldest studies."""
    for table in runs_tables(study):
        client.set_experiment_tag(experiment, table.tag, table.text(study.created))
    for name in outdated(client.get_experiment(experiment).tags):
        client.delete_experiment_tag(experiment, name)


def _write_trial(
    client: "MlflowClient",
    runs: _Runs,
    run: "Run | None",
    study_folder: Path,
    view: FrontView,
    trial: StoredTrial,
) -> "Run":
    """Write one trial's run, or complete it. It is ended last, so a run that is ended is whole."""
    checks = view.checks if view.guarded else None
    note = trial_note(trial, view.study, checks)
    picture = curve_svg(trial, view.study)
    return _write_run(
        client,
        runs.experiment,
        run,
        parent=runs.study,
        title=trial_title(trial, view.study),
        entry=trial_entry(trial, view.study, note, on_front=trial.number in view.numbers, checks=checks),
        folder=trial_folder(study_folder, trial.number),
        failed=trial.state is State.FAILED,
        started=trial.started,
        finished=trial.finished,
        texts={} if picture is None else {"curve.svg": picture},
    )


def _write_run(
    client: "MlflowClient",
    experiment: str,
    run: "Run | None",
    *,
    parent: str,
    title: str,
    entry: Entry,
    folder: Path,
    failed: bool,
    started: datetime,
    finished: datetime,
    texts: Mapping[str, str] = MappingProxyType({}),
) -> "Run":
    """Write a run below another, or complete it; `texts` become artifacts beside the folder's files."""
    if run is None:
        run = client.create_run(
            experiment,
            start_time=_milliseconds(started),
            tags={"mlflow.parentRunId": parent, **entry.tags},
            run_name=title[:NAME_LENGTH],
        )
    _write_params(client, run, entry)
    _write_metrics(client, run.info.run_id, entry, finished)
    client.log_batch(run.info.run_id, tags=_run_tags(entry.tags))
    client.log_artifacts(run.info.run_id, str(folder))
    for name, text in texts.items():
        client.log_text(run.info.run_id, text, name)
    status = "FAILED" if failed else "FINISHED"
    client.set_terminated(run.info.run_id, status=status, end_time=_milliseconds(finished))
    return client.get_run(run.info.run_id)


def _with_tags(entry: Entry, tags: Mapping[str, str]) -> Entry:
    return replace(entry, tags={**entry.tags, **tags})


def _write_params(client: "MlflowClient", run: "Run", entry: Entry) -> None:
    """Log the parameters that the run lacks; MLflow takes no parameter twice."""
    from mlflow.entities import Param

    params = [Param(name, text) for name, text in entry.params.items() if name not in run.data.params]
    for start in range(0, len(params), _BATCH):
        client.log_batch(run.info.run_id, params=params[start : start + _BATCH])


def _write_metrics(client: "MlflowClient", run: str, entry: Entry, at: datetime, *, step: int = 0) -> None:
    """Log the metrics. The stamp comes from the trial, so that one written twice is there once."""
    from mlflow.entities import Metric

    stamp = _milliseconds(at)
    metrics = [Metric(name, value, stamp, step) for name, value in entry.metrics.items()]
    metrics += [
        Metric(name, value, stamp, place) for name, pairs in entry.series.items() for place, value in pairs
    ]
    client.log_batch(run, metrics=metrics)


def _mark_front(client: "MlflowClient", runs: _Runs, view: FrontView) -> None:
    """Change the tags of the trials that came onto the front or left it, and of those whose quality another
    trial has shown since; no others."""
    checks = view.checks if view.guarded else None
    for trial in view.trials:
        run = runs.trials[trial.number]
        wanted = {ON_FRONT: "true" if trial.number in view.numbers else "false"}
        if (quality := quality_tag(trial, view.study, checks)) is not None:
            wanted[QUALITY] = quality
        for name, text in wanted.items():
            if run.data.tags.get(name) != text and not _thrown_away(run):
                client.set_tag(run.info.run_id, name, text)
                run.data.tags[name] = text


def _search(
    client: "MlflowClient", experiment: str, identity: str, *, tag: str = STUDY_ID
) -> Iterator["Run"]:
    """All runs of the study, or family by its tag; deleted ones too, since what a person threw away is not
    written again."""
    from mlflow.entities import ViewType

    token: str | None = None
    while True:
        page = client.search_runs(
            [experiment],
            filter_string=f"tags.`{tag}` = '{identity}'",
            run_view_type=ViewType.ALL,
            max_results=500,
            page_token=token,
        )
        yield from page
        token = page.token
        if not token:
            return


def _thrown_away(run: "Run") -> bool:
    """Whether a person deleted it; MLflow takes nothing for it any more."""
    return bool(run.info.lifecycle_stage == "deleted")


def _run_tags(tags: Mapping[str, str]) -> "list[RunTag]":
    from mlflow.entities import RunTag

    return [RunTag(name, text) for name, text in tags.items()]


def _milliseconds(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def _make_database(uri: str) -> None:
    """Make an SQLite database that is not there, whole or not at all.

    MLflow makes its tables over seconds, in dozens of steps, and takes up nothing that was left half-done: a
    driver killed meanwhile would leave a file that no MLflow opens again.
    """
    if not uri.startswith("sqlite:"):
        return
    url = make_url(uri)
    if not url.database or Path(url.database).exists():
        return
    from mlflow.tracking import MlflowClient

    path = Path(url.database)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    try:
        made = url.set(database=str(part)).render_as_string(hide_password=False)
        MlflowClient(tracking_uri=made).search_experiments(max_results=1)
        flush([part])
        with suppress(FileExistsError):  # another study made it just now
            path.hardlink_to(part)
    finally:
        part.unlink(missing_ok=True)


def prepare_environment() -> None:
    """Before MLflow is imported: how it is to behave, where the user has not said."""
    for name, value in _MANNERS.items():
        os.environ.setdefault(name, value)


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps MLflow from telling how it makes its tables, and from warning of what it must change itself."""
    loggers = [logging.getLogger(name) for name in _CHATTY]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            # MLflow 3.17 on SQLAlchemy 2.1: the `noload` loader strategy.
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
