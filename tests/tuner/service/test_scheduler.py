"""What becomes of jobs, step by step, with processes that a test ends as it likes."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.tuner.service.fakes import FakeProcesses
from tests.tuner.service.jobs import START
from tuner.service import event_log
from tuner.service.job_files import ServiceFiles
from tuner.service.jobs import Job, Kind, State
from tuner.service.places import places_of
from tuner.service.queue import Conflict, NewJob, Queue
from tuner.service.scheduler import GRACE, MOST_DEATHS, Scheduler


class Room:
    """A queue, its files and a scheduler with a clock of its own."""

    def __init__(self, runs: Path, processes: FakeProcesses, gpus: tuple[str, ...] = ()) -> None:
        self.processes = processes
        self.files = ServiceFiles(runs)
        self.files.make()
        self.now = START
        self.gpus = gpus
        self.opened()

    def opened(self) -> None:
        """As a service that has just been started over what there is."""
        self.queue = Queue(self.files.database)
        places = places_of(self.gpus, cluster=False, simulated=2)
        self.scheduler = Scheduler(self.queue, self.files, places, self.processes, now=lambda: self.now)

    def add(self, name: str, user: str = "ana", *, simulated: bool = True, gpus: int = 0) -> str:
        id = f"{len(list((self.files.folder / 'jobs').iterdir())):012x}"
        self.files.job(id).folder.mkdir()
        new = NewJob(
            id=id, kind=Kind.STUDY, study=name, user=user, request={}, simulated=simulated, gpus=gpus
        )
        self.now += timedelta(seconds=1)
        return self.queue.add(new, self.now).id

    def step(self) -> None:
        self.now += timedelta(seconds=1)
        self.scheduler.step()

    def job(self, id: str) -> Job:
        found = self.queue.get(id)
        assert found is not None
        return found

    def finish_trial(self, id: str, number: int) -> None:
        (self.files.runs / self.job(id).study / "trials" / f"{number:04d}").mkdir(parents=True)

    def told(self, id: str) -> list[str]:
        return [event.name for event in event_log.read(self.files.job(id).events)]


@pytest.fixture
def room(tmp_path: Path, processes: FakeProcesses) -> Iterator[Room]:
    room = Room(tmp_path / "runs", processes)
    yield room
    room.queue.close()


def test_one_real_study_at_a_time_and_simulated_ones_beside_it(room: Room) -> None:
    ids = [room.add(f"s{number}", simulated=number % 2 == 0) for number in range(6)]
    room.step()
    room.step()
    assert room.processes.starts == [ids[1], ids[0], ids[2]]
    room.processes.end(ids[1], State.FINISHED, "all done")
    room.step()
    assert room.processes.starts[-1] == ids[3]
    assert room.job(ids[1]).state is State.FINISHED
    assert room.job(ids[1]).reason == "all done"
    assert room.job(ids[4]).state is State.QUEUED


def test_a_user_with_one_job_does_not_wait_for_all_of_another(room: Room) -> None:
    many = [room.add(f"a{number}", "ana", simulated=False) for number in range(5)]
    room.step()
    one = room.add("b", "ben", simulated=False)
    room.processes.end(many[0], State.FINISHED)
    room.step()
    assert room.processes.starts == [many[0], one]
    room.processes.end(one, State.FINISHED)
    room.step()
    assert room.processes.starts == [many[0], one, many[1]]


def test_sets_of_gpus_hold_a_study_each_and_it_sees_no_others(tmp_path: Path) -> None:
    room = Room(tmp_path / "runs", FakeProcesses(), ("0,1", "2"))
    wide = [room.add(f"w{number}", simulated=False, gpus=2) for number in range(2)]
    narrow = room.add("n", simulated=False, gpus=1)
    room.step()
    assert {id: env["CUDA_VISIBLE_DEVICES"] for id, env in room.processes.running.items()} == {
        wide[0]: "0,1",
        narrow: "2",
    }
    room.processes.end(narrow, State.FINISHED)
    room.step()
    assert room.job(wide[1]).state is State.QUEUED
    room.queue.close()


def test_a_process_that_died_goes_on_in_its_place(room: Room) -> None:
    id = room.add("s")
    room.step()
    place = room.job(id).place
    room.processes.die(id)
    room.step()
    assert room.processes.starts == [id, id]
    assert room.job(id).state is State.RUNNING
    assert room.job(id).place == place
    assert "died" in room.told(id)


def test_a_process_that_dies_again_and_again_with_nothing_done_fails(room: Room) -> None:
    id = room.add("s")
    room.step()
    for _ in range(MOST_DEATHS):
        assert room.job(id).state is State.RUNNING
        room.processes.die(id)
        room.step()
    assert room.job(id).state is State.FAILED
    assert len(room.processes.starts) == MOST_DEATHS


def test_a_process_that_dies_but_gets_on_is_started_each_time(room: Room) -> None:
    id = room.add("s")
    room.step()
    for number in range(3 * MOST_DEATHS):
        room.finish_trial(id, number)
        room.processes.die(id)
        room.step()
    assert room.job(id).state is State.RUNNING


def test_a_service_that_starts_again_finds_what_runs_and_goes_on_with_what_died(room: Room) -> None:
    living, dead, ended = (room.add(name, simulated=name != "dead") for name in ("living", "dead", "ended"))
    room.step()
    room.queue.close()
    room.processes.die(dead)
    room.processes.end(ended, State.FINISHED)
    room.opened()
    room.step()
    assert room.processes.starts.count(living) == 1
    assert room.processes.starts.count(dead) == 2
    assert room.job(living).state is State.RUNNING
    assert room.job(ended).state is State.FINISHED


def test_what_died_on_gpus_that_the_service_has_no_more_waits_for_others(tmp_path: Path) -> None:
    room = Room(tmp_path / "runs", FakeProcesses(), ("0,1",))
    id = room.add("s", simulated=False, gpus=1)
    room.step()
    room.queue.close()
    room.processes.die(id)
    room.gpus = ("3",)
    room.opened()
    room.step()
    assert room.processes.running[id]["CUDA_VISIBLE_DEVICES"] == "3"
    room.queue.close()


def test_a_queued_job_is_paused_and_cancelled_at_once(room: Room) -> None:
    paused, cancelled = room.add("p"), room.add("c")
    assert room.queue.stop(paused, State.PAUSED, room.now).state is State.PAUSED
    assert room.queue.stop(cancelled, State.CANCELLED, room.now).state is State.CANCELLED
    room.step()
    assert room.processes.starts == []
    assert room.queue.resume(paused, room.now).state is State.QUEUED
    with pytest.raises(Conflict):
        room.queue.resume(cancelled, room.now)
    room.step()
    assert room.processes.starts == [paused]


def test_a_running_job_is_asked_to_end_once_and_ended_where_it_does_not(room: Room) -> None:
    id = room.add("s")
    room.step()
    assert room.queue.stop(id, State.PAUSED, room.now).state is State.STOPPING
    room.processes.ready = False
    room.step()
    room.processes.ready = True
    for _ in range(3):
        room.step()
    assert room.processes.asked_to_stop == [id]
    assert room.processes.killed == []
    room.now += GRACE
    room.step()
    assert room.processes.killed == [id]
    room.processes.die(id)
    room.step()
    assert room.job(id).state is State.PAUSED
    assert room.processes.starts == [id]


@pytest.mark.parametrize("wanted", [State.PAUSED, State.CANCELLED])
def test_a_job_that_was_stopped_is_what_was_asked(room: Room, wanted: State) -> None:
    id = room.add("s")
    room.step()
    room.queue.stop(id, wanted, room.now)
    room.processes.end(id, State.PAUSED, "stopped")
    room.step()
    assert room.job(id).state is wanted
    assert room.told(id)[-1] == wanted.value


def test_a_job_that_finished_while_it_was_to_be_cancelled_is_finished(room: Room) -> None:
    id = room.add("s")
    room.step()
    room.queue.stop(id, State.CANCELLED, room.now)
    room.processes.end(id, State.FINISHED, "all done")
    room.step()
    assert room.job(id).state is State.FINISHED


def test_what_is_over_cannot_be_stopped_and_what_runs_cannot_be_resumed(room: Room) -> None:
    id = room.add("s")
    room.step()
    with pytest.raises(Conflict):
        room.queue.resume(id, room.now)
    room.processes.end(id, State.FAILED, "no")
    room.step()
    with pytest.raises(Conflict):
        room.queue.stop(id, State.CANCELLED, room.now)
    assert room.queue.resume(id, room.now).state is State.QUEUED


def test_times_sort_as_they_are_written(room: Room) -> None:
    room.add("s", "ana")
    room.step()
    started = room.queue.last_started(simulated=True)
    assert started == {"ana": room.now}
    assert isinstance(started["ana"], datetime)
    assert room.queue.last_started(simulated=False) == {}
