"""What a config makes of the engine: arguments, environment and checkpoint, merged from its choices.

Arguments go by vLLM's own names with underscores; nested ones are dictionaries. Knows no flags and no GPUs:
`search_spaces.arguments` does.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from search_spaces.parameters import Choice, Parameter, active, chosen
from search_spaces.values import Json, Scalar

_PARALLEL = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "prefill_context_parallel_size",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is served and how."""

    model: str
    arguments: Mapping[str, Json] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


def settings_of(
    parameters: tuple[Parameter, ...], values: Mapping[str, Scalar], common: Settings
) -> Settings:
    """The common settings with everything that the values' choices set on top, in tree order."""
    model, arguments, environment = common.model, dict(common.arguments), dict(common.environment)
    for parameter, value in active(parameters, values):
        choice = chosen(parameter, value)
        if choice is not None:
            model = choice.model or model
            arguments = merged(arguments, choice.set)
            environment |= choice.environment
        elif parameter.environment is not None:
            environment.pop(parameter.environment, None)
            if value is not None:
                environment[parameter.environment] = environment_text(value)
        elif parameter.argument is not None:
            arguments = merged(arguments, nested(parameter.argument, value))
    return Settings(model=model, arguments=arguments, environment=environment)


def merged(below: Mapping[str, Json], above: Mapping[str, Json]) -> dict[str, Json]:
    """`below` with `above` laid on it: dictionaries merge key by key, null removes, all else replaces."""
    result = dict(below)
    for key, value in above.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            under = result.get(key)
            result[key] = merged(under if isinstance(under, dict) else {}, value)
        else:
            result[key] = value
    return result


def nested(path: str, value: Json) -> dict[str, Json]:
    """`{"a": {"b": value}}` for "a.b"."""
    head, _, rest = path.partition(".")
    return {head: nested(rest, value) if rest else value}


def at(arguments: Mapping[str, Json], path: str) -> Json:
    """The value at a dotted path; None where there is none."""
    head, _, rest = path.partition(".")
    value = arguments.get(head)
    if not rest:
        return value
    return at(value, rest) if isinstance(value, dict) else None


def leaves(arguments: Mapping[str, Json], above: str = "") -> Iterator[tuple[str, Json]]:
    """Dotted paths of all values that are not dictionaries; an empty dictionary is one itself."""
    for key, value in arguments.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def touched(parameter: Parameter) -> set[str]:
    """The names that a parameter decides: "argument a.b", "environment NAME", "model"."""
    names = {f"argument {parameter.argument}"} if parameter.argument else set()
    if parameter.environment:
        names.add(f"environment {parameter.environment}")
    for choice in getattr(parameter, "choices", ()):
        if isinstance(choice, Choice):
            names |= {f"argument {path}" for path, _ in leaves(choice.set)}
            names |= {f"environment {name}" for name in choice.environment}
            names |= {"model"} if choice.model else set()
            names = names.union(*(touched(further) for further in choice.parameters))
    return names


def environment_text(value: bool | int | float | str) -> str:
    """As an environment variable holds it; true and false are 1 and 0, which is how vLLM reads them."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def gpus_needed(settings: Settings) -> int:
    """GPUs of the engine's world: tensor × pipeline × data × prefill-context parallel sizes
    (vllm/engine/arg_utils.py, create_engine_config)."""
    product = 1
    for name in _PARALLEL:
        size = at(settings.arguments, name)
        product *= size if isinstance(size, int) and not isinstance(size, bool) and size > 0 else 1
    return product
