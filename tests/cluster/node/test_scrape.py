"""Counters are read at the edges of a replay and on a steady beat between, and a failed reading is a gap."""

import asyncio
import math
import time
from collections.abc import Callable

import pytest

from cluster.node.replay import replay, run_loop
from cluster.node.scrape import Scraper
from objectives.measurement import Histogram, Sample
from tests.cluster.node.fake_server import FakeServer, Script, prompt


def served(n: int) -> str:
    """A counter that tells which scrape this is."""
    return f'vllm:generation_tokens_total{{engine="0"}} {n}\n'


def scraped(
    metrics: Callable[[int], str | None], *, scrapes: int, every_s: float, timeout_s: float = 5.0
) -> tuple[tuple[Sample, ...], int, float]:
    """What was read while the server counted so many scrapes, and once more; gaps; seconds it took."""

    async def main() -> tuple[tuple[Sample, ...], int, float]:
        async with FakeServer(metrics=metrics) as server:
            zero_s = time.perf_counter()
            async with Scraper(server.url, every_s=every_s, timeout_s=timeout_s) as scraper:
                while server.scrapes < scrapes:  # noqa: ASYNC110 - the server counts, and signals nothing
                    await asyncio.sleep(0.005)
            return scraper.samples(zero_s), scraper.gaps, time.perf_counter() - zero_s

    return run_loop(main())


def test_one_scrape_before_one_after_and_a_steady_beat_between() -> None:
    samples, gaps, took_s = scraped(served, scrapes=5, every_s=0.1)
    assert gaps == 0
    counts = [sample.generation_tokens_total or 0 for sample in samples]
    assert counts == sorted(set(counts))
    assert counts[0] == 0
    # Five and the last; one under way at the end may be left to it.
    assert 5 <= len(samples) <= 7
    times = [sample.at_s for sample in samples]
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[3] - times[0] > 0.2  # three beats are 0.3 s; a late first one shortens that
    assert times[-1] <= took_s


def test_a_replay_shorter_than_the_beat_has_its_two_edges() -> None:
    samples, _, _ = scraped(served, scrapes=1, every_s=60.0)
    assert [sample.generation_tokens_total for sample in samples] == [0, 1]


def test_the_edges_and_only_they_hold_the_histograms() -> None:
    name = "vllm:e2e_request_latency_seconds"
    samples, _, _ = scraped(
        lambda n: f'{name}_bucket{{le="+Inf"}} {n}\n{name}_sum {n}.5\n', scrapes=4, every_s=0.02
    )
    first, *between, last = (sample.e2e_histogram for sample in samples)
    assert first == Histogram(bounds=(math.inf,), counts=(0.0,), sum=0.5)
    assert last is not None
    assert last.sum == last.counts[0] + 0.5 > 3
    assert between
    assert not any(between)


def test_a_failed_scrape_is_a_gap_and_the_beat_goes_on() -> None:
    samples, gaps, _ = scraped(lambda n: None if n in (0, 2) else served(n), scrapes=4, every_s=0.05)
    assert gaps == 2
    assert [sample.generation_tokens_total for sample in samples][:2] == [1, 3]


def test_a_server_that_is_gone_is_a_gap() -> None:
    async def main() -> Scraper:
        async with FakeServer() as server:
            url = server.url
        async with Scraper(url, every_s=0.05) as scraper:
            await asyncio.sleep(0.12)
        return scraper

    scraper = run_loop(main())
    assert scraper.samples(0.0) == ()
    assert scraper.gaps >= 3


def test_a_frozen_server_cannot_hold_up_the_end() -> None:
    async def main() -> tuple[Scraper, float]:
        # A port that accepts and never answers.
        writers: list[asyncio.StreamWriter] = []
        server = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        start_s = time.perf_counter()
        async with Scraper(f"http://127.0.0.1:{port}", timeout_s=0.2) as scraper:
            await asyncio.sleep(0)
        server.close()
        for writer in writers:
            writer.close()
        return scraper, time.perf_counter() - start_s

    scraper, took_s = run_loop(main())
    assert scraper.gaps == 2
    assert took_s < 2


def test_an_exception_within_passes_and_asks_nothing_more() -> None:
    async def main() -> FakeServer:
        async with FakeServer(metrics=served) as server:
            with pytest.raises(LookupError):
                async with Scraper(server.url, every_s=60.0):
                    raise LookupError
            return server

    assert run_loop(main()).scrapes == 1


def test_samples_lie_on_the_clock_of_the_replays_records() -> None:
    async def main() -> None:
        async with (
            FakeServer(Script(gap_s=0.1), metrics=served) as server,
            Scraper(server.url, every_s=0.1) as scraper,
        ):
            result = await replay(
                [prompt(max_tokens=5)], base_url=server.url, model="m", stuck_s=5, alive=lambda: None
            )
        samples = scraper.samples(result.zero_s)
        end_s = result.records[0].finished_s
        assert end_s is not None
        assert samples[0].at_s < 0
        assert samples[-1].at_s >= end_s
        assert sum(0 <= sample.at_s <= end_s for sample in samples) >= 2

    run_loop(main())
