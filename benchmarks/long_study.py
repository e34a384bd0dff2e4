"""What the driver of a long study does for one more trial, and how long that takes.

    python -m benchmarks.long_study [--space benchmarks/spaces/wide.yaml] [--sampler ehvi] [--trials 5000]
                                    [--more 4] [--predicted goodput|capacity] [--parts]

A study with `--trials` finished trials is made up, on disk and in its database (SQLite, as by default), and
resumed for `--more` new configs and as many repeats, whose outcomes are made up as well. Printed: the time
until the study was resumed, the median and the longest of asking and of telling, of putting a trial on disk,
of making the front and of choosing what to repeat, and of the whole loop; and, with `--parts`, the functions
that took most of it. Seconds of the driver's CPU, which other work on the machine does not lengthen; it waits
for little beside. The sampler `ehvi` goes by trials alone here, unless `--predicted` names the objective that
it is to predict beside TPOT p95: a capacity takes four times as long as goodput. The first time it asks is
longest, since it makes its pool, and is told by itself.
"""

import argparse
import cProfile
import itertools
import pstats
import statistics
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from cluster.order import Measured, Order, Ran
from cluster.traffic.trace import Request, Trace
from cluster.traffic.workload import Workload
from objectives.goal import Goal
from objectives.measurement import Estimate, Measurement
from objectives.slo import Slo
from search_spaces.arguments import render, render_control
from search_spaces.load import load_space
from search_spaces.space import Config, Space, SpaceError
from tests.tuner.dispatches import FakeDispatch
from tuner import study as study_module
from tuner.events import Event, Started
from tuner.front import FrontView
from tuner.ledger import Standing
from tuner.records import StoredTrial, StudyFile, write_outcome, write_study
from tuner.sampler import Guidance, Predict, Search, sampler_named
from tuner.sampler.prior import predictor
from tuner.session import DEFAULT_SAMPLER
from tuner.study import StudyPlan, search
from tuner.traffic import study_trace

SECOND = "tpot_p95"
PREDICTED = ("goodput", "capacity")
WIDE = "benchmarks/spaces/wide.yaml"
"""The shipped 8b with some more parameters: 20 that may differ."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--space", default=WIDE)
    parser.add_argument("--sampler", default=DEFAULT_SAMPLER)
    parser.add_argument("--trials", type=int, default=5000)
    parser.add_argument("--more", type=int, default=4)
    parser.add_argument("--predicted", choices=PREDICTED)
    parser.add_argument("--parts", action="store_true")
    asked = parser.parse_args()
    try:
        space = load_space(asked.space)
    except SpaceError as error:
        raise SystemExit(f"error: {error}") from None
    try:
        with tempfile.TemporaryDirectory(prefix="long-study-") as folder:
            drive(
                space,
                asked.sampler,
                asked.trials,
                asked.more,
                Path(folder),
                predicted=asked.predicted,
                parts=asked.parts,
            )
    except KeyboardInterrupt:
        raise SystemExit("interrupted; nothing of it is kept") from None


def drive(
    space: Space,
    sampler: str,
    trials: int,
    more: int,
    folder: Path,
    *,
    predicted: str | None = None,
    parts: bool = False,
) -> None:
    """Make the study up, resume it, and print what the driver's work takes.

    Args:
        predicted: the objective that is predicted; None: the sampler goes by trials alone.
    """
    made_up = _MadeUp(space, sampler, predicted or "goodput")
    began_s = time.process_time()
    made_up.write(folder / "long", trials)
    print(f"{trials} trials on disk after {time.process_time() - began_s:.1f} s", flush=True)
    # So large that new configs are asked for.
    plan = StudyPlan(
        folder=folder / "long",
        study=made_up.study,
        space=space,
        goal=Goal.of(made_up.study.objectives),
        total=2 * trials,
        order=made_up.order,
    )
    sampled = Search.open(
        space=space,
        goal=plan.goal,
        study="long",
        storage=f"sqlite:///{folder}/study.db",
        recipe=sampler_named(sampler),
        seed=1,
        guidance=Guidance(predict=made_up.predict() if predicted else None),
    )
    # The first enters every trial into the database; the second is what a person sees who resumes.
    profile = cProfile.Profile()
    timed = _Timed()
    with timed.noting("ask", sampled, "ask"):
        resumed(plan, made_up, sampled, "first").close()
    print(_line("first ask", timed.took_s["ask"]))
    with (
        timed.noting("ask", sampled, "ask"),
        timed.noting("tell", sampled, "tell"),
        timed.noting("write", study_module, "write_outcome"),
        timed.noting("front", study_module, "view"),
        timed.noting("next repeat", study_module, "next_repeat"),
    ):
        for what, total in (("new configs", 2 * trials), ("repeats", trials + 2 * more + 1)):
            events = resumed(replace(plan, total=total), made_up, sampled, what)
            timed.took_s.clear()
            if parts:
                profile.enable()
            laps_s = list(itertools.islice(_laps(events), more))
            profile.disable()
            events.close()
            print(f"{what}:")
            for name, took_s in timed.took_s.items():
                print(_line(name, took_s))
            print(_line("a trial in all", laps_s))
    if parts:
        pstats.Stats(profile).sort_stats("cumulative").print_stats(40)


def _laps(events: Iterator[Event]) -> Iterator[float]:
    """CPU seconds from one trial sent out to the next."""
    began_s = time.process_time()
    for event in events:
        if isinstance(event, Started):
            yield time.process_time() - began_s
            began_s = time.process_time()


def resumed(
    plan: StudyPlan, made_up: "_MadeUp", sampled: Search, session: str
) -> Generator[Event, None, None]:
    """The search, up to its first trial sent out."""
    began_s = time.process_time()
    events = search(plan, FakeDispatch(made_up.outcome), sampled, _NoRecorder())
    assert isinstance(next(events), Started)
    print(f"until the {session} session asks: {time.process_time() - began_s:.1f} s", flush=True)
    return events


def _line(name: str, took_s: list[float]) -> str:
    return f"{name:14} median {statistics.median(took_s):8.3f} s, longest {max(took_s):.3f} s"


class _Timed:
    """How long some calls took, each."""

    def __init__(self) -> None:
        self.took_s: dict[str, list[float]] = {}

    @contextmanager
    def noting(self, name: str, owner: Any, attribute: str) -> Iterator[None]:
        """Time the calls of this attribute of an object or module meanwhile."""
        plain = getattr(owner, attribute)

        def noted(*arguments: Any, **options: Any) -> Any:
            began_s = time.process_time()
            try:
                return plain(*arguments, **options)
            finally:
                self.took_s.setdefault(name, []).append(time.process_time() - began_s)

        setattr(owner, attribute, noted)
        try:
            yield
        finally:
            setattr(owner, attribute, plain)


class _NoRecorder:
    def sync(self, study_folder: Path, view: FrontView, standing: Standing = "RUNNING") -> bool:
        return True


class _MadeUp:
    """Trials of a space with a trade-off between two objectives and noise, without any replay."""

    def __init__(self, space: Space, sampler: str, first: str) -> None:
        self._space, self._first = space, Goal.of((first,)).objectives[0].metric
        self._rng = np.random.default_rng(1)
        self._workload = Workload(
            trace=Trace(requests=(Request(arrival_s=0.0, input_length=8, output_length=4),))
        )
        self._began = datetime(2026, 1, 2, tzinfo=UTC)
        self.study = StudyFile(
            name="long",
            id="long-1",
            space_name=space.name,
            space_text="",
            trace="made up",
            trace_digest="0" * 64,
            trace_figures={},
            objectives=(first, SECOND),
            slo=Slo(),
            sampler=sampler,
            seed=1,
            engine="simulated",
            created=self._began,
            tuner_version="0",
        )

    def predict(self) -> Predict:
        """Of the space's own traffic and SLO, where the trials have one request."""
        trace, _ = study_trace(self._space, None)
        workload = Workload(trace=trace, speed=self._space.traffic.speed)
        space = replace(self._space, named_objectives=self.study.objectives)
        predict = predictor(space, workload, Slo.from_limits(space.slo))
        if predict is None:
            raise SystemExit(f"error: no figures for the accelerator of {space.name}: nothing is predicted")
        return predict

    def order(self, number: int, config: Config | None) -> Order:
        rendered = render_control(self._space) if config is None else render(self._space, config)
        return Order(
            study="long",
            number=number,
            model=rendered.model,
            arguments=rendered.arguments,
            environment=rendered.environment,
            workload=self._workload,
            slo=Slo(),
        )

    def outcome(self, order: Order) -> Measured:
        split, noise = self._rng.uniform(), np.exp(0.03 * self._rng.standard_normal(2))
        distance = 1 + self._rng.exponential(0.5)
        goodput = float((1 + 4 * split) / distance * noise[0])
        tpot_s = float((0.01 + 0.05 * split**2) * distance * noise[1])
        metrics = {
            self._first: Estimate(value=goodput, low=goodput * 0.95, high=goodput * 1.05),
            "tpot_p95_s": Estimate(value=tpot_s, low=tpot_s * 0.95, high=tpot_s * 1.05),
        }
        ran = Ran(engine="simulated", node="here", effective={}, total_s=60.0)
        return Measured(
            measurement=Measurement(metrics=metrics, requests=1, failed_requests=0, duration_s=60.0),
            records=(),
            samples=(),
            ran=ran,
        )

    def write(self, folder: Path, trials: int) -> None:
        folder.mkdir(parents=True)
        write_study(folder, self.study)
        # Half of what a search of so many would measure again, so that both are still to be had.
        firsts = trials - trials // 20
        seen: list[Config] = []
        worth: dict[int, float] = {}
        for number in range(trials):
            repeats = None
            config = None
            if number >= firsts:
                repeats = sorted(worth, key=worth.__getitem__)[-1 - (number - firsts) // 3]
                config = seen[repeats - 1]
            elif number > 0:
                config = self._new(frozenset(seen))
                seen.append(config)
            order = self.order(number, config)
            outcome = self.outcome(order)
            if 0 < number < firsts:
                worth[number] = outcome.measurement.metrics[self._first].value
            started = self._began + timedelta(minutes=number)
            trial = StoredTrial.of(
                order,
                outcome,
                config=None if config is None else config.values,
                is_control=number == 0,
                repeats=repeats,
                attempts=1,
                started=started,
                finished=started + timedelta(minutes=1),
                tuner_version="0",
                secrets=frozenset(),
            )
            write_outcome(folder, trial, outcome, secrets=frozenset())

    def _new(self, seen: frozenset[Config]) -> Config:
        while (config := self._space.sample(self._rng)) in seen:
            continue
        return config


if __name__ == "__main__":
    main()
