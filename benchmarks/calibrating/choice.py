"""Which measured configs to calibrate on."""

import math
from collections.abc import Mapping, Sequence

from search_spaces.values import Scalar


def spread(configs: Sequence[Mapping[str, Scalar]], count: int) -> tuple[int, ...]:
    """So many places among the configs, spread over their choices; the first is the first config's.

    One after the other, each the config with the most choices that none before it has; of equals the one
    farthest from its nearest among those before; of these the first.

    Args:
        configs: parameters by path. Words and flags are choices; numbers only have distances.
    """
    widths = _widths(configs)
    chosen = [0]
    while len(chosen) < min(count, len(configs)):
        seen = set().union(*(_choices(configs[place]) for place in chosen))

        def gain(place: int, seen: set[tuple[str, Scalar]] = seen) -> tuple[int, float, int]:
            near = min(distance(configs[place], configs[other], widths) for other in chosen)
            return len(_choices(configs[place]) - seen), near, -place

        chosen.append(max((place for place in range(len(configs)) if place not in chosen), key=gain))
    return tuple(chosen)


def distance(one: Mapping[str, Scalar], other: Mapping[str, Scalar], widths: Mapping[str, float]) -> float:
    """Sum over parameters: 1 where they differ in a choice or only one has it, for numbers up to 1."""
    total = 0.0
    for path in one.keys() | other.keys():
        left, right = one.get(path), other.get(path)
        numbers = _number(left), _number(right)
        if numbers[0] is not None and numbers[1] is not None and widths.get(path):
            total += abs(_scale(numbers[0]) - _scale(numbers[1])) / widths[path]
        else:
            total += left != right
    return total


def _choices(config: Mapping[str, Scalar]) -> set[tuple[str, Scalar]]:
    return {(path, value) for path, value in config.items() if _number(value) is None}


def _widths(configs: Sequence[Mapping[str, Scalar]]) -> dict[str, float]:
    """How far the numbers of each parameter lie apart, by their logarithms."""
    found: dict[str, list[float]] = {}
    for config in configs:
        for path, value in config.items():
            if (number := _number(value)) is not None:
                found.setdefault(path, []).append(_scale(number))
    return {path: max(values) - min(values) for path, values in found.items()}


def _number(value: Scalar) -> float | None:
    return None if isinstance(value, bool | str) or value is None else float(value)


def _scale(value: float) -> float:
    return math.log(value) if value > 0 else value
