"""What Prometheus reads at /metrics: requests as they are answered, and the queue as it stands."""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tuner.service.places import Place, free
from tuner.service.queue import Queue

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.025, 0.1, 0.5, 2.5, 10.0)


class Metrics:
    """The metrics of one service. No user's name is in them."""

    def __init__(self, queue: Queue, places: Iterable[Place]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Standing(queue, tuple(places)))
        self._requests = Counter(
            "tuner_http_requests",
            "Requests answered, by what was asked and the answer's status.",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "tuner_http_request_seconds",
            "From a request's arrival to its answer's first byte.",
            ("method", "route"),
            buckets=_SECONDS,
            registry=self._registry,
        )

    def answered(self, method: str, route: str, status: int, took_s: float) -> None:
        """Count a request. `route`: as documented, so that there are only so many."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(took_s)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _Standing(Collector):
    """Read from the queue whenever it is asked."""

    def __init__(self, queue: Queue, places: tuple[Place, ...]) -> None:
        self._queue = queue
        self._places = places

    def describe(self) -> Iterator[Metric]:
        return iter(())  # so that registering it asks nothing of the queue

    def collect(self) -> Iterator[Metric]:
        jobs = GaugeMetricFamily("tuner_jobs", "Studies and ablations by state.", labels=("state",))
        for state, count in self._queue.counts().items():
            jobs.add_metric((state.value,), count)
        yield jobs
        open_ones = free(self._places, self._queue.active())
        places = GaugeMetricFamily("tuner_places", "Places that jobs run in.", labels=("kind", "use"))
        for kind, simulated in (("real", False), ("simulated", True)):
            every = sum(place.simulated == simulated for place in self._places)
            idle = sum(place.simulated == simulated for place in open_ones)
            places.add_metric((kind, "free"), idle)
            places.add_metric((kind, "taken"), every - idle)
        yield places
        waiting = self._queue.waiting()
        oldest = GaugeMetricFamily(
            "tuner_oldest_waiting_timestamp_seconds",
            "When the job that has waited longest was queued, Unix time; absent where none waits.",
        )
        if waiting:
            oldest.add_metric((), min(job.queued for job in waiting).timestamp())
        yield oldest
