"""Spaces made by chance for the laws, small enough to count by hand, and the YAML that describes them."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import yaml
from hypothesis import strategies as st

from search_spaces.constraints import Scope, parse
from search_spaces.parameters import Categorical, Choice, Integer, Parameter, Real, every
from search_spaces.space import Space
from search_spaces.values import Json, Scalar

TOPS = ("alpha", "beta", "gamma", "delta")
BELOW = ("inner", "outer")
CHOICES = ("off", "on", "no", "w4a16", "1b", "x-y.z")


@dataclass(frozen=True)
class Place:
    """Where in the tree a parameter is drawn."""

    path: str = ""
    key: str = ""
    depth: int = 0


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    """A countable space of at most a few hundred points, with up to two constraints between numbers."""
    names = draw(st.lists(st.sampled_from(TOPS), unique=True, min_size=1, max_size=3))
    parameters = tuple(draw(_parameter(name, Place())) for name in names)
    engine: dict[str, Json] = draw(
        st.fixed_dictionaries({}, optional={"max_model_len": st.integers(1, 9), "dtype": st.just("bfloat16")})
    )
    scope = Scope.of(parameters, engine)
    numbers = [
        path for path, found in scope.parameters.items() if all(isinstance(p, Integer | Real) for p in found)
    ]
    texts = []
    if numbers:
        term = st.one_of(st.sampled_from(numbers), st.integers(-1, 6).map(str))
        comparison = st.tuples(st.sampled_from(numbers), st.sampled_from(("<=", ">", "!=")), term)
        texts = draw(st.lists(comparison.map(" ".join), max_size=2, unique=True))
    return Space(
        name="made",
        source="made.yaml",
        model="some/model",
        engine=engine,
        parameters=parameters,
        constraints=tuple(parse(text, scope) for text in texts),
        slo={"ttft_p95_ms": 500.0},
    )


@st.composite
def _parameter(draw: st.DrawFn, name: str, place: Place) -> Parameter:
    path, key = f"{place.path}{name}", f"{place.key}{name}"
    # From the key, so that no two parameters decide one setting.
    sets = key.replace(".", "_").replace("-", "_")
    target = draw(st.sampled_from((f"set_{sets}", f"nested.set_{sets}", None)))
    argument, environment = target, None if target else f"ENV_{sets}"
    kinds = ["integer", "real", "scalars"] + (["named", "named"] if place.depth < 2 else [])
    match draw(st.sampled_from(kinds)):
        case "integer":
            low, step, steps = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(0, 2))
            return Integer(
                path=path,
                key=key,
                low=low,
                high=low + step * steps,
                step=step,
                log=draw(st.booleans()),
                argument=argument,
                environment=environment,
            )
        case "real":
            steps = draw(st.integers(0, 2))
            return Real(
                path=path,
                key=key,
                low=0.8,
                high=(0.8, 0.85, 0.9)[steps],
                step=0.05,
                log=draw(st.booleans()),
                argument=argument,
                environment=environment,
            )
        case "scalars":
            scalars: st.SearchStrategy[Scalar] = st.sampled_from((None, True, 2, 0.5, "auto", "off"))
            choices = tuple(draw(st.lists(scalars, unique=True, min_size=1, max_size=3)))
            return Categorical(
                path=path, key=key, choices=choices, argument=argument, environment=environment
            )
        case _:
            names = draw(st.lists(st.sampled_from(CHOICES), unique=True, min_size=1, max_size=3))
            named = tuple(draw(_choice(choice, path, key, place.depth)) for choice in names)
            return Categorical(path=path, key=key, choices=named)


@st.composite
def _choice(draw: st.DrawFn, name: str, path: str, key: str, depth: int) -> Choice:
    sets = key.replace(".", "_").replace("-", "_")
    values: dict[str, Json] = draw(
        st.sampled_from(({}, {f"of_{sets}": name}, {"deep": {f"of_{sets}": name}}, {f"of_{sets}": None}))
    )
    below = draw(st.lists(st.sampled_from(BELOW), unique=True, max_size=2 - depth))
    place = Place(path=f"{path}.", key=f"{key}.{name}.", depth=depth + 1)
    return Choice(
        name=name,
        set=values,
        environment=draw(st.sampled_from(({}, {f"ENV_OF_{sets}": name}))),
        parameters=tuple(draw(_parameter(inner, place)) for inner in below),
    )


def as_yaml(space: Space) -> str:
    """The space as a person could have written it."""
    return yaml.safe_dump(
        {
            "name": space.name,
            "model": space.model,
            "engine": dict(space.engine),
            "parameters": _document(space.parameters),
            "constraints": [constraint.text for constraint in space.constraints],
            "slo": dict(space.slo),
        },
        sort_keys=False,
    )


def _document(parameters: tuple[Parameter, ...]) -> dict[str, Json]:
    return {parameter.path.rsplit(".", 1)[-1]: _body(parameter) for parameter in parameters}


def _body(parameter: Parameter) -> dict[str, Json]:
    target: dict[str, Json] = {"argument": parameter.argument, "environment": parameter.environment}
    body: dict[str, Json] = {name: value for name, value in target.items() if value is not None}
    match parameter:
        case Integer():
            return body | {
                "int": [parameter.low, parameter.high],
                "step": parameter.step,
                "log": parameter.log,
            }
        case Real():
            ends: list[Json] = [parameter.low, parameter.high]
            return body | {"float": ends, "step": parameter.step, "log": parameter.log}
        case Categorical():
            choices: dict[str, Json] = {}
            for choice in parameter.choices:
                if isinstance(choice, Choice):
                    choices[choice.name] = {
                        "set": dict(choice.set),
                        "environment": dict(choice.environment),
                        "parameters": _document(choice.parameters),
                    }
            return body | {"choices": choices or list(parameter.values)}


def all_values(space: Space) -> Iterator[dict[str, Scalar]]:
    """Every point of the bare tree, the slow way: all combinations of all keys, cut to what is active."""
    everything = list(every(space.parameters))
    seen: set[frozenset[tuple[str, Scalar]]] = set()
    for combination in itertools.product(*(parameter.values for parameter in everything)):
        by_key = dict(zip((parameter.key for parameter in everything), combination, strict=True))
        point = {
            parameter.path: by_key[parameter.key]
            for parameter in everything
            if _active(parameter.key, by_key)
        }
        mark = frozenset(point.items())
        if mark not in seen:
            seen.add(mark)
            yield point


def _active(key: str, by_key: dict[str, Scalar]) -> bool:
    """Whether each choice that the key goes through is the one taken. Choices' names may hold dots."""
    return all(
        value == key.removeprefix(f"{above}.")[: len(str(value))]
        and key.removeprefix(f"{above}.").startswith(f"{value}.")
        for above, value in by_key.items()
        if key.startswith(f"{above}.")
    )
