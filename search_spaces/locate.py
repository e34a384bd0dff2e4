"""Where in a space an engine stands, judged by the settings that it reports as in effect.

The sampler is told the control's measurement at the control's own place this way. Where a place cannot be
told for certain there is none: a wrong one would teach the sampler something false. An engine does not report
its environment, so that is taken to be the space's own, as the control's is.
"""

from collections.abc import Mapping

from search_spaces.parameters import Categorical, Choice, Parameter, chosen
from search_spaces.points import Values
from search_spaces.settings import Settings, at, environment_text, leaves
from search_spaces.values import Json, Scalar


def located(
    parameters: tuple[Parameter, ...], effective: Mapping[str, Json], common: Settings
) -> Values | None:
    """The values in effect, or None where one is outside its range or cannot be told.

    Args:
        parameters: the space's.
        effective: settings in effect by vLLM's argument names, `model` among them where it is known.
        common: what the space gives every config; it stands for what the engine does not report.
    """
    values: Values = {}
    for parameter in parameters:
        match _value(parameter, effective, common):
            case (value,):
                values[parameter.path] = value
            case _:
                return None
        choice = chosen(parameter, value)
        below = located(choice.parameters, effective, common) if choice else {}
        if below is None:
            return None
        values |= below
    return values


def _value(parameter: Parameter, effective: Mapping[str, Json], common: Settings) -> tuple[Scalar] | None:
    """The parameter's value, boxed since it may be null; None where it cannot be told."""
    if isinstance(parameter, Categorical) and parameter.named:
        choices = tuple(choice for choice in parameter.choices if isinstance(choice, Choice))
        found = _choice(choices, effective, common)
        return None if found is None else (found.name,)
    if parameter.environment is not None:
        text = common.environment.get(parameter.environment)
        candidates = (parameter.values if parameter.size is not None else ()) if text is not None else (None,)
        return next(
            (
                (v,)
                for v in candidates
                if (None if v is None else environment_text(v)) == text and _in(parameter, v)
            ),
            None,
        )
    seen = _in_effect(parameter.argument or "", effective, common)
    if isinstance(seen, list | dict) or not _in(parameter, seen):
        return None
    return (parameter.check(seen),)


def _choice(choices: tuple[Choice, ...], effective: Mapping[str, Json], common: Settings) -> Choice | None:
    """The choice whose every setting is in effect; of several, the one that asks most.

    A choice that sets nothing is in effect where no other is and what the others set is unset.
    """
    fitting = [
        choice
        for choice in choices
        if _demands(choice)
        and _met(choice, effective, common)
        and _served(choice.model, choices, effective, common)
    ]
    if fitting:
        most = max(map(_demands, fitting))
        best = [choice for choice in fitting if _demands(choice) == most]
        return best[0] if len(best) == 1 else None
    silent = [choice for choice in choices if not _demands(choice)]
    if len(silent) != 1 or not _served(None, choices, effective, common):
        return None
    arguments = {path for choice in choices for path, _ in leaves(choice.set)}
    return silent[0] if all(_unset(path, effective, common) for path in arguments) else None


def _demands(choice: Choice) -> int:
    return len(list(leaves(choice.set))) + len(choice.environment) + (choice.model is not None)


def _met(choice: Choice, effective: Mapping[str, Json], common: Settings) -> bool:
    environment = all(common.environment.get(name) == text for name, text in choice.environment.items())
    return environment and all(
        _equal(value, _in_effect(path, effective, common)) for path, value in leaves(choice.set)
    )


def _served(
    model: str | None, choices: tuple[Choice, ...], effective: Mapping[str, Json], common: Settings
) -> bool:
    """Whether this checkpoint (None: the space's own) is served, where the choices decide that at all."""
    if all(choice.model is None for choice in choices):
        return True
    return effective.get("model", common.model) == (model or common.model)


def _in_effect(path: str, effective: Mapping[str, Json], common: Settings) -> Json:
    """The setting as reported; as every config asks for it where the engine does not say."""
    source = effective if path.partition(".")[0] in effective else common.arguments
    return at(source, path)


def _unset(path: str, effective: Mapping[str, Json], common: Settings) -> bool:
    value = _in_effect(path, effective, common)
    return value is None or value is False or value == {} or _equal(value, at(common.arguments, path))


def _equal(asked: Json, seen: Json) -> bool:
    if isinstance(asked, bool) or isinstance(seen, bool):
        return asked is seen
    return asked == seen or (asked == {} and seen is None)


def _in(parameter: Parameter, value: Scalar) -> bool:
    try:
        parameter.check(value)
    except ValueError:
        return False
    return True
