"""A reference as a person writes it, to a Space; every fault of the file at once, each with its place."""

import importlib.resources
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np

from search_spaces.bodies import SpaceBody, read_body
from search_spaces.constraints import Constraint, Scope, parse
from search_spaces.document import Node, read_document
from search_spaces.expression import Unreadable
from search_spaces.faults import Fault, SpaceError
from search_spaces.literal_secrets import secret_faults
from search_spaces.measure import CAPACITY_ONLY, Measure, read_measure, unmeasured
from search_spaces.parameter_tree import read_arguments, read_environment, read_parameters
from search_spaces.parameters import Parameter, every
from search_spaces.sections import Budget, Quality, Resources, Section, SpaceTraffic
from search_spaces.settings import merged
from search_spaces.space import Space
from search_spaces.values import Json

__all__ = [
    "Fault",
    "SpaceError",
    "load_space",
    "parse_space",
    "read_space",
    "shipped_spaces",
    "space_text",
]

_FOLDER = "spaces"
_LIMIT = re.compile(r"(?P<metric>ttft|tpot|e2e)_p(?P<percentile>\d{1,2}(?:\.\d+)?)_ms")
_Section = TypeVar("_Section", bound=Section)


def shipped_spaces() -> tuple[str, ...]:
    """The spaces that come with the tuner, as they may be referred to: "spaces/8b.yaml"."""
    folder = importlib.resources.files("search_spaces") / _FOLDER
    return tuple(sorted(f"{_FOLDER}/{file.name}" for file in folder.iterdir() if file.name.endswith(".yaml")))


def load_space(reference: str) -> Space:
    """The space in a file where the user stands; where there is none, the shipped one of that name.

    Raises SpaceError with every fault of the file, or saying that it is not there or cannot be read, or
    that its constraints leave no config.
    """
    return read_space(space_text(reference), reference)


def read_space(text: str, source: str) -> Space:
    """The space of a YAML text, as `load_space` checks it; `source` is what its faults are told of."""
    space = parse_space(text, source)
    space.sample(np.random.default_rng(0))
    return space


def parse_space(text: str, source: str) -> Space:
    """The space that a YAML text describes. Raises SpaceError with every fault in it."""
    root, faults = read_document(text, source)
    if root is None:
        raise SpaceError(faults)
    faults += secret_faults(root)
    body = read_body(root, SpaceBody, faults, "a space")
    children = root.value if isinstance(root.value, dict) else {}
    parameters = read_parameters(children.get("parameters"), faults)
    engine = merged({}, read_arguments(children.get("engine"), faults))
    _check_keys(parameters, children.get("parameters"), faults)
    constraints = _constraints(children.get("constraints"), parameters, engine, faults)
    resources = _section(children.get("resources"), Resources, faults, "resources")
    traffic = _section(children.get("traffic"), SpaceTraffic, faults, "traffic")
    budget = _section(children.get("budget"), Budget, faults, "budget")
    quality = _section(children.get("quality"), Quality, faults, "quality")
    environment = read_environment(children.get("environment"), faults)
    _check_slo(children.get("slo"), faults)
    measure = read_measure(children.get("measure"), faults)
    _check_objectives(children.get("objectives"), measure, faults)
    if faults or body is None or measure is None:
        raise SpaceError(sorted(faults, key=lambda fault: fault.line))
    return Space(
        name=body.name or Path(source).stem,
        source=source,
        model=body.model,
        engine=engine,
        environment=environment,
        resources=resources,
        parameters=parameters,
        constraints=constraints,
        slo={name: float(limit) for name, limit in body.slo.items()},
        measure=measure,
        named_objectives=tuple(body.objectives or ()),
        traffic=traffic,
        budget=budget,
        quality=quality,
        trust_remote_code=body.trust_remote_code,
        help=body.help,
        text=text,
    )


def space_text(reference: str) -> str:
    """The YAML of a file or a shipped space, as it stands there. Raises SpaceError where there is neither."""
    path = Path(reference)
    try:
        if path.is_file():
            return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SpaceError([Fault(reference, f"cannot be read: {error.strerror or error}")]) from None
    except UnicodeDecodeError as error:
        raise SpaceError([Fault(reference, f"is no UTF-8 text (byte {error.start})")]) from None
    if reference in shipped_spaces():
        return (importlib.resources.files("search_spaces") / reference).read_text(encoding="utf-8")
    what = "is a folder" if path.is_dir() else f"no such file under {Path.cwd()}"
    message = f"{what}, and not shipped; shipped spaces are {', '.join(shipped_spaces())}"
    raise SpaceError([Fault(f"no space '{reference}'", message)])


def _section(node: Node | None, section: type[_Section], faults: list[Fault], what: str) -> _Section:
    return (None if node is None else read_body(node, section, faults, what)) or section()


def _constraints(
    node: Node | None, parameters: tuple[Parameter, ...], engine: Mapping[str, Json], faults: list[Fault]
) -> tuple[Constraint, ...]:
    if node is None or not isinstance(node.value, list):
        return ()
    if any(fault.place.partition(" ")[2].startswith("parameters") for fault in faults):
        return ()  # names of parameters at fault would all be reported unknown
    scope = Scope.of(parameters, engine)
    found: list[Constraint] = []
    for item in node.value:
        if isinstance(item.value, str):
            try:
                found.append(parse(item.value, scope))
            except Unreadable as error:
                faults.append(item.fault(f"in '{item.value}': {error}"))
    return tuple(found)


def _check_keys(parameters: tuple[Parameter, ...], node: Node | None, faults: list[Fault]) -> None:
    """Dots in choices' names could make two parameters look alike to the sampler."""
    seen: set[str] = set()
    for parameter in every(parameters):
        if parameter.key in seen and node is not None:
            faults.append(node.fault(f"two parameters have the key '{parameter.key}'; rename a choice"))
        seen.add(parameter.key)


def _check_slo(node: Node | None, faults: list[Fault]) -> None:
    percentiles: dict[float, str] = {}
    limits = node.value if node is not None and isinstance(node.value, dict) else {}
    for name, place in limits.items():
        found = _LIMIT.fullmatch(name)
        if found is None or not 0 < float(found["percentile"]) < 100:
            message = "is no limit; write ttft_p95_ms, tpot_p95_ms or e2e_p95_ms, with any percentile"
            faults.append(place.fault(message))
            continue
        percentiles[float(found["percentile"])] = name
        if isinstance(place.value, int | float) and not 0 < place.value < math.inf:
            faults.append(place.fault(f"must be above 0 ms, got {place.value}"))
    if len(percentiles) > 1 and node is not None:
        names = ", ".join(percentiles.values())
        message = "all limits share one percentile, the share of requests that must meet them"
        faults.append(node.fault(f"{message}; got {names}"))


def _check_objectives(node: Node | None, measure: Measure | None, faults: list[Fault]) -> None:
    items = node.value if node is not None and isinstance(node.value, list) else []
    names = [item.plain for item in items]
    if node is not None and any(name in names[:i] for i, name in enumerate(names)):
        faults.append(node.fault("names an objective twice"))
    if measure is None:
        return
    for item in items:
        if isinstance(item.value, str) and unmeasured((item.value,), measure):
            message = (
                f"'{item.value}' is not measured by kind {measure.kind}; "
                f"write {CAPACITY_ONLY[item.value]}, or measure: capacity"
            )
            faults.append(item.fault(message))
