import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from objectives.front import hypervolume
from tuner.sampler.improvement import Believed, Link, expected_improvement

LINKS: tuple[Link, ...] = ("normal", "lognormal", "negative lognormal")


def _loss(link: Link, z: NDArray[np.float64]) -> NDArray[np.float64]:
    match link:
        case "normal":
            return z
        case "lognormal":
            return np.exp(z)
        case "negative lognormal":
            return -np.exp(-z)


def _sampled(
    links: tuple[Link, ...],
    mean: NDArray[np.float64],
    sd: NDArray[np.float64],
    front: NDArray[np.float64],
    reference: NDArray[np.float64],
    draws: int,
    least: float = -np.inf,
) -> tuple[float, float]:
    """Mean gain in hypervolume over draws, and its standard error, by the definition."""
    rng = np.random.default_rng(1)
    z = mean + sd * rng.standard_normal((draws, len(links)))
    points = np.stack([np.maximum(_loss(link, z[:, j]), least) for j, link in enumerate(links)], axis=1)
    before = hypervolume(front, reference.tolist())
    gains = [hypervolume(np.vstack([front, point]), reference.tolist()) - before for point in points]
    return float(np.mean(gains)), float(np.std(gains) / np.sqrt(draws))


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("bound", [-1.3, -0.2, 0.0, 0.4, 2.0])
def test_the_expected_shortfall_of_a_loss_is_the_mean_over_draws(link: Link, bound: float) -> None:
    z = 0.3 + 0.6 * np.random.default_rng(0).standard_normal(400_000)
    short = np.maximum(bound - _loss(link, z), 0.0)
    found = Believed(np.array([0.3]), np.array([0.6]), link).below(bound)[0]
    assert found == pytest.approx(short.mean(), abs=5 * short.std() / np.sqrt(len(z)) + 1e-12)


@pytest.mark.parametrize(
    ("links", "front", "reference"),
    [
        (("normal",), [[0.5], [0.2]], [1.0]),
        (("normal", "normal"), [[0.1, 0.9], [0.4, 0.4], [0.8, 0.2]], [1.0, 1.0]),
        (("negative lognormal", "lognormal"), [[-3.0, 2.0], [-1.0, 0.7], [-2.0, 1.2]], [-0.2, 2.5]),
        (("normal", "lognormal"), [], [1.0, 2.0]),
        (
            ("normal", "lognormal", "negative lognormal"),
            [[0.2, 1.5, -0.9], [0.5, 0.6, -1.2], [-0.3, 1.8, -0.4]],
            [1.0, 2.0, -0.1],
        ),
    ],
)
def test_expected_improvement_is_the_mean_gain_over_draws(
    links: tuple[Link, ...], front: list[list[float]], reference: list[float]
) -> None:
    m = len(links)
    mean, sd = np.full(m, 0.1), np.linspace(0.3, 0.6, m)
    corner, losses = np.array(reference), np.array(front).reshape(-1, m)
    believed = [Believed(mean[j : j + 1], sd[j : j + 1], link) for j, link in enumerate(links)]
    expected, error = _sampled(links, mean, sd, losses, corner, 4000)
    assert error > 0
    found = expected_improvement(believed, losses, corner)
    assert found[0] == pytest.approx(expected, abs=4 * error)


@pytest.mark.parametrize(
    ("link", "least"),
    [
        ("normal", -0.3),
        ("normal", 0.2),
        ("lognormal", 0.7),
        ("lognormal", 1.0),
        ("negative lognormal", -1.3),
        ("negative lognormal", -0.9),
    ],
)
def test_nothing_is_expected_of_a_loss_beyond_the_least_that_there_can_be(link: Link, least: float) -> None:
    mean, sd = np.array([0.1, 0.1]), np.array([0.5, 0.4])
    shift = float(_loss(link, np.zeros(1))[0])
    front, corner = np.array([[-0.2, 0.5], [0.3, 0.1]]) + shift, np.array([0.8, 0.7]) + shift
    believed = [Believed(mean[j : j + 1], sd[j : j + 1], link, least) for j in range(2)]
    expected, error = _sampled((link, link), mean, sd, front, corner, 4000, least)
    assert error > 0
    assert expected_improvement(believed, front, corner)[0] == pytest.approx(expected, abs=4 * error)
    assert believed[0].below(least - 0.1)[0] == 0.0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(*[st.integers(0, 8)] * 3), min_size=0, max_size=7),
    st.tuples(*[st.integers(-2, 9)] * 3),
    st.sampled_from([1, 2, 3]),
)
def test_a_certain_point_gains_what_it_adds_to_the_hypervolume(
    front: list[tuple[int, int, int]], point: tuple[int, int, int], m: int
) -> None:
    losses = np.array(front, dtype=np.float64).reshape(-1, 3)[:, :m]
    corner, loss = np.full(m, 7.0), np.array(point[:m], dtype=np.float64)
    believed = [Believed(loss[j : j + 1], np.array([1e-9]), "normal") for j in range(m)]
    gain = hypervolume(np.vstack([losses, loss]), corner.tolist()) - hypervolume(losses, corner.tolist())
    assert expected_improvement(believed, losses, corner)[0] == pytest.approx(gain, abs=1e-6)


def test_what_is_dominated_or_beyond_the_reference_changes_nothing() -> None:
    believed = [Believed(np.array([0.3, 0.1]), np.array([0.4, 0.2]), "normal") for _ in range(2)]
    bare = np.array([[0.2, 0.6], [0.5, 0.3]])
    padded = np.vstack([bare, [[0.6, 0.6], [0.1, 1.5], [0.2, 0.6]]])
    corner = np.array([1.0, 1.0])
    assert expected_improvement(believed, padded, corner) == pytest.approx(
        expected_improvement(believed, bare, corner)
    )


def test_a_long_front_of_four_objectives_is_thinned_to_what_can_be_reckoned() -> None:
    rng = np.random.default_rng(2)
    front = np.abs(rng.standard_normal((60, 4)))
    front /= np.linalg.norm(front, axis=1, keepdims=True)
    front = 1.2 - front  # on a sphere: no point dominates another
    believed = [Believed(np.full(50, 0.3), np.full(50, 0.2), "normal") for _ in range(4)]
    gain = expected_improvement(believed, front, np.full(4, 1.3))
    assert gain.shape == (50,)
    assert (gain > 0).all()
