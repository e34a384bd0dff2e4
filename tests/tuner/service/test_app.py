"""The service over HTTP: who may ask what, and what is told when something is wrong."""

import io
import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from httpx2 import Response
from starlette.testclient import TestClient

from tests.tuner.service.conftest import ANA, BEN, SPACE
from tests.tuner.service.fakes import FakeProcesses
from tuner.service import event_log
from tuner.service.app import Service, create_app
from tuner.service.job_files import JobFiles, read_json
from tuner.service.jobs import State

STUDY = {"space": SPACE, "engine": "simulated", "trials": 4}
LINE = b'{"timestamp": 0, "input_length": 5, "output_length": 3}\n'


def _as(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _submit(client: TestClient, token: str | None = None, **more: Any) -> Response:
    return client.post("/v1/studies", json=STUDY | more, headers={} if token is None else _as(token))


def _upload(client: TestClient, sent: bytes, kind: str = "application/jsonl") -> Response:
    return client.post("/v1/traces", content=sent, headers={"Content-Type": kind})


def _problem(answer: Response, status: int, *told: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.json().keys() == {"error", "id"}
    assert answer.json()["id"] == answer.headers["x-request-id"]
    for words in told:
        assert words in answer.json()["error"]


def _files(service: Service, job: dict[str, Any]) -> JobFiles:
    return service.files.job(job["id"])


def test_a_study_is_queued_started_and_told_of(
    client: TestClient, service: Service, processes: FakeProcesses
) -> None:
    answer = _submit(client, name="s1")
    assert answer.status_code == 202
    job = answer.json()
    assert (job["study"], job["user"], job["simulated"]) == ("s1", "local", True)
    asked = read_json(_files(service, job).job)
    assert asked is not None
    assert asked["runs"] == str(service.files.runs)
    request = asked["request"]
    assert isinstance(request, dict)
    assert (request["name"], request["trials"], request["engine"]) == ("s1", 4, "simulated")
    assert Path(str(request["space"])).read_text() == SPACE
    assert client.get("/v1/studies/s1").json()["id"] == job["id"]
    assert [one["study"] for one in client.get("/v1/studies").json()["jobs"]] == ["s1"]


def test_studies_without_a_name_get_names_of_their_own(client: TestClient) -> None:
    names = {_submit(client).json()["study"] for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("tiny-") for name in names)


def test_a_request_sent_twice_under_one_key_makes_one_study(client: TestClient) -> None:
    headers = {"Idempotency-Key": "k1"}
    first = client.post("/v1/studies", json=STUDY, headers=headers)
    again = client.post("/v1/studies", json=STUDY, headers=headers)
    assert (first.status_code, again.status_code) == (202, 200)
    assert first.json()["id"] == again.json()["id"]
    _problem(client.post("/v1/studies", json=STUDY | {"seed": 1}, headers=headers), 409, "key")
    assert len(client.get("/v1/studies").json()["jobs"]) == 1


def test_a_name_is_taken_once_by_whoever_has_it(client: TestClient, service: Service) -> None:
    assert _submit(client, name="s1").status_code == 202
    _problem(_submit(client, name="s1"), 409, "s1")
    (service.files.runs / "of-the-command-line").mkdir()
    _problem(_submit(client, name="of-the-command-line"), 409)
    _problem(_submit(client, name="service"), 409)


def test_a_user_may_have_only_so_many_waiting(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.service.queue.MOST_WAITING", 3)
    answers = [_submit(client, engine="vllm") for _ in range(5)]
    _problem(answers[-1], 429, "3 jobs of local")
    assert [answer.status_code for answer in answers].count(202) in (3, 4)  # one may have started


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"space": None}, "shipped"),
        ({"shipped": "spaces/8b.yaml"}, "shipped"),
        ({"space": None, "shipped": "spaces/none.yaml"}, "no shipped space"),
        ({"space": None, "shipped": "../../etc/passwd"}, "no shipped space"),
        ({"space": "model: ["}, "space.yaml"),
        ({"space": SPACE + "trust_remote_code: true\n"}, "trust_remote_code"),
        ({"space": SPACE.replace("max_model_len: 4096", "worker_cls: a.B")}, "worker_cls"),
        ({"space": SPACE.replace("make:", "trace: /etc/passwd #")}, "upload"),
        ({"space": SPACE.partition("traffic")[0] + "measure: fixed\n"}, "traffic"),
        ({"make": {"requests": 0}}, "make"),
        ({"sampler": "nope"}, "sampler"),
        ({"measure": "nope"}, "measure"),
        ({"trials": 0}, "trials"),
        ({"trials": 10**9}, "trials"),
        ({"name": "../x"}, "name"),
        ({"space": SPACE.replace("name: tiny", "name: ../../x")}, "name"),
        ({"name": ".hidden"}, "name"),
        ({"speed": -1}, "speed"),
        ({"tracking_uri": "http://elsewhere"}, "tracking_uri"),
        ({"address": "elsewhere:6379"}, "address"),
        ({"trace": "../../etc/passwd"}, "trace"),
    ],
)
def test_a_submission_that_cannot_be_is_refused_at_once(
    shared: TestClient, shared_runs: Path, more: dict[str, Any], told: str
) -> None:
    answer = _submit(shared, **more)
    _problem(answer, 422, told)
    assert str(shared_runs) not in answer.text
    assert list((shared_runs / "service" / "jobs").iterdir()) == []
    assert shared.get("/v1/studies").json() == {"jobs": []}


def test_an_uploaded_trace_is_what_its_study_replays(client: TestClient, service: Service) -> None:
    told = _upload(client, LINE * 40).json()
    assert told["figures"]["requests"] == 40
    job = _submit(client, trace=told["trace"]).json()
    asked = read_json(_files(service, job).job)
    assert asked is not None
    assert isinstance(asked["request"], dict)
    assert asked["request"]["trace"] == str(service.files.trace(told["trace"]))
    _problem(_submit(client, trace="0" * 64), 404, "upload")


def test_a_bad_trace_and_one_of_another_kind_are_refused(client: TestClient) -> None:
    _problem(_upload(client, b"nothing\n"), 422, "line 1")
    for kind in ("text/plain", "multipart/form-data", "application/x-www-form-urlencoded", ""):
        _problem(_upload(client, LINE, kind), 415)


def test_bodies_have_a_size_whether_or_not_they_say_it(client: TestClient) -> None:
    large = json.dumps(STUDY | {"space": "x" * 600_000}).encode()
    kind = {"Content-Type": "application/json"}
    _problem(client.post("/v1/studies", content=large, headers=kind), 413)
    _problem(client.post("/v1/studies", content=iter([large[:300_000], large[300_000:]]), headers=kind), 413)
    deep = b'{"make": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    assert client.post("/v1/studies", content=deep, headers=kind).status_code in (400, 422)


@pytest.mark.parametrize(
    "path", ["/v1/studies", "/v1/traces", "/metrics", "/v1/studies/s/events", "/v1/studies/s"]
)
def test_nothing_is_told_without_a_token(shared_team: TestClient, path: str) -> None:
    for headers in ({}, _as("guessed"), _as(""), {"Authorization": f"Basic {ANA}"}, {"Authorization": ANA}):
        answer = shared_team.get(path, headers=headers)
        if answer.status_code != 405:
            _problem(answer, 401)
            assert answer.headers["www-authenticate"] == "Bearer"


def test_a_submission_without_a_token_says_nothing_of_what_is_wrong_with_it(team: TestClient) -> None:
    _problem(team.post("/v1/studies", json={"nonsense": 1}), 401)
    _problem(_upload(team, LINE), 401)


def test_anybody_may_see_that_the_service_is_there(team: TestClient) -> None:
    assert team.get("/healthz").json() == {"status": "ok"}
    assert "/v1/studies" in team.get("/docs").text
    assert team.get("/openapi.json").json()["info"]["title"] == "Tuner"


def test_everybody_reads_and_only_the_owner_changes(team: TestClient) -> None:
    assert _submit(team, ANA, name="s1").json()["user"] == "ana"
    assert team.get("/v1/studies/s1", headers=_as(BEN)).json()["user"] == "ana"
    for what in ("pause", "resume", "cancel"):
        _problem(team.post(f"/v1/studies/s1/{what}", headers=_as(BEN)), 403, "ana")
    assert team.post("/v1/studies/s1/cancel", headers=_as(ANA)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_page_of_another_site_cannot_drive_a_service_on_loopback(
    shared: TestClient, headers: dict[str, str]
) -> None:
    _problem(shared.post("/v1/studies", json=STUDY, headers=headers), 403)
    _problem(shared.post("/v1/studies/s1/cancel", headers=headers), 403)


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_a_form_of_a_page_is_no_json(shared: TestClient, kind: str) -> None:
    sent = json.dumps(STUDY).encode()
    _problem(shared.post("/v1/studies", content=sent, headers={"Content-Type": kind}), 415)


def test_the_services_own_page_may_ask(client: TestClient) -> None:
    headers = {"Origin": "http://127.0.0.1:8470", "Sec-Fetch-Site": "same-origin"}
    assert client.post("/v1/studies", json=STUDY, headers=headers).status_code == 202


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8470", "127.0.0.1.evil.example", "", "[::2]"])
def test_a_name_that_was_made_to_point_here_is_not_answered(shared: TestClient, host: str) -> None:
    _problem(shared.get("/v1/studies", headers={"Host": host}), 421)
    assert shared.get("/healthz", headers={"Host": "localhost:8470"}).status_code == 200
    assert shared.get("/healthz", headers={"Host": "[::1]:8470"}).status_code == 200


@pytest.mark.parametrize(
    "name",
    ["..", "%2e%2e", "..%2f..%2fetc", "%2fetc%2fpasswd", ".hidden", "a%00b", "a%0ab", "x" * 101, "ü", "a b"],
)
def test_a_name_cannot_leave_its_folder(shared: TestClient, shared_runs: Path, name: str) -> None:
    (shared_runs.parent / "study.json").write_text("{}")
    for rest in ("", "/front", "/trials", "/events", "/trials/0/export?to=vllm", "/ablations/../../x"):
        answer = shared.get(f"/v1/studies/{name}{rest}")
        assert answer.status_code in (404, 422), (name, rest, answer.text)
        assert "passwd" not in answer.text.replace(name, "")


def test_what_is_not_there_is_not_found_and_what_has_not_begun_says_so(client: TestClient) -> None:
    for path in ("", "/front", "/trials", "/events", "/ablations", "/trials/1/explanation"):
        _problem(client.get(f"/v1/studies/none{path}"), 404)
    _submit(client, name="s1")
    for path in ("/front", "/trials", "/trials/1", "/trials/1/explanation", "/trials/1/export?to=vllm"):
        _problem(client.get(f"/v1/studies/s1{path}"), 409, "not begun")
    _problem(client.get("/v1/studies/s1/ablations/0123456789ab"), 404)
    _problem(client.get("/v2/nothing"), 404)


def test_a_fault_of_the_service_says_nothing_but_its_id(
    client: TestClient, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    job = _submit(client, name="s1").json()
    _files(service, job).events.unlink()
    _files(service, job).events.mkdir()
    answer = client.get("/v1/studies/s1/events?follow=false")
    _problem(answer, 500, "log")
    assert str(service.files.runs) not in answer.text
    (record,) = [record for record in caplog.records if record.getMessage() == "a request failed"]
    assert record.__dict__["id"] == answer.json()["id"]
    assert record.exc_info is not None


def test_a_damaged_study_is_told_without_its_folder(client: TestClient, service: Service) -> None:
    (service.files.runs / "broken").mkdir()
    (service.files.runs / "broken" / "study.json").write_text("{")
    answer = client.get("/v1/studies/broken/front")
    _problem(answer, 422, "study.json")
    assert str(service.files.runs) not in answer.text


def test_every_answer_forbids_what_a_browser_should_not_do(client: TestClient) -> None:
    for path in ("/healthz", "/docs", "/v1/studies", "/v1/studies/none"):
        headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "access-control-allow-origin" not in headers


def _events(answer: Response) -> list[tuple[str, str, dict[str, Any]]]:
    """Read as the standard says: blocks of fields, an empty line after each."""
    found = []
    for block in answer.text.split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        found.append((fields["id"], fields["event"], json.loads(fields["data"])))
    return found


def test_events_go_on_after_the_last_one_seen(client: TestClient, service: Service) -> None:
    files = _files(service, _submit(client, name="s1").json())
    for number in range(4):
        event_log.append(files.events, "trial_failed", {"trial": number, "reason": "no /srv/models/x"})
    whole = _events(client.get("/v1/studies/s1/events?follow=false"))
    assert [name for _, name, _ in whole][-4:] == ["trial_failed"] * 4
    assert whole[-1][2]["reason"] == "no …/x"
    for number, (id, _, _) in enumerate(whole):
        headers = {"Last-Event-ID": id}
        assert (
            _events(client.get("/v1/studies/s1/events?follow=false", headers=headers)) == whole[number + 1 :]
        )
    for wrong in ("3", "999999"):
        _problem(client.get("/v1/studies/s1/events", headers={"Last-Event-ID": wrong}), 404)
    for wrong in ("-1", "x", "1e3", "9" * 30):
        _problem(client.get("/v1/studies/s1/events", headers={"Last-Event-ID": wrong}), 422)


def test_a_stream_ends_with_its_study(client: TestClient, service: Service, processes: FakeProcesses) -> None:
    _submit(client, name="s1", engine="vllm")
    job = _submit(client, name="s2", engine="vllm").json()
    client.post("/v1/studies/s2/cancel")
    answer = client.get("/v1/studies/s2/events")  # it would never end while more could come
    assert [name for _, name, _ in _events(answer)] == ["queued", "cancelled"]
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert job["id"] not in processes.starts


def test_pause_resume_and_cancel_over_http(client: TestClient) -> None:
    _submit(client, name="first", engine="vllm")
    _submit(client, name="s1", engine="vllm")
    assert client.post("/v1/studies/s1/pause").json()["state"] == "paused"
    _problem(client.post("/v1/studies/s1/pause"), 409)
    assert client.post("/v1/studies/s1/resume").json()["state"] == "queued"
    assert client.post("/v1/studies/s1/cancel").json()["state"] == "cancelled"
    _problem(client.post("/v1/studies/s1/resume"), 409)


def test_a_study_needs_a_place_that_is_large_enough(service: Service, processes: FakeProcesses) -> None:
    from tuner.service.places import places_of

    small = replace(service, places=places_of(("0", "1"), cluster=False, simulated=1))
    wide = SPACE.replace("gpus: 1", "gpus: 4").replace(
        "max_model_len", "tensor_parallel_size: 4, max_model_len"
    )
    with TestClient(create_app(small), base_url="http://127.0.0.1:8470") as client:
        _problem(_submit(client, space=wide, engine="vllm"), 422, "4 GPUs")
        assert _submit(client, space=wide).status_code == 202  # simulated takes none
        assert _submit(client, engine="vllm").status_code == 202


def test_metrics_are_what_prometheus_reads(client: TestClient) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    for _ in range(3):
        _submit(client, engine="vllm")
    client.get("/v1/studies/none")
    answer = client.get("/metrics")
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert found["tuner_jobs", "queued"] + found["tuner_jobs", "running"] == 3
    assert found["tuner_http_requests_total", *sorted(("POST", "/v1/studies", "202"))] == 3
    assert found["tuner_http_requests_total", *sorted(("GET", "/v1/studies/{study}", "404"))] == 1
    assert found["tuner_places", "free", "simulated"] == 2
    assert "local" not in answer.text


def test_logs_have_no_token_in_them(team: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        _submit(team, ANA)
        _submit(team, "wrong-token-0123456789")
    told = "\n".join(str(record.__dict__) for record in caplog.records)
    assert ANA not in told
    assert "wrong-token" not in told
    assert any(record.__dict__.get("user") == "ana" for record in caplog.records)


def test_what_is_read_of_a_study_is_what_the_command_line_prints(
    client: TestClient, service: Service, tmp_path: Path, new_mlflow: Callable[[], str]
) -> None:
    """With a study that the command line made under the same runs folder."""
    shutil.move(new_mlflow().removeprefix("sqlite:///"), service.files.runs / "mlflow.db")
    from click.testing import CliRunner

    from tuner.cli import main

    (tmp_path / "tiny.yaml").write_text(SPACE)
    runs = str(service.files.runs)
    words = ["search", "--space", str(tmp_path / "tiny.yaml"), "--engine", "simulated", "--trials", "3"]
    made = CliRunner().invoke(main, [*words, "--study", "s", "--runs", runs, "--json"])
    assert made.exit_code == 0, made.output
    front = CliRunner().invoke(main, ["front", "s", "--json", "--runs", runs])
    told = client.get("/v1/studies/s/front").json()
    assert told | {"trace": None} == json.loads(front.output) | {"trace": None}
    trials = client.get("/v1/studies/s/trials").json()["trials"]
    assert [trial["number"] for trial in trials] == [0, 1, 2]
    assert client.get("/v1/studies/s/trials/2").json() == trials[2]
    _problem(client.get("/v1/studies/s/trials/7"), 404)
    number = told["recommended"]["number"]
    _problem(client.get(f"/v1/studies/s/trials/{number}/export?to=vllm"), 422)
    _problem(client.get(f"/v1/studies/s/trials/{number}/export?to=../x"), 422)
    allow = "&allow=".join(("simulated", "unverified", "quality-unchecked"))
    answer = client.get(f"/v1/studies/s/trials/{number}/export?to=vllm&allow={allow}")
    assert answer.status_code == 200, answer.text
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        names = archive.namelist()
        assert f"s-{number}/README.md" in names
    out = tmp_path / "out"
    flags = ["--allow-simulated", "--allow-unverified", "--allow-quality", "unchecked"]
    line = ["export", "s", "--trial", str(number), "--to", "vllm", "--out", str(out), "--runs", runs, *flags]
    assert CliRunner().invoke(main, line).exit_code == 0
    assert sorted(names) == sorted(f"s-{number}/{path.relative_to(out)}" for path in out.rglob("*"))
    ablation = client.post("/v1/studies/s/ablations", json={"trial": 1, "replicates": 2})
    assert ablation.status_code == 202
    id = ablation.json()["id"]
    assert client.get(f"/v1/studies/s/ablations/{id}").json()["report"] is None
    assert [one["id"] for one in client.get("/v1/studies/s/ablations").json()["jobs"]] == [id]
    followed = client.get(f"/v1/studies/s/ablations/{id}/events?follow=false")
    assert [name for _, name, _ in _events(followed)] == ["queued"]
    assert client.post(f"/v1/studies/s/ablations/{id}/cancel").status_code == 200
    _problem(client.post("/v1/studies/s/ablations", json={"trial": 99}), 404)
    _problem(client.post("/v1/studies/s/ablations", json={"trial": 1, "depths": [1]}), 422)


def test_a_state_is_a_word_of_the_answers(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    assert document["components"]["schemas"]["State"]["enum"] == [state.value for state in State]
