"""What is expected of configs: which theory the trials bear out, and what is recommended of noisy ones."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pytest
from numpy.typing import NDArray

from objectives.goal import Goal
from search_spaces.space import Config
from search_spaces.values import Scalar
from tests.tuner.spaces import SMALL
from tuner.refusals import refusals
from tuner.sampler.encoding import Encoding
from tuner.sampler.guidance import Foresight, Guidance
from tuner.sampler.judge import Judge
from tuner.sampler.lessons import Lessons
from tuner.sampler.oracle import Oracle
from tuner.sampler.pool import drawn

Array = NDArray[np.float64]
GOAL = Goal.of(["goodput", "tpot_p95"])
CONFIGS = drawn(SMALL, np.random.default_rng(0), 200)
NO_BOUND: Mapping[str, float] = MappingProxyType({})


def _worth(config: Config) -> tuple[float, float]:
    sequences = config.values["max_num_seqs"]
    assert isinstance(sequences, int)
    gain = {"bf16": 1.0, "int8": 1.5, "fp8": 0.8}[str(config.values["scheme"])]
    return gain * sequences / (1 + sequences / 40), (0.005 + 0.0004 * sequences) / gain


def _told(
    skew: Callable[[Config], float], best: Mapping[str, float] = NO_BOUND
) -> Callable[[Sequence[Config]], Foresight]:
    def predict(configs: Sequence[Config]) -> Foresight:
        worths = np.array([_worth(config) for config in configs])
        factors = np.array([skew(config) for config in configs])
        return Foresight(
            metrics={"goodput_rps": worths[:, 0] * factors, "tpot_p95_s": worths[:, 1] / factors},
            fits=np.ones(len(configs), dtype=np.bool_),
            best=best,
        )

    return predict


def _lessons(configs: Sequence[Config], losses: Array | None = None, **violations: Array) -> Lessons:
    worths = np.array([(-goodput, tpot) for goodput, tpot in map(_worth, configs)])
    return Lessons(
        configs=tuple(configs),
        losses=worths if losses is None else losses,
        violations=violations,
        failed=(),
        pending=(),
        taken=frozenset(configs),
        refusals=refusals([], []),
    )


def _judge(
    known: Lessons, skew: Callable[[Config], float] = lambda _: 1.0, best: Mapping[str, float] = NO_BOUND
) -> Judge:
    guidance = Guidance(predict=_told(skew, best))
    encoding = Encoding(SMALL)
    oracle = Oracle(GOAL, SMALL, encoding, guidance.predict)
    return Judge(known, GOAL, guidance, encoding, oracle, oracle.front(oracle.slate(CONFIGS), 16))


def test_a_prediction_that_holds_is_trusted_and_one_of_something_else_is_not() -> None:
    rng = np.random.default_rng(4)
    other = {config: float(np.exp(1.5 * rng.standard_normal())) for config in CONFIGS}
    assert _judge(_lessons(CONFIGS[:12])).trust > 0.8
    assert _judge(_lessons(CONFIGS[:12]), lambda config: other[config]).trust < 0.1


def test_a_prediction_wrong_of_one_choice_is_corrected_by_the_trials_of_that_choice() -> None:
    """int8 is told to be a third of what it is; two trials with it are enough to put it in front."""
    plain = [config for config in CONFIGS if config.values["scheme"] != "int8"][:10]
    better = [config for config in CONFIGS if config.values["scheme"] == "int8"]
    known = _lessons((*plain, *better[:2]))

    def skew(config: Config) -> float:
        return 1 / 3 if config.values["scheme"] == "int8" else 1.0

    judge = _judge(known, skew)
    oracle = Oracle(GOAL, SMALL, Encoding(SMALL), _told(skew))
    untried = [config for config in CONFIGS if config not in known.taken]
    scores = judge.scores(oracle.slate(untried))
    best = [untried[place].values["scheme"] for place in np.argsort(-scores)[:10]]
    assert best.count("int8") >= 8


def test_a_lucky_measurement_bars_none_that_is_as_good() -> None:
    """Two configs that differ in nothing that matters: both are recommended, whichever was luckier."""
    values: dict[str, Scalar] = {
        "scheme": "int8",
        "speculation": "off",
        "max_num_seqs": 32,
        "gpu_memory_utilization": 0.9,
    }
    twins = [SMALL.config({**values, "max_num_batched_tokens": tokens}) for tokens in (512, 640)]
    others = [config for config in CONFIGS if config not in twins][:20]
    known = _lessons((*others, *twins))
    luck = np.zeros_like(known.losses)
    luck[-1] = 0.04 * known.losses[-1] * (1, -1)  # 4 % more goodput and 4 % less TPOT
    lucky = _judge(_lessons(known.configs, known.losses + luck)).recommended()
    assert set(twins) <= set(lucky)


def test_what_is_recommended_is_not_clearly_worse_than_anything_measured_in_every_objective() -> None:
    known = _lessons(CONFIGS[:40])
    recommended = _judge(known).recommended()
    assert 0 < len(recommended) < 40
    for config in recommended:
        goodput, tpot = _worth(config)
        assert not any(
            more > 1.2 * goodput and less < tpot / 1.2 for more, less in map(_worth, known.configs)
        )


def test_what_is_expected_to_miss_a_constraint_is_not_recommended() -> None:
    sizes = np.array([float(str(config.values["max_num_seqs"])) for config in CONFIGS[:40]])
    judge = _judge(_lessons(CONFIGS[:40], slo_attainment=0.3 * np.log(sizes / 20)))
    assert judge.recommended()
    for config in judge.recommended():
        assert float(str(config.values["max_num_seqs"])) <= 24


def test_a_config_that_serves_all_there_is_is_not_bettered_by_one_that_promises_more() -> None:
    """Of two that were not tried, one would serve more than comes; the other less, at a lower TPOT."""
    order = sorted(CONFIGS, key=_worth)
    quick, more = min(CONFIGS, key=lambda config: _worth(config)[1]), order[-1]
    tried = [config for config in order if _worth(config)[1] > 1.3 * _worth(quick)[1]][60:140:10]
    served, tpot_s = _worth(tried[-1])  # the most of these, sooner than the promising one would
    assert tpot_s < _worth(more)[1]
    assert served < _worth(more)[0]
    asked = Oracle(GOAL, SMALL, Encoding(SMALL), _told(lambda _: 1.0)).slate([more, quick])
    free = _judge(_lessons(tried)).scores(asked)
    assert free[0] > free[1]
    bounded = _judge(_lessons(tried), best={"goodput_rps": served}).scores(asked)
    assert bounded[0] < bounded[1]


def test_nothing_measured_is_nothing_recommended() -> None:
    assert _judge(_lessons([], np.zeros((0, 2)))).recommended() == []


@pytest.mark.parametrize("trials", [1, 3, 12])
def test_scores_are_numbers_however_little_is_known(trials: int) -> None:
    judge = _judge(_lessons(CONFIGS[:trials]))
    oracle = Oracle(GOAL, SMALL, Encoding(SMALL), _told(lambda _: 1.0))
    assert np.isfinite(judge.scores(oracle.slate(CONFIGS))).all()
