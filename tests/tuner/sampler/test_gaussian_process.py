import dataclasses

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import approx_fprime
from scipy.stats import multivariate_normal

from tuner.sampler.gaussian_process import (
    REACH,
    Beliefs,
    Distances,
    Hyperparameters,
    Told,
    _Objective,
    _start,
    fit,
    posterior,
)

Array = NDArray[np.float64]

GROUPS = np.array([0, 1, 1])
"""A number, and a choice of two."""
HYPER = Hyperparameters(
    np.array([0.4]), np.array([0.25]), np.array([0.5, 0.3]), np.array([0.7, 1.3]), 0.9, 0.1, 0.2, 0.6
)


def _data(n: int, seed: int = 0) -> tuple[Array, Told, Array]:
    """Points, what is predicted of them, and noisy values for which the prediction holds."""
    rng = np.random.default_rng(seed)
    chosen = rng.integers(2, size=n)
    points = np.column_stack([rng.random(n), chosen * 0.7, (1 - chosen) * 0.7])
    prediction = np.sin(3 * points[:, 0]) + chosen
    told = Told(prediction, chosen[:, None].astype(np.float64))
    return points, told, prediction + 0.05 * rng.standard_normal(n)


def _times(factor: float, told: Told) -> Told:
    return Told(factor * told.mean, factor * told.claims)


def _kernel(left: Array, left_told: Told, right: Array, right_told: Told) -> Array:
    """A Matérn 5/2 of all parameters and one of each, point by point by its definition, and the claims'."""

    def matern(distance: float) -> float:
        r = np.sqrt(5) * distance
        return float((1 + r + r * r / 3) * np.exp(-r))

    scales = HYPER.lengths[GROUPS]
    out = np.empty((len(left), len(right)))
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            out[i, j] = HYPER.signal**2 * matern(np.linalg.norm((a - b) / scales).item())
            for p, effect in enumerate(HYPER.effects):
                out[i, j] += effect**2 * matern(np.linalg.norm((a - b)[p == GROUPS]).item() / REACH)
    return out + 0.4**2 * np.outer(left_told.claims[:, 0], right_told.claims[:, 0])


def test_the_posterior_is_that_of_the_joint_normal_distribution() -> None:
    points, told, values = _data(9)
    asked, shown, _ = _data(4, seed=1)
    found = posterior(points, values, told, GROUPS, HYPER, centre=0.5)
    mean, sd = found.at(asked, shown)
    prior_at = 0.2 + 0.6 * shown.mean + 0.4 * 0.5 + 0.25 * shown.claims[:, 0]
    prior_of = 0.2 + 0.6 * told.mean + 0.4 * 0.5 + 0.25 * told.claims[:, 0]
    covariance = _kernel(points, told, points, told) + (0.1**2 + 1e-8) * np.eye(9)
    inner = np.linalg.inv(covariance)
    assert found.evidence == pytest.approx(multivariate_normal(prior_of, covariance).logpdf(values))
    cross = _kernel(asked, shown, points, told)
    assert mean == pytest.approx(prior_at + cross @ inner @ (values - prior_of))
    assert sd**2 == pytest.approx(
        np.diag(_kernel(asked, shown, asked, shown) - cross @ inner @ cross.T), abs=1e-9
    )


def test_how_wrong_a_claim_is_follows_from_the_joint_normal_distribution() -> None:
    points, told, values = _data(9)
    mean, sd = posterior(points, values, told, GROUPS, HYPER, centre=0.5).wrong()
    prior_of = 0.2 + 0.6 * told.mean + 0.4 * 0.5 + 0.25 * told.claims[:, 0]
    inner = np.linalg.inv(_kernel(points, told, points, told) + (0.1**2 + 1e-8) * np.eye(9))
    cross = 0.4**2 * told.claims[:, 0]
    assert mean == pytest.approx([0.25 + cross @ inner @ (values - prior_of)])
    assert sd**2 == pytest.approx([0.4**2 - cross @ inner @ cross])


def test_the_fit_climbs_the_true_gradient_of_the_true_density() -> None:
    points, told, values = _data(8)
    beliefs = Beliefs(doubt=0.7)
    start = _start(1, 2, beliefs)
    objective = _Objective(Distances.between(points, points, GROUPS), values, told, beliefs, start)
    scales = np.log([*HYPER.claims, *HYPER.effects, *HYPER.lengths, HYPER.signal, HYPER.noise])
    packed = np.array([*scales, 0.2, 0.6])
    loss, gradient = objective(packed)

    def loss_of(at: Array) -> float:
        return objective(at)[0]

    numeric = approx_fprime(packed, loss_of, 1e-6)
    assert gradient == pytest.approx(numeric, rel=1e-3, abs=1e-3)
    mean = told.mean.mean() + 0.2 + 0.6 * (told.mean - told.mean.mean())
    covariance = _kernel(points, told, points, told) + (0.1**2 + 1e-8) * np.eye(8)
    density = multivariate_normal(mean, covariance).logpdf(values)
    each = [beliefs.claim_spread] + [beliefs.effect_spread] * 2 + [beliefs.length_spread] * 2
    spreads = np.array([*each, beliefs.signal_spread, beliefs.noise_spread])
    beliefs_loss = 0.5 * (((scales - start[:7]) / spreads) ** 2).sum() + 0.5 * (0.2 / beliefs.offset) ** 2
    constant = 0.5 * 8 * np.log(2 * np.pi)
    assert loss == pytest.approx(-density - constant + beliefs_loss + 0.7 * 0.4)


def test_a_good_prediction_is_borne_out_and_a_bad_one_dropped() -> None:
    points, told, values = _data(40)
    worse = Told.flat(-told.mean)
    assert fit(points, values, told, GROUPS, Beliefs()).weight > 0.9
    assert fit(points, values, worse, GROUPS, Beliefs()).weight < 0.1
    assert fit(points, values, worse, GROUPS, Beliefs(least=0.5)).weight == 0.5
    assert fit(points, values, worse, GROUPS, Beliefs(weight=1.0)).weight == 1.0


def test_a_wrong_prediction_costs_little_where_there_is_data() -> None:
    points, told, values = _data(60)
    asked, shown, truth = _data(40, seed=5)

    def error(given: Told, of_asked: Told) -> float:
        hyper = fit(points, values, given, GROUPS, Beliefs())
        centre = float(given.mean.mean())
        mean, _ = posterior(points, values, given, GROUPS, hyper, centre=centre).at(asked, of_asked)
        return float(np.sqrt(np.mean((mean - truth) ** 2)))

    assert error(_times(-3, told), _times(-3, shown)) < 0.2
    assert error(told, shown) < 0.08


def test_a_claim_told_the_wrong_way_round_is_put_right_by_few_points() -> None:
    """What a parameter does is predicted with the wrong sign, by another size at every point: one number, how
    wrong the claim is, puts all of it right, also where nothing was measured."""
    rng = np.random.default_rng(2)
    points, plain, _ = _data(30)
    claimed = rng.uniform(0.5, 2.0, 30) * rng.choice([-1, 1], 30)
    told = Told(plain.mean + claimed, claimed[:, None])
    truth = plain.mean - claimed
    few = np.arange(10)
    beliefs = Beliefs(claim=0.7, weight=1.0)

    def error(given: Told) -> float:
        hyper = fit(points[few], truth[few], given.take(few), GROUPS, beliefs)
        known = posterior(points[few], truth[few], given.take(few), GROUPS, hyper, centre=0.0)
        rest = np.arange(10, 30)
        return float(np.sqrt(np.mean((known.at(points[rest], given.take(rest))[0] - truth[rest]) ** 2)))

    assert error(told) < 0.3
    assert error(Told.flat(told.mean)) > 1.5


def test_noise_is_told_from_signal() -> None:
    points, told, _ = _data(80)
    noisy = told.mean + 0.3 * np.random.default_rng(3).standard_normal(80)
    hyper = fit(points, noisy, Told.flat(np.zeros(80)), GROUPS, Beliefs(weight=0.0, signal=0.7, offset=1.0))
    assert 0.2 < hyper.noise < 0.4
    assert hyper.variance > 0.3**2


def test_a_point_under_way_moves_no_mean_and_leaves_nothing_to_find_beside_it() -> None:
    points, told, values = _data(9)
    pending = np.array([[0.95, 0.7, 0.0]])
    expected = Told(np.array([1.3]), np.array([[1.0]]))
    alone = posterior(points, values, told, GROUPS, HYPER, centre=0.0)
    beside = posterior(
        points, values, told, GROUPS, HYPER, centre=0.0, pending=pending, pending_told=expected
    )
    asked, shown, _ = _data(5, seed=2)
    assert beside.at(asked, shown)[0] == pytest.approx(alone.at(asked, shown)[0])
    # A measurement leaves no more than its own noise, 0.1, and less where others help.
    assert beside.at(pending, expected)[1][0] < min(0.1, alone.at(pending, expected)[1][0])


def test_without_points_there_are_only_beliefs() -> None:
    empty = np.zeros((0, 3))
    known = posterior(empty, np.zeros(0), Told(np.zeros(0), np.zeros((0, 1))), GROUPS, HYPER, centre=2.0)
    mean, sd = known.at(np.zeros((2, 3)), Told(np.array([1.0, 3.0]), np.array([[0.0], [2.0]])))
    assert mean == pytest.approx([0.2 + 0.6 * 1 + 0.4 * 2, 0.2 + 0.6 * 3 + 0.4 * 2 + 0.25 * 2])
    plain = 0.9**2 + 0.5**2 + 0.3**2
    assert sd == pytest.approx(np.sqrt([plain, plain + (2 * 0.4) ** 2]))


def test_the_same_points_are_fitted_the_same() -> None:
    points, told, values = _data(30)
    first, second = (fit(points, values, told, GROUPS, Beliefs()) for _ in range(2))
    assert all(
        np.array_equal(getattr(first, field.name), getattr(second, field.name))
        for field in dataclasses.fields(first)
    )


def test_one_point_of_a_choice_tells_of_all_that_make_it() -> None:
    """What is off for a choice is learnt from one trial of it, wherever the other parameter stands."""
    points, predicted, values = _data(12)
    shifted = values + np.where(points[:, 1] > 0, 0.8, 0.0)
    first = int(np.flatnonzero(points[:, 1] > 0)[0])
    kept = np.array([i for i in range(12) if points[i, 1] == 0 or i == first])
    given = Told.flat(predicted.mean[kept])
    beliefs = Beliefs(effect=0.5, signal=0.1, weight=1.0)
    hyper = fit(points[kept], shifted[kept], given, GROUPS, beliefs)
    known = posterior(points[kept], shifted[kept], given, GROUPS, hyper, centre=0.0)
    asked = points[(points[:, 1] > 0) & (np.arange(12) != first)]
    told = np.sin(3 * asked[:, 0]) + 1
    assert known.at(asked, Told.flat(told))[0] == pytest.approx(told + 0.8, abs=0.25)
