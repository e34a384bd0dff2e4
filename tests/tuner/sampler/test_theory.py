"""What models of several objectives tell each other."""

import numpy as np
import pytest

from objectives.goal import Goal
from search_spaces.space import Config
from tests.tuner.spaces import SMALL
from tuner.sampler.encoding import Encoding
from tuner.sampler.gaussian_process import Beliefs, Told
from tuner.sampler.oracle import Oracle, Slate
from tuner.sampler.pool import drawn
from tuner.sampler.theory import Model, Modelling

CONFIGS = drawn(SMALL, np.random.default_rng(0), 60)
ORACLE = Oracle(Goal.of(["goodput", "tpot_p95"]), SMALL, Encoding(SMALL), None)
MODELLING = Modelling(Encoding(SMALL), ORACLE.slate(()))
BELIEFS = Beliefs(claim=0.7, weight=1.0)


def _claim(config: Config) -> float:
    """What is predicted of int8, by how many sequences there are."""
    sequences = config.values["max_num_seqs"]
    assert isinstance(sequences, int)
    return sequences / 40 if config.values["scheme"] == "int8" else 0.0


def _told(slate: Slate) -> Told:
    claims = np.array([_claim(config) for config in slate.configs])
    return Told(claims, claims[:, None])


def _model(configs: list[Config], off: float) -> Model:
    """Of values for which the claim is wrong by this."""
    slate = ORACLE.slate(configs)
    values = (1 + off) * np.array([_claim(config) for config in configs])
    return MODELLING.model(slate, values, _told, BELIEFS)


INT8 = [config for config in CONFIGS if config.values["scheme"] == "int8"]
REST = [config for config in CONFIGS if config.values["scheme"] != "int8"]


def test_a_mistake_that_one_objective_shows_counts_for_the_others() -> None:
    """Nothing with int8 was measured of the one; the other shows that int8 does the reverse of the claim."""
    blind, seen = _model(REST[:12], 0.0), _model([*REST[:6], *INT8[:6]], -2.0)
    asked = ORACLE.slate(INT8[6:])
    claims = _told(asked).claims[:, 0]
    assert blind.at(asked)[0] == pytest.approx(claims, abs=0.2)
    mean, sd = MODELLING.corrected(blind, [seen]).at(asked)
    assert mean == pytest.approx(-claims, abs=0.3)
    assert (sd > 0.2 * claims).all()  # told by another objective, so not for certain


def test_a_claim_that_holds_elsewhere_changes_nothing() -> None:
    blind, seen = _model(REST[:12], 0.0), _model([*REST[:6], *INT8[:6]], 0.1)
    assert MODELLING.corrected(blind, [seen]) is blind
    assert MODELLING.corrected(seen, []) is seen


def test_a_mistake_that_is_not_known_of_yet_is_not_passed_on() -> None:
    blind, other = _model(REST[:12], 0.0), _model(REST[12:24], 0.0)
    assert MODELLING.corrected(blind, [other]) is blind
