"""Many clients at once over loopback, and followers: no study is lost or doubled, no event is missed."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest

from tests.tuner.service.conftest import SPACE, Live, listening
from tests.tuner.service.fakes import FakeProcesses
from tuner.mistakes import Mistake
from tuner.service import event_log
from tuner.service.app import Service
from tuner.service.client import Client, Unreachable, study_path
from tuner.service.jobs import State
from tuner.service.places import places_of

STUDY = {"space": SPACE, "engine": "simulated", "trials": 4}
CLIENTS, EACH = 8, 6


def test_a_soak_of_clients_loses_and_doubles_no_study(service: Service) -> None:
    """Clients submit, each sending every request twice as after a lost answer, and race for one name."""
    processes = FakeProcesses(at_once=True)
    service = replace(service, processes=processes, places=places_of((), cluster=False, simulated=8))
    wins: list[str] = []

    def drive(who: int) -> list[str]:
        client = Client(live.url, None)
        ids = []
        for number in range(EACH):
            body = STUDY | {"seed": number}
            told = [client.post("/v1/studies", body, Idempotency_Key=f"{who}-{number}") for _ in range(2)]
            assert told[0]["id"] == told[1]["id"]
            ids.append(told[0]["id"])
            with suppress(Mistake):  # but for one of them
                client.post("/v1/studies", body | {"name": f"contended-{number}"})
                wins.append(f"contended-{number}")
            assert client.get("/v1/studies")["jobs"]
        return ids

    with listening(service) as live:
        with ThreadPoolExecutor(CLIENTS) as pool:
            submitted = [id for ids in pool.map(drive, range(CLIENTS)) for id in ids]
        client = Client(live.url, None)
        for study in [job["study"] for job in client.get("/v1/studies")["jobs"]]:
            for _ in client.events(study_path(study, "events"), None, follow=True):
                pass  # a stream ends once its study is over
        jobs = client.get("/v1/studies")["jobs"]
    assert len(submitted) == len(set(submitted)) == CLIENTS * EACH
    assert Counter(wins) == {f"contended-{number}": 1 for number in range(EACH)}
    assert len(jobs) == CLIENTS * EACH + EACH
    assert {job["id"] for job in jobs} >= set(submitted)
    assert len({job["study"] for job in jobs}) == len(jobs)
    assert Counter(processes.starts) == {job["id"]: 1 for job in jobs}
    assert {job["state"] for job in jobs} == {"finished"}


def test_a_follower_sees_each_event_as_it_happens_and_once_across_a_restart(
    service: Service, processes: FakeProcesses
) -> None:
    seen: list[tuple[str, int | None]] = []
    last: str | None = None
    with listening(service) as live:
        job = Client(live.url, None).post("/v1/studies", STUDY | {"name": "s1"})
        events = service.files.job(job["id"]).events
        stream = Client(live.url, None).events("/v1/studies/s1/events", None, follow=True)
        for number in range(3):
            event_log.append(events, "trial_measured", {"trial": number})
            for event in stream:  # follows what was just written
                seen.append((event.name, event.data.get("trial")))
                last = event.id
                if event.data.get("trial") == number:
                    break
    with pytest.raises(Unreachable):  # the service is gone, and its study is not over
        list(stream)
    event_log.append(events, "trial_measured", {"trial": 3})  # while nobody serves
    with listening(service) as live:
        following: list[tuple[str, int | None]] = []
        begun = threading.Event()

        def follow() -> None:
            for event in Client(live.url, None).events("/v1/studies/s1/events", last, follow=True):
                following.append((event.name, event.data.get("trial")))
                begun.set()

        thread = threading.Thread(target=follow)
        thread.start()
        assert begun.wait(30)
        processes.end(job["id"], State.FINISHED, "all done")
        thread.join(30)
        assert not thread.is_alive()
    assert seen == [("queued", None), *(("trial_measured", number) for number in range(3))]
    assert following == [("trial_measured", 3), ("finished", None)]
    assert processes.starts == [job["id"]]


def test_a_client_says_what_is_wrong_in_a_line(live: Live) -> None:
    client = Client(live.url, None)
    with pytest.raises(Mistake, match="no study none"):
        client.get(study_path("none"))
    with pytest.raises(Mistake):
        client.get(study_path("../../healthz"))
    with pytest.raises(Unreachable, match="tuner serve"):
        Client("http://127.0.0.1:9", None).get("/v1/studies")
    for url in ("ftp://x", "127.0.0.1:8470", "http://", "http://user:password@127.0.0.1"):
        with pytest.raises(Mistake, match="http://host:port") as told:
            Client(url, None)
        assert "password@" not in str(told.value)
