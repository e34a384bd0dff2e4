"""What holds for every space, not only for those that somebody thought of."""

import math
import pickle

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from search_spaces.arguments import render
from search_spaces.load import SpaceError, parse_space
from search_spaces.parameters import Parameter, every
from search_spaces.points import raw_count
from search_spaces.space import Config, Count, Space
from search_spaces.values import Scalar
from tests.search_spaces.generated import all_values, as_yaml, spaces

SEEDS = st.integers(0, 2**32 - 1)
few = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@few
@given(spaces())
def test_a_space_written_to_yaml_and_loaded_is_the_same_space(space: Space) -> None:
    assert parse_space(as_yaml(space), "made.yaml") == space


@few
@given(spaces(), SEEDS)
def test_a_sampled_config_is_valid_and_walks_back_to_itself(space: Space, seed: int) -> None:
    config = _sampled(space, seed)
    asked: list[str] = []

    def answer(parameter: Parameter) -> Scalar:
        asked.append(parameter.path)
        return config.values[parameter.path]

    assert space.faults(config) == ()
    assert space.config(config.values) == config
    assert space.walk(answer) == config
    assert asked == list(config.values)


@few
@given(spaces(), SEEDS)
def test_a_config_survives_the_wire(space: Space, seed: int) -> None:
    config = _sampled(space, seed)
    again = pickle.loads(pickle.dumps(config))
    assert again == config
    assert hash(again) == hash(config)
    assert list(again.values) == list(config.values)


@few
@given(spaces())
def test_the_count_is_what_trying_every_combination_gives(space: Space) -> None:
    points = _all_small(space)
    assert raw_count(space.parameters) == len(points)
    assert space.count() == Count(len(_valid(space, points)), exact=True)


@few
@given(spaces())
def test_sampling_fails_just_where_no_config_is_valid(space: Space) -> None:
    if _valid(space, _all_small(space)):
        space.sample(np.random.default_rng(0))
    else:
        with pytest.raises(SpaceError, match="no config is valid"):
            space.sample(np.random.default_rng(0))


@few
@given(spaces())
def test_covering_configs_are_valid_and_use_every_corner_that_a_valid_config_can(space: Space) -> None:
    reachable = {corner for point in _valid(space, _all_small(space)) for corner in _corners(space, point)}
    covering = space.covering()
    assert all(space.faults(config) == () for config in covering)
    assert {corner for config in covering for corner in _corners(space, config)} == reachable


@few
@given(spaces(), SEEDS)
def test_a_located_config_asks_for_what_is_in_effect(space: Space, seed: int) -> None:
    config = _sampled(space, seed)
    assume(not any(name.startswith("ENV_OF") for name in render(space, config).environment))  # not reported
    rendered = render(space, config)
    found = space.locate({**rendered.arguments, "model": rendered.model})
    if found is not None:
        assert render(space, found).arguments == rendered.arguments


def _sampled(space: Space, seed: int) -> Config:
    try:
        return space.sample(np.random.default_rng(seed))
    except SpaceError:
        assume(False)
        raise


def _all_small(space: Space) -> list[Config]:
    assume(math.prod(len(parameter.values) for parameter in every(space.parameters)) <= 1_500)
    return [space.config(values) for values in all_values(space)]


def _valid(space: Space, points: list[Config]) -> list[Config]:
    return [point for point in points if not space.faults(point)]


def _corners(space: Space, config: Config) -> set[tuple[str, Scalar]]:
    found: set[tuple[str, Scalar]] = set()

    def answer(parameter: Parameter) -> Scalar:
        value = config.values[parameter.path]
        if value in parameter.corners:
            found.add((parameter.key, value))
        return value

    space.walk(answer)
    return found
