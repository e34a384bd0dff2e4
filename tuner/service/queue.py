"""The queue: every job in one SQLite database, each change one transaction that is on disk when it returns.

A job changes state only from a state that allows it, so that two requests at once, or a request and a process
that ends meanwhile, cannot both win. Who comes next is `tuner.service.fairness`'s.
"""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Index,
    Integer,
    MetaData,
    Row,
    String,
    Table,
    UniqueConstraint,
    create_engine,
    event,
    func,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.pool import StaticPool

from search_spaces.values import Json
from tuner.mistakes import Mistake
from tuner.service.jobs import Job, Kind, State

MOST_WAITING = 100
"""Jobs of one user that may be queued at a time: more are a loop gone wrong."""

_METADATA = MetaData()
_JOBS = Table(
    "jobs",
    _METADATA,
    Column("sequence", Integer, primary_key=True, autoincrement=True),
    Column("id", String, nullable=False, unique=True),
    Column("kind", String, nullable=False),
    Column("study", String, nullable=False),
    Column("user", String, nullable=False),
    Column("request", String, nullable=False),
    Column("simulated", Boolean, nullable=False),
    Column("gpus", Integer, nullable=False),
    Column("state", String, nullable=False),
    Column("wanted", String),
    Column("place", String),
    Column("queued", String, nullable=False),
    Column("started", String),
    Column("ended", String),
    Column("reason", String),
    Column("deaths", Integer, nullable=False),
    Column("done_at_death", Integer, nullable=False),
    Column("idempotency_key", String),
    UniqueConstraint("user", "idempotency_key"),
    sqlite_autoincrement=True,
)
# A study's name is taken once and for all; it may have any number of ablations.
Index("one_study_of_a_name", _JOBS.c.study, unique=True, sqlite_where=text("kind = 'study'"))


class Conflict(Mistake):
    """What is asked does not go with the state of things."""


class QueueFull(Mistake):
    """One user has too many jobs waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job as it is submitted."""

    id: str
    kind: Kind
    study: str
    user: str
    request: Mapping[str, Json]
    simulated: bool
    gpus: int
    idempotency_key: str | None = None


class Queue:
    """The jobs in a database's file. For any number of threads of one process."""

    def __init__(self, database: Path) -> None:
        self._engine = create_engine(
            f"sqlite:///{database}", poolclass=StaticPool, connect_args={"check_same_thread": False}
        )
        event.listen(self._engine, "connect", _pragmas)
        # One connection, one transaction at a time: they take less than a millisecond.
        self._lock = threading.RLock()
        with self._transaction() as connection:
            _METADATA.create_all(connection)

    def close(self) -> None:
        self._engine.dispose()

    def add(self, new: NewJob, now: datetime) -> Job:
        """Queue a job.

        Raises:
            Conflict: the study's name is taken.
            QueueFull: the user has `MOST_WAITING` jobs waiting.
        """
        with self._transaction() as connection:
            if new.kind is Kind.STUDY and self._rows(
                connection, _JOBS.c.study == new.study, _JOBS.c.kind == Kind.STUDY
            ):
                raise Conflict(f"study {new.study} exists; give the new one another name")
            waiting = self._rows(connection, _JOBS.c.user == new.user, _JOBS.c.state == State.QUEUED)
            if len(waiting) >= MOST_WAITING:
                raise QueueFull(
                    f"{len(waiting)} jobs of {new.user} are waiting, the most there may be; cancel some first"
                )
            connection.execute(
                insert(_JOBS).values(
                    id=new.id,
                    kind=new.kind,
                    study=new.study,
                    user=new.user,
                    request=json.dumps(new.request, allow_nan=False),
                    simulated=new.simulated,
                    gpus=new.gpus,
                    state=State.QUEUED,
                    queued=_written(now),
                    deaths=0,
                    done_at_death=-1,
                    idempotency_key=new.idempotency_key,
                )
            )
            return self._one(connection, new.id)

    def get(self, id: str) -> Job | None:
        with self._transaction() as connection:
            return next(iter(self._rows(connection, _JOBS.c.id == id)), None)

    def study(self, name: str) -> Job | None:
        """The job of a study."""
        with self._transaction() as connection:
            found = self._rows(connection, _JOBS.c.study == name, _JOBS.c.kind == Kind.STUDY)
            return next(iter(found), None)

    def submitted(self, user: str, idempotency_key: str) -> Job | None:
        """What a user submitted under a key."""
        with self._transaction() as connection:
            found = self._rows(connection, _JOBS.c.user == user, _JOBS.c.idempotency_key == idempotency_key)
            return next(iter(found), None)

    def studies(self) -> tuple[Job, ...]:
        """In order of submission."""
        with self._transaction() as connection:
            return self._rows(connection, _JOBS.c.kind == Kind.STUDY)

    def ablations(self, study: str) -> tuple[Job, ...]:
        """Of one study, in order of submission."""
        with self._transaction() as connection:
            return self._rows(connection, _JOBS.c.study == study, _JOBS.c.kind == Kind.ABLATION)

    def active(self) -> tuple[Job, ...]:
        """Those that hold a place."""
        with self._transaction() as connection:
            return self._rows(connection, _JOBS.c.state.in_([State.RUNNING, State.STOPPING]))

    def waiting(self) -> tuple[Job, ...]:
        with self._transaction() as connection:
            return self._rows(connection, _JOBS.c.state == State.QUEUED)

    def counts(self) -> dict[State, int]:
        """Jobs by state, none left out."""
        with self._transaction() as connection:
            rows = connection.execute(select(_JOBS.c.state, func.count()).group_by(_JOBS.c.state))
            found = {State(state): int(count) for state, count in rows}
        return {state: found.get(state, 0) for state in State}

    def last_started(self, *, simulated: bool) -> dict[str, datetime]:
        """When a job was last started, by user, of the simulated ones or the others."""
        with self._transaction() as connection:
            rows = connection.execute(
                select(_JOBS.c.user, func.max(_JOBS.c.started))
                .where(_JOBS.c.started.is_not(None), _JOBS.c.simulated == simulated)
                .group_by(_JOBS.c.user)
            )
            return {user: datetime.fromisoformat(started) for user, started in rows}

    def start(self, id: str, place: str, now: datetime) -> bool:
        """Give a queued job a place. False where it is not queued any more."""
        return self._changed(
            id, (State.QUEUED,), state=State.RUNNING, place=place, started=_written(now), reason=None
        )

    def stop(self, id: str, wanted: State, now: datetime) -> Job:
        """Ask that a job be paused or cancelled: at once where nothing runs for it, else once that has ended.

        Raises Conflict where it is over, or is paused already; a paused job may be cancelled.
        """
        with self._transaction() as connection:
            job = self._one(connection, id)
            if job.state is State.RUNNING or (job.state is State.STOPPING and wanted is State.CANCELLED):
                _set(connection, id, state=State.STOPPING, wanted=wanted)
            elif job.state is State.QUEUED or (job.state is State.PAUSED and wanted is State.CANCELLED):
                _set(connection, id, state=wanted, wanted=None, ended=_written(now), reason=None)
            else:
                raise Conflict(f"{job.kind} {job.study} is {job.state}; it cannot be {wanted}")
            return self._one(connection, id)

    def resume(self, id: str, now: datetime) -> Job:
        """Queue a paused or failed job again. Raises Conflict for any other."""
        with self._transaction() as connection:
            job = self._one(connection, id)
            if job.state not in (State.PAUSED, State.FAILED):
                raise Conflict(f"{job.kind} {job.study} is {job.state}; what is paused or failed is resumed")
            _set(
                connection,
                id,
                state=State.QUEUED,
                queued=_written(now),
                ended=None,
                reason=None,
                deaths=0,
                done_at_death=-1,
            )
            return self._one(connection, id)

    def end(self, id: str, state: State, reason: str | None, now: datetime) -> bool:
        """Write down how a job ended whose process is over. False where none ran for it."""
        return self._changed(
            id,
            (State.RUNNING, State.STOPPING),
            state=state,
            wanted=None,
            ended=_written(now),
            reason=reason,
        )

    def died(self, id: str, *, deaths: int, done: int) -> None:
        """Write down that a job's process died: how often it has in a row, and trials finished by then."""
        self._changed(id, (State.RUNNING, State.STOPPING), deaths=deaths, done_at_death=done)

    def requeue(self, id: str) -> None:
        """Give up a job's place; it keeps its turn."""
        self._changed(id, (State.RUNNING,), state=State.QUEUED, place=None)

    def _changed(self, id: str, allowed: Sequence[State], **values: object) -> bool:
        with self._transaction() as connection:
            if self._one(connection, id).state not in allowed:
                return False
            _set(connection, id, **values)
            return True

    def _one(self, connection: Connection, id: str) -> Job:
        found = self._rows(connection, _JOBS.c.id == id)
        if not found:
            raise KeyError(id)
        return found[0]

    def _rows(self, connection: Connection, *conditions: Any) -> tuple[Job, ...]:
        rows = connection.execute(select(_JOBS).where(*conditions).order_by(_JOBS.c.sequence))
        return tuple(_job(row) for row in rows)

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self._lock, self._engine.begin() as connection:
            yield connection


def _set(connection: Connection, id: str, **values: object) -> None:
    connection.execute(update(_JOBS).where(_JOBS.c.id == id).values(**values))


def _pragmas(connection: Any, _record: object) -> None:
    # WAL, so that a look into the database from outside holds nobody up; FULL: a commit survives a power cut.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=10000"):
        connection.execute(f"PRAGMA {pragma}")


def _written(moment: datetime) -> str:
    """Sorts as text in order of time."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def _moment(written: str | None) -> datetime | None:
    return None if written is None else datetime.fromisoformat(written)


def _job(row: Row[Any]) -> Job:
    raw = row._asdict()
    return Job(
        **raw
        | {
            "kind": Kind(raw["kind"]),
            "state": State(raw["state"]),
            "wanted": None if raw["wanted"] is None else State(raw["wanted"]),
            "request": json.loads(raw["request"]),
            "queued": datetime.fromisoformat(raw["queued"]),
            "started": _moment(raw["started"]),
            "ended": _moment(raw["ended"]),
        }
    )
