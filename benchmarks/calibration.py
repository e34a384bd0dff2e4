"""How far the simulated engine is from a real one, once it is calibrated on five of the real one's configs.

    python -m benchmarks.calibration runs/STUDY… [--calibrate-on NAME,NAME,…] [--choices 20] [--json]

Takes finished studies of a real vLLM, of one space on one trace and one machine, and pools their configs. The
constants of step times, what drafts are accepted, what the API server adds to the first token, and how large
the KV pool is come from five configs, of each its first trial: the control, then those with the most choices
that none before has. All others are played on the simulated engine with the same trace, speed and SLO, and
held against what was measured. docs/simulation.md says how, and what came of it.

Beside the error stand three others that it is read by: over random choices of as many configs to calibrate
on, since five are few; of the simulated engine as it comes; and of the real engine against itself, from
configs that were measured more than once.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.calibrating.calibration import Calibration, calibrate
from benchmarks.calibrating.choice import spread
from benchmarks.calibrating.errors import (
    METRICS,
    Error,
    Played,
    errors,
    over_choices,
    play,
    repeatability,
)
from benchmarks.calibrating.measured import MeasuredConfig, Pool, read_pool
from cluster.traffic.request import TraceError
from objectives.step_fit import LEAST_TRIALS
from search_spaces.accelerators import GIB
from search_spaces.faults import SpaceError
from search_spaces.values import Json
from tuner.mistakes import Mistake
from tuner.terminal import config_words
from tuner.titles import number

CALIBRATED_ON = 5
_ENDS = (0.1, 0.9)
_NONE = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The simulated engine against the real one."""

    pool: Pool
    chosen: tuple[MeasuredConfig, ...]
    by_hand: bool
    """Whether they were named, not chosen here."""
    calibration: Calibration
    played: tuple[Played, ...]
    """Every other config."""
    errors: dict[str, Error]
    choices: tuple[dict[str, Error], ...]
    """The same for random choices of what to calibrate on."""
    as_it_comes: dict[str, Error]
    """Of the same configs on the simulated engine without calibration."""
    itself: dict[str, Error]
    """Of the real engine's measurements of one config against each other."""


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.calibration",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("studies", nargs="+", type=Path, help="folders of studies on a real vLLM")
    parser.add_argument("--calibrate-on", help="configs by the names of the table, separated by commas")
    parser.add_argument("--choices", type=int, default=20, help="random choices of what to calibrate on")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(words)
    names = None if asked.calibrate_on is None else tuple(asked.calibrate_on.split(","))
    try:
        found = compare(read_pool(asked.studies), names, max(asked.choices, 0))
    except (Mistake, SpaceError, TraceError) as error:
        parser.exit(2, f"error: {error}\n")
    if asked.json:
        json.dump(as_json(found), sys.stdout, indent=2)
        print()
        return
    print("\n".join(lines(found)))


def compare(pool: Pool, names: Sequence[str] | None, choices: int) -> Comparison:
    """Calibrate on the named configs, or on those chosen here, and hold all others against the result.

    Raises Mistake where a name is none of the pool's, or so many leave nothing to be calibrated or compared.
    """
    if names is None:
        places = spread([config.choices for config in pool.configs], CALIBRATED_ON)
    else:
        places = _places(pool, names)
    chosen = tuple(pool.configs[place] for place in places)
    others = [config for place, config in enumerate(pool.configs) if place not in places]
    calibration = calibrate(pool, chosen)
    played = play(pool, others, calibration)
    return Comparison(
        pool=pool,
        chosen=chosen,
        by_hand=names is not None,
        calibration=calibration,
        played=tuple(played),
        errors=errors(played),
        choices=tuple(over_choices(pool, len(chosen), choices)),
        as_it_comes=errors(play(pool, others, None)),
        itself=repeatability(pool.configs),
    )


def _places(pool: Pool, names: Sequence[str]) -> tuple[int, ...]:
    known = {config.name: place for place, config in enumerate(pool.configs)}
    for name in names:
        if name not in known:
            raise Mistake(f"no measured config '{name}' to calibrate on; there are {', '.join(known)}")
    places = tuple(dict.fromkeys(known[name] for name in names))
    if not LEAST_TRIALS <= len(places) < len(known):
        raise Mistake(
            f"{len(places)} configs to calibrate on, where {LEAST_TRIALS} are the least and "
            f"{len(known) - 1} leave one to compare"
        )
    return places


def lines(found: Comparison) -> Iterator[str]:
    """As a person reads it; the tables are Markdown."""
    pool = found.pool
    measured = sum(len(config.runs) for config in pool.configs)
    yield (
        f"{len(pool.configs)} configs in {measured} trials of {', '.join(pool.studies)}, on {pool.hardware}; "
        f"{len(pool.workload.trace.requests)} requests at speed {number(pool.workload.speed)}"
    )
    how = "as named" if found.by_hand else "the control, then spread over the choices"
    yield f"calibrated on {len(found.chosen)} of them ({how}), the first trial of each:"
    for config in found.chosen:
        yield f"  {_label(config)}: {config_words(config.choices)}"
    yield from _calibration(found.calibration)
    yield ""
    yield f"error on the {len(found.played)} others"
    yield ""
    yield from _summary(found)
    yield ""
    yield "simulated over measured, less 1"
    yield ""
    yield from _each(found.played)
    failed = [one for one in found.played if one.failed is not None]
    if failed:
        yield ""
    for one in failed:
        yield f"{_label(one.config)} was measured, and the simulated engine does not play it: {one.failed}"
    for reason, trials in pool.left_out.items():
        yield f"left out, {reason}: {', '.join(trials)}"


def _calibration(found: Calibration) -> Iterator[str]:
    for one in found.fitted:
        yield f"  {one.name} {one.value:.3g} ({one.standing}; table {one.table:.3g})"
    for name, luck in sorted(found.acceptance.items()):
        positions = ", ".join(f"{share:.3f}" for share in luck.positions or ())
        yield f"  {name}: a draft in {luck.found:.2f} of the steps, accepted by position {positions}"
    yield (
        "  API server: unknown, taken as 0"
        if found.api_s is None
        else f"  API server: {1e3 * found.api_s:.1f} ms"
    )
    yield (
        "  memory beside the KV pool: as worked out, since no pool was sized by what it leaves"
        if found.beside_kv is None
        else f"  memory beside the KV pool: {found.beside_kv / GIB:+.2f} GiB"
    )


def _summary(found: Comparison) -> Iterator[str]:
    again = max((error.configs for error in found.itself.values()), default=0)
    yield (
        f"| | configs | median | 90th percentile | bias | median over {len(found.choices)} choices "
        f"(10 to 90 %) | as it comes, median | real against itself ({again} trials), median | "
        "90th percentile |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for metric, words in METRICS.items():
        error, plain, itself = (of.get(metric) for of in (found.errors, found.as_it_comes, found.itself))
        cells = [words]
        cells += (
            ["0", *[_NONE] * 3]
            if error is None
            else [str(error.configs), *_sizes(error), _signed(error.bias)]
        )
        cells += [_over(found.choices, metric)]
        cells += [_NONE if plain is None else _size(plain.median)]
        cells += [_NONE] * 2 if itself is None else _sizes(itself)
        yield f"| {' | '.join(cells)} |"


def _sizes(error: Error) -> list[str]:
    return [_size(error.median), _size(error.p90)]


def _over(choices: Sequence[dict[str, Error]], metric: str) -> str:
    medians = sorted(one[metric].median for one in choices if metric in one)
    if not medians:
        return _NONE
    low, high = (_size(medians[round(share * (len(medians) - 1))]) for share in _ENDS)
    return f"{_size(float(np.median(medians)))} ({low} to {high})"


def _each(played: Sequence[Played]) -> Iterator[str]:
    yield f"| trial | {' | '.join(METRICS.values())} | config |"
    yield f"| --- | {'--- | ' * len(METRICS)}--- |"
    for one in played:
        ratios = [one.ratio(metric) for metric in METRICS]
        cells = [_NONE if ratio is None else _signed(ratio) for ratio in ratios]
        yield f"| {_label(one.config)} | {' | '.join(cells)} | {config_words(one.config.choices)} |"


def _label(config: MeasuredConfig) -> str:
    return f"{config.name} (control)" if config.is_control else config.name


def _size(factor: float) -> str:
    # Rounded, or what differs in the last bit would be told as 2e-14 %.
    return "∞" if math.isinf(factor) else f"{round(100 * (factor - 1), 6):.3g} %"


def _signed(ratio: float) -> str:
    return "∞" if math.isinf(ratio) else f"{100 * (ratio - 1):+.0f} %"


def as_json(found: Comparison) -> dict[str, object]:
    """The same to a program. What is infinite is the text "inf", as in a study's files."""
    pool, calibration = found.pool, found.calibration
    return {
        "studies": list(pool.studies),
        "hardware": pool.hardware,
        "trace_digest": pool.workload.trace.digest,
        "speed": pool.workload.speed,
        "calibrated_on": [_config_json(config) for config in found.chosen],
        "chosen": "by hand" if found.by_hand else "control, then spread over the choices",
        "calibration": {
            "constants": [asdict(one) for one in calibration.fitted],
            "acceptance": {name: asdict(luck) for name, luck in calibration.acceptance.items()},
            "api_s": calibration.api_s,
            "beside_kv_bytes": calibration.beside_kv,
        },
        "configs": [
            {
                **_config_json(one.config),
                "failed": one.failed,
                "metrics": {
                    metric: {
                        "measured": one.config.measured(metric),
                        "simulated": one.simulated.get(metric),
                        "ratio": _finite(one.ratio(metric)),
                    }
                    for metric in METRICS
                },
            }
            for one in found.played
        ],
        "errors": _errors_json(found.errors),
        "choices": [_errors_json(one) for one in found.choices],
        "as_it_comes": _errors_json(found.as_it_comes),
        "itself": _errors_json(found.itself),
        "left_out": {reason: list(trials) for reason, trials in pool.left_out.items()},
    }


def _config_json(config: MeasuredConfig) -> dict[str, object]:
    return {
        "name": config.name,
        "is_control": config.is_control,
        "config": dict(config.choices),
        "trials": [{"study": run.study, "trial": run.trial.number} for run in config.runs],
    }


def _errors_json(found: dict[str, Error]) -> dict[str, dict[str, Json]]:
    return {
        metric: {name: _finite(value) for name, value in asdict(error).items()}
        for metric, error in found.items()
    }


def _finite(value: float | None) -> Json:
    return str(value) if value is not None and math.isinf(value) else value


if __name__ == "__main__":
    main()
