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
    _Objective,
    _start,
    fit,
    posterior,
)

Array = NDArray[np.float64]

GROUPS = np.array([0, 1, 1])
"""A number, and a choice of two."""
HYPER = Hyperparameters(np.array([0.5, 0.3]), np.array([0.7, 1.3]), 0.9, 0.1, 0.2, 0.6)


def _data(n: int, seed: int = 0) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    chosen = rng.integers(2, size=n)
    points = np.column_stack([rng.random(n), chosen * 0.7, (1 - chosen) * 0.7])
    prediction = np.sin(3 * points[:, 0]) + chosen
    return points, prediction, prediction + 0.05 * rng.standard_normal(n)


def _kernel(left: Array, right: Array) -> Array:
    """A Matérn 5/2 of all parameters and one of each, point by point, from its definition."""

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
    return out


def test_the_posterior_is_that_of_the_joint_normal_distribution() -> None:
    points, prediction, values = _data(9)
    asked, told, _ = _data(4, seed=1)
    found = posterior(points, values, prediction, GROUPS, HYPER, centre=0.5)
    mean, sd = found.at(asked, told)
    prior_at = 0.2 + 0.6 * told + 0.4 * 0.5
    prior_of = 0.2 + 0.6 * prediction + 0.4 * 0.5
    covariance = _kernel(points, points) + (0.1**2 + 1e-8) * np.eye(9)
    inner = np.linalg.inv(covariance)
    assert found.evidence == pytest.approx(multivariate_normal(prior_of, covariance).logpdf(values))
    cross = _kernel(asked, points)
    assert mean == pytest.approx(prior_at + cross @ inner @ (values - prior_of))
    assert sd**2 == pytest.approx(np.diag(_kernel(asked, asked) - cross @ inner @ cross.T), abs=1e-9)


def test_the_fit_climbs_the_true_gradient_of_the_true_density() -> None:
    points, prediction, values = _data(8)
    beliefs = Beliefs(doubt=0.7)
    start = _start(2, beliefs)
    objective = _Objective(Distances.between(points, points, GROUPS), values, prediction, beliefs, start)
    scales = np.log([*HYPER.effects, *HYPER.lengths, HYPER.signal, HYPER.noise])
    packed = np.array([*scales, 0.2, 0.6])
    loss, gradient = objective(packed)

    def loss_of(at: Array) -> float:
        return objective(at)[0]

    numeric = approx_fprime(packed, loss_of, 1e-6)
    assert gradient == pytest.approx(numeric, rel=1e-3, abs=1e-3)
    mean = prediction.mean() + 0.2 + 0.6 * (prediction - prediction.mean())
    density = multivariate_normal(mean, _kernel(points, points) + (0.1**2 + 1e-8) * np.eye(8)).logpdf(values)
    each = [beliefs.effect_spread] * 2 + [beliefs.length_spread] * 2
    spreads = np.array([*each, beliefs.signal_spread, beliefs.noise_spread])
    beliefs_loss = 0.5 * (((scales - start[:6]) / spreads) ** 2).sum() + 0.5 * (0.2 / beliefs.offset) ** 2
    constant = 0.5 * 8 * np.log(2 * np.pi)
    assert loss == pytest.approx(-density - constant + beliefs_loss + 0.7 * 0.4)


def test_a_good_prediction_is_borne_out_and_a_bad_one_dropped() -> None:
    points, prediction, values = _data(40)
    assert fit(points, values, prediction, GROUPS, Beliefs()).weight > 0.9
    assert fit(points, values, -prediction, GROUPS, Beliefs()).weight < 0.1
    assert fit(points, values, -prediction, GROUPS, Beliefs(least=0.5)).weight == 0.5
    assert fit(points, values, -prediction, GROUPS, Beliefs(weight=1.0)).weight == 1.0


def test_a_wrong_prediction_costs_little_where_there_is_data() -> None:
    points, prediction, values = _data(60)
    asked, told, truth = _data(40, seed=5)

    def error(given: Array, shown: Array) -> float:
        hyper = fit(points, values, given, GROUPS, Beliefs())
        mean, _ = posterior(points, values, given, GROUPS, hyper, centre=float(given.mean())).at(asked, shown)
        return float(np.sqrt(np.mean((mean - truth) ** 2)))

    assert error(-3 * prediction, -3 * told) < 0.2
    assert error(prediction, told) < 0.08


def test_noise_is_told_from_signal() -> None:
    points, prediction, _ = _data(80)
    noisy = prediction + 0.3 * np.random.default_rng(3).standard_normal(80)
    hyper = fit(points, noisy, np.zeros(80), GROUPS, Beliefs(weight=0.0, signal=0.7, offset=1.0))
    assert 0.2 < hyper.noise < 0.4
    assert hyper.variance > 0.3**2


def test_a_point_under_way_moves_no_mean_and_leaves_nothing_to_find_beside_it() -> None:
    points, prediction, values = _data(9)
    pending = np.array([[0.95, 0.7, 0.0]])
    told = np.array([1.3])
    alone = posterior(points, values, prediction, GROUPS, HYPER, centre=0.0)
    beside = posterior(
        points,
        values,
        prediction,
        GROUPS,
        HYPER,
        centre=0.0,
        pending=pending,
        pending_prediction=told,
    )
    asked, shown, _ = _data(5, seed=2)
    assert beside.at(asked, shown)[0] == pytest.approx(alone.at(asked, shown)[0])
    # A measurement leaves no more than its own noise, 0.1, and less where others help.
    assert beside.at(pending, told)[1][0] < min(0.1, alone.at(pending, told)[1][0])


def test_without_points_there_are_only_beliefs() -> None:
    empty = np.zeros((0, 3))
    known = posterior(empty, np.zeros(0), np.zeros(0), GROUPS, HYPER, centre=2.0)
    mean, sd = known.at(np.zeros((2, 3)), np.array([1.0, 3.0]))
    assert mean == pytest.approx([0.2 + 0.6 * 1 + 0.4 * 2, 0.2 + 0.6 * 3 + 0.4 * 2])
    assert sd == pytest.approx(np.sqrt(0.9**2 + 0.5**2 + 0.3**2))


def test_the_same_points_are_fitted_the_same() -> None:
    points, prediction, values = _data(30)
    first, second = (fit(points, values, prediction, GROUPS, Beliefs()) for _ in range(2))
    assert all(
        np.array_equal(getattr(first, field.name), getattr(second, field.name))
        for field in dataclasses.fields(first)
    )


def test_one_point_of_a_choice_tells_of_all_that_make_it() -> None:
    """What is off for a choice is learnt from one trial of it, wherever the other parameter stands."""
    points, prediction, values = _data(12)
    shifted = values + np.where(points[:, 1] > 0, 0.8, 0.0)
    first = int(np.flatnonzero(points[:, 1] > 0)[0])
    kept = [i for i in range(12) if points[i, 1] == 0 or i == first]
    beliefs = Beliefs(effect=0.5, signal=0.1, weight=1.0)
    hyper = fit(points[kept], shifted[kept], prediction[kept], GROUPS, beliefs)
    known = posterior(points[kept], shifted[kept], prediction[kept], GROUPS, hyper, centre=0.0)
    asked = points[(points[:, 1] > 0) & (np.arange(12) != first)]
    told = np.sin(3 * asked[:, 0]) + 1
    assert known.at(asked, told)[0] == pytest.approx(told + 0.8, abs=0.25)
