"""An export in MLflow's model registry: a version with the folder as its artifact, and an alias of it.

The second home of MLflow, beside the ledger: what the ledger writes follows from what lies on disk and may be
written again at any time, and what is registered is a choice that somebody made once.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from tuner.entries import STUDY_ID, TAG_LENGTH, TRIAL
from tuner.export.digest import DIGEST, FILES, PROVENANCE, read_provenance
from tuner.export.folder import README
from tuner.ledger import prepare_environment, quiet
from tuner.mistakes import Mistake
from tuner.records import StudyFile
from tuner.redaction import without_passwords

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient

_DIGEST_TAG = "tuner.digest"
_DESCRIPTION = 5000
"""Letters of a README that are kept as the version's description: what MLflow's table has room for."""

_ALIAS = re.compile(r"(?!latest$)(?!v\d+$)[\w-]+", re.ASCII | re.IGNORECASE)
"""What MLflow takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """Where an export is in the registry."""

    model: str
    version: str
    alias: str
    uri: str
    """`models:/NAME@ALIAS`, by which MLflow finds it."""
    before: str | None
    """The version that the alias named until now; None: it named none, or this one."""


def register(folder: Path, study: StudyFile, *, tracking_uri: str, alias: str) -> Registered:
    """Record an export as a version of the study's registered model, under this alias.

    The same folder is registered once: asked again, its version gets the alias.

    Raises Mistake where MLflow cannot be written, or does not have the trial yet.
    """
    prepare_environment()
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    said, shown = read_provenance(folder), without_passwords(tracking_uri)
    try:
        with quiet():
            client = MlflowClient(tracking_uri=tracking_uri) if _is_there(tracking_uri) else None
            run = None if client is None else _run_of(client, study, int(str(said["trial"])))
            if client is None or run is None:
                raise Mistake(
                    f"{folder} is written, but MLflow at {shown} does not have trial {said['trial']} of "
                    f"study {study.name} yet, so nothing was registered; tuner sync {study.name} writes it"
                )
            return _registered(client, run, folder, study, alias)
    except (MlflowException, SQLAlchemyError, OSError) as error:
        reason = without_passwords(str(error)).strip().partition("\n")[0][:300]
        raise Mistake(f"{folder} is written, but MLflow at {shown} cannot register it ({reason})") from error


def check_alias(alias: str) -> None:
    """Raises Mistake for what MLflow takes as no alias."""
    if not _ALIAS.fullmatch(alias):
        raise Mistake(
            f"--alias {alias!r} is none that MLflow takes: letters, digits, - and _, not latest and no v1"
        )


def model_name(study: StudyFile) -> str:
    """The registered model of all studies of one space; MLflow takes no `/` and no `:` in it."""
    return "tuner-" + re.sub(r"[^\w.-]+", "-", study.space_name)


def _registered(client: "MlflowClient", run: "Run", folder: Path, study: StudyFile, alias: str) -> Registered:
    from mlflow.exceptions import MlflowException

    said, name = read_provenance(folder), model_name(study)
    digest = str(said[DIGEST])
    try:
        client.create_registered_model(
            name, description=f"Configs of the space {study.space_name}, as tuner export wrote them."
        )
    except MlflowException:
        client.get_registered_model(name)  # it is there, or this says why not
    before = _named(client, name, alias)
    wanted = f"name = '{name}' and tags.`{_DIGEST_TAG}` = '{digest}'"
    found = next(iter(client.search_model_versions(wanted)), None)
    if found is None:
        where = f"exports/{said['target']}-{digest[:12]}"
        files = said[FILES]
        assert isinstance(files, dict)
        for file in (*files, PROVENANCE):
            client.log_artifact(run.info.run_id, str(folder / file), where)
        found = client.create_model_version(
            name,
            source=f"{run.info.artifact_uri}/{where}",
            run_id=run.info.run_id,
            tags=_tags(said, digest),
            description=(folder / README).read_text(encoding="utf-8")[:_DESCRIPTION],
        )
    client.set_registered_model_alias(name, alias, found.version)
    return Registered(
        model=name,
        version=str(found.version),
        alias=alias,
        uri=f"models:/{name}@{alias}",
        before=None if before is None or before.version == found.version else str(before.version),
    )


def _tags(said: Mapping[str, object], digest: str) -> dict[str, str]:
    marks = said["marks"]
    assert isinstance(marks, list)
    kept = {
        "study": said["study"],
        "trial": said["trial"],
        "target": said["target"],
        "marks": ", ".join(marks) or "none",
        "trace_digest": said["trace_digest"],
        "engine_version": said["engine_version"],
        _DIGEST_TAG: digest,
    }
    return {name: str(value)[:TAG_LENGTH] for name, value in kept.items()}


def _named(client: "MlflowClient", name: str, alias: str) -> "ModelVersion | None":
    from mlflow.exceptions import MlflowException

    try:
        return client.get_model_version_by_alias(name, alias)
    except MlflowException:
        return None  # the alias names none


def _is_there(uri: str) -> bool:
    """Whether there is anything to ask: MLflow would make an SQLite database that is not there."""
    database = make_url(uri).database if uri.startswith("sqlite:") else None
    return database is None or Path(database).exists()


def _run_of(client: "MlflowClient", study: StudyFile, number: int) -> "Run | None":
    """The trial's run, in the experiment of its space."""
    experiment = client.get_experiment_by_name(f"tuner/{study.space_name}")
    if experiment is None:
        return None
    wanted = f"tags.`{STUDY_ID}` = '{study.id}' and tags.`{TRIAL}` = '{number}'"
    return next(iter(client.search_runs([experiment.experiment_id], filter_string=wanted)), None)
