"""A space: what may be tried, as parameters with conditions and constraints; and a config: one point of it.

`search_spaces.load` makes spaces from files, `search_spaces.arguments` renders configs for the engine.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from search_spaces.constraints import Constraint
from search_spaces.faults import Fault, SpaceError, nearest
from search_spaces.locate import located
from search_spaces.measure import Capacity, Measure, default_objectives
from search_spaces.parameters import Categorical, Choice, Integer, Parameter, Real, every
from search_spaces.points import Values, drawn, every_point, raw_count, uniform, walked, ways
from search_spaces.sections import Budget, Quality, Resources, SpaceTraffic
from search_spaces.settings import Settings, gpus_needed, settings_of
from search_spaces.values import Json, Scalar
from search_spaces.vllm_rules import refusals

__all__ = [
    "Budget",
    "Categorical",
    "Choice",
    "Config",
    "Count",
    "Integer",
    "Parameter",
    "Quality",
    "Real",
    "Resources",
    "Space",
    "SpaceError",
    "SpaceTraffic",
]

ENUMERABLE = 50_000
"""Up to this many points of the bare tree each is looked at (some seconds); beyond, some are drawn."""
_DRAWS = 2_000
_TRIES = 10_000


@dataclass(frozen=True, slots=True)
class Config:
    """One point of a space: the active parameters' values by path, in tree order. Hashable, pickles."""

    values: Mapping[str, Scalar]
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", MappingProxyType(dict(self.values)))
        object.__setattr__(self, "_hash", hash(frozenset(self.values.items())))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type["Config"], tuple[dict[str, Scalar]]]:
        return Config, (dict(self.values),)  # a mapping proxy does not pickle

    def get(self, path: str, default: Scalar = None) -> Scalar:
        """The value at a path; the default where that parameter is not active."""
        return self.values.get(path, default)


@dataclass(frozen=True, slots=True)
class Count:
    """How many valid configs a space has."""

    configs: int | None
    """None: a continuum of them."""
    exact: bool
    """False: estimated from configs drawn by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What may be tried, and under what it is judged. Frozen; its mappings are not to be written to."""

    name: str
    source: str
    """The file it came from, or the shipped resource's name."""
    model: str
    engine: Mapping[str, Json] = field(default_factory=dict)
    """Arguments that every config has unless a choice of it says otherwise; the control has these alone."""
    environment: Mapping[str, str] = field(default_factory=dict)
    resources: Resources = field(default_factory=Resources)
    parameters: tuple[Parameter, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    slo: Mapping[str, float] = field(default_factory=dict)
    """Limits in ms by name with percentile, one percentile for all: `ttft_p95_ms`."""
    measure: Measure = field(default_factory=Capacity)
    """What a trial measures."""
    named_objectives: tuple[str, ...] = ()
    """As the file names them; empty: it leaves them to `measure`."""
    traffic: SpaceTraffic = field(default_factory=SpaceTraffic)
    budget: Budget = field(default_factory=Budget)
    quality: Quality = field(default_factory=Quality)
    trust_remote_code: bool = False
    help: str | None = None
    text: str = field(default="", compare=False, repr=False)
    """The YAML as read, for the record."""

    @property
    def objectives(self) -> tuple[str, ...]:
        """Names of what to improve."""
        return self.named_objectives or default_objectives(self.measure)

    @property
    def common(self) -> Settings:
        """What every config starts from, and all that the control has."""
        return Settings(model=self.model, arguments=self.engine, environment=self.environment)

    def settings(self, config: Config) -> Settings:
        """What the config makes of the engine."""
        return settings_of(self.parameters, config.values, self.common)

    def walk(self, choose: Callable[[Parameter], Scalar]) -> Config:
        """The config that `choose` makes, asked once for each active parameter, in tree order.

        Raises SpaceError where it answers outside a parameter's range. Constraints are not looked at.
        """

        def checked(parameter: Parameter) -> Scalar:
            try:
                return parameter.check(choose(parameter))
            except ValueError as error:
                raise SpaceError([Fault(parameter.path, str(error))]) from None

        return Config(walked(self.parameters, checked))

    def config(self, values: Mapping[str, Scalar]) -> Config:
        """The config with these values by path.

        Raises SpaceError naming every value that is missing, out of range or unknown, or whose branch is
        not taken. Constraints are not looked at.
        """
        faults: list[Fault] = []

        def given(parameter: Parameter) -> Scalar:
            if parameter.path not in values:
                faults.append(Fault(parameter.path, "has no value"))
                return parameter.corners[0]
            try:
                return parameter.check(values[parameter.path])
            except ValueError as error:
                faults.append(Fault(parameter.path, str(error)))
                return parameter.corners[0]

        found = walked(self.parameters, given)
        known = {parameter.path for parameter in every(self.parameters)}
        for path in values:
            if path in found:
                continue
            if path in known:
                faults.append(Fault(path, "belongs to a choice that is not taken"))
            else:
                faults.append(Fault(path, f"no such parameter{nearest(path, known)}"))
        if faults:
            raise SpaceError(faults)
        return Config(found)

    def faults(self, config: Config) -> tuple[str, ...]:
        """What stands against the config, a sentence each: the space's constraints that it breaks, more GPUs
        than a trial may take, and combinations that vLLM is known to refuse. Empty: valid."""
        return tuple(self._faults(config.values))

    def sample(self, rng: np.random.Generator) -> Config:
        """A valid config by chance, each parameter drawn on its own; SpaceError where none is found."""
        broken: Counter[str] = Counter()
        for _ in range(_TRIES):
            values = drawn(self.parameters, rng)
            fault = next(self._faults(values), None)
            if fault is None:
                return Config(values)
            broken[fault] += 1
        size = raw_count(self.parameters)
        if size is not None and size <= ENUMERABLE:
            valid = [values for values in every_point(self.parameters) if not any(self._faults(values))]
            if valid:
                return Config(valid[int(rng.integers(len(valid)))])
        raise SpaceError(
            [Fault(self.source, f"no config is valid; most often: {broken.most_common(1)[0][0]}")]
        )

    def count(self) -> Count:
        """How many configs are valid: each one looked at in a small space, estimated in a large one."""
        size = raw_count(self.parameters)
        if size is None:
            return Count(None, exact=True)
        if size <= ENUMERABLE:
            valid = sum(not any(self._faults(values)) for values in every_point(self.parameters))
            return Count(valid, exact=True)
        rng = np.random.default_rng(0)
        kept = sum(not any(self._faults(uniform(self.parameters, rng))) for _ in range(_DRAWS))
        return Count(round(size * kept / _DRAWS), exact=False)

    def locate(self, effective: Mapping[str, Json]) -> Config | None:
        """The config whose settings are those in effect; None where there is none or it cannot be told."""
        values = located(self.parameters, effective, self.common)
        return None if values is None else Config(values)

    def covering(self) -> tuple[Config, ...]:
        """A few valid configs that between them use every choice and both ends of every range.

        What no valid config can reach is left out. The same each time.
        """
        rng = np.random.default_rng(0)
        wanted = {next(reversed(way.items())): way for way in ways(self.parameters)}
        found: list[Config] = []
        while wanted:
            first, way = next(iter(wanted.items()))
            config = self._through(way, wanted, rng)
            del wanted[first]
            if config is None:
                continue
            found.append(config)
            for seen in self._corners(config):
                wanted.pop(seen, None)
        return tuple(found)

    def _through(
        self, way: Values, wanted: Mapping[tuple[str, Scalar], Values], rng: np.random.Generator
    ) -> Config | None:
        """A valid config through the given values that takes wanted corners where it may, else what works."""

        def eager(parameter: Parameter) -> Scalar:
            if parameter.key in way:
                return way[parameter.key]
            open_corners = [corner for corner in parameter.corners if (parameter.key, corner) in wanted]
            return open_corners[0] if open_corners else parameter.draw(rng)

        def halfway(parameter: Parameter) -> Scalar:
            return eager(parameter) if parameter.key in way or rng.random() < 0.5 else parameter.draw(rng)

        for attempt in range(400):
            choose = eager if attempt == 0 else halfway if attempt < 200 else None
            values = walked(self.parameters, choose) if choose else drawn(self.parameters, rng, way)
            if not any(self._faults(values)):
                return Config(values)
        return None

    def _corners(self, config: Config) -> Iterator[tuple[str, Scalar]]:
        def answer(parameter: Parameter) -> Scalar:
            seen.append((parameter.key, config.values[parameter.path]))
            return config.values[parameter.path]

        seen: list[tuple[str, Scalar]] = []
        walked(self.parameters, answer)
        return iter(seen)

    def _faults(self, values: Mapping[str, Scalar]) -> Iterator[str]:
        for constraint in self.constraints:
            if constraint.holds(values) is False:
                yield constraint.sentence(values)
        settings = settings_of(self.parameters, values, self.common)
        needed, most = gpus_needed(settings), self.resources.gpus
        if most and needed > most:
            yield f"needs {needed} GPUs, where resources.gpus is {most}"
        yield from refusals(settings)
