import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from yarl import URL

from cluster.traffic.recording.proxy import Listening, origin, pass_through, served_model
from cluster.traffic.recording.recorder import Recorder
from cluster.traffic.trace import TraceError, read_trace
from tests.cluster.traffic.encoding import words
from tests.cluster.traffic.recording.fake_server import FakeServer, serving

CHAT = {"model": "m", "messages": [{"role": "user", "content": "tell me of Rome"}]}
STREAM = {**CHAT, "stream": True}
SECRET = "sk-very-secret"


@asynccontextmanager
async def proxying(fake: FakeServer, out: Path, **more: str) -> AsyncIterator[tuple[str, Counter[str]]]:
    """A proxy before the fake: its address, and the recorder's counts."""
    stop, listens = asyncio.Event(), asyncio.Event()
    where: list[str] = []

    def ready(address: str) -> None:
        where.append(address)
        listens.set()

    async with serving(fake) as server:
        with Recorder(out, words, block_tokens=16) as recorder:
            listening = Listening(server=server, port=0, **more)
            running = asyncio.create_task(pass_through(listening, recorder, stop=stop, ready=ready))
            await listens.wait()
            try:
                yield where[0], recorder.counts
            finally:
                stop.set()
                await running


def run(main: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(main())


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "t.jsonl"


def test_streams_pass_byte_for_byte_and_are_recorded(out: Path) -> None:
    fake = FakeServer(usage={"prompt_tokens": 21, "completion_tokens": 3})

    async def main() -> None:
        async with proxying(fake, out) as (address, _), aiohttp.ClientSession() as client:
            for path in ("/v1/chat/completions", "/v1/chat/completions?x=%2F"):
                async with client.post(URL(address + path, encoded=True), json=STREAM) as response:
                    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
                    assert await response.read() == fake.sent[-1]
            assert json.loads(fake.bodies[0]) == STREAM
            assert fake.seen[1].raw_path == "/v1/chat/completions?x=%2F"

    run(main)
    requests = read_trace(out).requests
    assert [(r.input_length, r.output_length) for r in requests] == [(21, 3), (21, 3)]
    first, second = requests
    # The second was asked once the first was answered, so it cannot have ended later than that came.
    assert first.duration_s is not None
    assert 0 < first.duration_s <= second.arrival_s


def test_whole_answers_pass_byte_for_byte_and_are_counted_by_the_tokenizer_where_usage_is_missing(
    out: Path,
) -> None:
    fake = FakeServer()

    async def main() -> None:
        async with (
            proxying(fake, out) as (address, _),
            aiohttp.ClientSession() as client,
            client.post(f"{address}/v1/chat/completions", json=CHAT) as response,
        ):
            assert await response.read() == fake.sent[0]
            assert response.headers["Content-Length"] == str(len(fake.sent[0]))

    run(main)
    (only,) = read_trace(out).requests
    assert (only.input_length, only.output_length) == (5, 3)  # the role is a word too


def test_chunks_arrive_as_they_are_sent_not_at_the_end(out: Path) -> None:
    fake = FakeServer(endless=True)

    async def main() -> None:
        async with proxying(fake, out) as (address, _), aiohttp.ClientSession() as client:
            async with client.post(f"{address}/v1/chat/completions", json=STREAM) as response:
                first = await response.content.readuntil(b"\n\n")
                assert first.startswith(b"data: ")
            # The client leaves; the server must learn of it, or it would go on for nobody.
            await asyncio.wait_for(fake.left.wait(), 10)

    run(main)
    (only,) = read_trace(out).requests
    assert only.output_length == 3  # what was made for a client that left was made all the same


def test_secrets_reach_the_server_and_nothing_else(out: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fake = FakeServer()
    headers = {"Authorization": f"Bearer {SECRET}", "X-Session-Id": "ann", "Api-Key": SECRET}

    async def main() -> None:
        async with (
            proxying(fake, out) as (address, _),
            aiohttp.ClientSession(headers=headers) as client,
            client.post(f"{address}/v1/chat/completions?key={SECRET}", json=STREAM) as response,
        ):
            await response.read()
        assert fake.seen[0].headers["Authorization"] == f"Bearer {SECRET}"
        assert fake.seen[0].headers["Accept-Encoding"] == "identity"

    run(main)
    assert SECRET not in out.read_text()
    assert SECRET not in "".join(capfd.readouterr())
    assert read_trace(out).requests[0].session_id == "c0"


def test_everything_else_passes_and_is_not_recorded(out: Path) -> None:
    fake = FakeServer()

    async def main() -> None:
        async with proxying(fake, out) as (address, counts), aiohttp.ClientSession() as client:
            async with client.get(f"{address}/ping") as response:
                assert await response.text() == "pong"
                assert (response.headers["X-Here"], response.headers["Set-Cookie"]) == ("yes", "a=1")
            async with client.get(f"{address}/v1/models") as response:
                assert (await response.json())["data"][0]["id"] == "served"
            async with client.post(f"{address}/v1/chat/completions", json={**CHAT, "fail": 429}) as response:
                assert (response.status, await response.json()) == (429, {"error": "no"})
            assert "Cookie" not in fake.seen[1].headers
            assert counts == {"passed only: no completion": 2, "not recorded: answered with status 429": 1}

    run(main)
    assert not out.exists()


def test_a_stream_that_the_server_breaks_off_breaks_off_for_the_client(out: Path) -> None:
    fake = FakeServer(break_after=2)

    async def main() -> None:
        async with proxying(fake, out) as (address, _), aiohttp.ClientSession() as client:
            with pytest.raises(aiohttp.ClientError):
                async with client.post(f"{address}/v1/chat/completions", json=STREAM) as response:
                    await response.read()

    run(main)


def test_a_server_that_is_not_there_is_a_502_with_the_reason(out: Path) -> None:
    async def main() -> None:
        stop, listens = asyncio.Event(), asyncio.Event()
        where: list[str] = []

        def ready(address: str) -> None:
            where.append(address)
            listens.set()

        with Recorder(out, words, block_tokens=16) as recorder:
            listening = Listening(server="http://127.0.0.1:9", port=0)
            running = asyncio.create_task(pass_through(listening, recorder, stop=stop, ready=ready))
            await listens.wait()
            async with (
                aiohttp.ClientSession() as client,
                client.post(f"{where[0]}/v1/completions", json=CHAT) as response,
            ):
                assert response.status == 502
                assert "127.0.0.1" in (await response.json())["error"]["message"]
            stop.set()
            await running
            assert recorder.counts["not recorded: the server could not be reached"] == 1

    run(main)


def test_stopping_while_streams_are_open_ends_soon_and_leaves_whole_lines(out: Path) -> None:
    fake = FakeServer()

    async def main() -> None:
        async with aiohttp.ClientSession() as client, proxying(fake, out) as (address, _):
            async with client.post(f"{address}/v1/chat/completions", json=STREAM) as response:
                await response.read()
            fake.endless = True
            opened = await client.post(f"{address}/v1/chat/completions", json=STREAM)
            await opened.content.readuntil(b"\n\n")

    run(main)
    assert len(read_trace(out).requests) == 1  # the one that the recording's end cut off is not traffic


def test_a_port_that_is_taken_is_one_line(out: Path) -> None:
    async def main() -> None:
        async with proxying(FakeServer(), out) as (address, _):
            taken = Listening(server="http://127.0.0.1:9", port=int(address.rpartition(":")[2]))
            with (
                Recorder(out.with_name("u"), words, block_tokens=16) as recorder,
                pytest.raises(TraceError, match=r"cannot listen on 127\.0\.0\.1:"),
            ):
                await pass_through(taken, recorder, stop=asyncio.Event(), ready=lambda _: None)

    run(main)


@pytest.mark.parametrize("server", ["127.0.0.1:8000", "http://h/v1", "ftp://h", "http://", "", "http://h:x"])
def test_a_server_is_named_by_its_origin(server: str) -> None:
    with pytest.raises(TraceError):
        origin(server)


def test_the_served_model_is_asked_for() -> None:
    async def main() -> None:
        async with serving(FakeServer()) as server:
            assert await served_model(server) == "org/model"
        with pytest.raises(TraceError, match="does not say what it serves"):
            await served_model("http://127.0.0.1:9")

    run(main)
