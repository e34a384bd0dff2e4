"""What is said of configs before they are tried."""

from collections.abc import Sequence

import numpy as np
import pytest

from objectives.goal import Goal
from search_spaces.space import Config
from tests.tuner.spaces import SMALL
from tuner.sampler.encoding import Encoding
from tuner.sampler.guidance import Foresight
from tuner.sampler.oracle import Oracle
from tuner.sampler.pool import drawn

GOAL = Goal.of(["goodput", "tpot_p95"])
CONFIGS = drawn(SMALL, np.random.default_rng(0), 120)
SCHEMES = {"bf16": 1.0, "int8": 1.5, "fp8": 0.8}
FIRST = "bf16"
"""Of the schemes, in the space's order."""


def _predict(configs: Sequence[Config]) -> Foresight:
    """Goodput hangs on the scheme and the depth, TPOT on the scheme, which also breaks the SLO."""
    gains = np.array([SCHEMES[str(config.values["scheme"])] for config in configs])
    depths = np.array([float(str(config.get("speculation.depth", 0))) for config in configs])
    return Foresight(
        metrics={"goodput_rps": 10 * gains * (1 + depths), "tpot_p95_s": 0.02 / gains},
        fits=np.ones(len(configs), dtype=np.bool_),
        violations={"slo_attainment": gains - 1},
    )


def _oracle() -> Oracle:
    oracle = Oracle(GOAL, SMALL, Encoding(SMALL), _predict)
    oracle.weigh(CONFIGS)
    return oracle


def test_a_claim_is_the_prediction_of_the_config_with_that_parameter_at_its_first_choice() -> None:
    slate = _oracle().slate(CONFIGS)
    names = [parameter.path for parameter in SMALL.parameters]
    assert slate.claims == 2  # the scheme and the speculation; nothing is claimed of the others
    order = sorted(("scheme", "speculation"), key=names.index)
    scheme, speculation = order.index("scheme"), order.index("speculation")
    goodput, tpot = slate.without("goodput_rps"), slate.without("tpot_p95_s")
    for row, config in enumerate(CONFIGS):
        gain, depth = SCHEMES[str(config.values["scheme"])], float(str(config.get("speculation.depth", 0)))
        assert goodput[row, scheme] == pytest.approx(10 * SCHEMES[FIRST] * (1 + depth))
        assert goodput[row, speculation] == pytest.approx(10 * gain)  # off comes first, and has no depth
        assert tpot[row, scheme] == pytest.approx(0.02 / SCHEMES[FIRST])
        assert tpot[row, speculation] == pytest.approx(0.02 / gain)
        assert slate.without_violation("slo_attainment")[row, scheme] == pytest.approx(SCHEMES[FIRST] - 1)


def test_claims_go_with_their_configs() -> None:
    oracle = _oracle()
    slate, places = oracle.slate(CONFIGS), np.array([7, 3, 50])
    some = oracle.slate([CONFIGS[place] for place in places])
    assert np.array_equal(slate.take(places).without("goodput_rps"), some.without("goodput_rps"))


def test_nothing_is_claimed_before_claims_are_weighed_or_where_nothing_is_predicted() -> None:
    assert Oracle(GOAL, SMALL, Encoding(SMALL), _predict).slate(CONFIGS).claims == 0
    blind = Oracle(GOAL, SMALL, Encoding(SMALL), None)
    blind.weigh(CONFIGS)
    assert blind.slate(CONFIGS).claims == 0
    assert blind.slate(CONFIGS).without("goodput_rps").shape == (len(CONFIGS), 0)


def test_an_empty_slate_has_as_many_claims_as_any() -> None:
    assert _oracle().slate(()).without("tpot_p95_s").shape == (0, 2)
