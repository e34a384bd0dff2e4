"""What a config changes of the control, grouped into the factors of an ablation. Pure.

Which settings belong together is first told by the space: all that one parameter and what hangs below it set
is one thing (a prefix cache with the memory it gets). What that thing is, and whether two parameters are one
(batch slots and token budget), is told by vLLM's argument names. What is in neither goes by its own name.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from search_spaces.parameters import Parameter
from search_spaces.settings import Settings, at, touched
from search_spaces.values import Json

Place = tuple[str, ...]
"""("model",), ("argument", "speculative_config", "method") or ("environment", NAME)."""

_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "quantisation": ("model", "quantization", "dtype", "load_format"),
    "kv-dtype": ("kv_cache_dtype", "calculate_kv_scales"),
    "prefix-cache": (
        "enable_prefix_caching",
        "prefix_caching_hash_algo",
        "kv_offloading_size",
        "kv_offloading_backend",
        "kv_transfer_config",
    ),
    "speculation": ("speculative_config", "spec_method", "spec_model", "spec_tokens"),
    "batch-limits": (
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_num_active_seqs",
        "max_num_partial_prefills",
        "max_long_partial_prefills",
        "long_prefill_token_threshold",
        "enable_chunked_prefill",
    ),
    "parallelism": (
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "data_parallel_size_local",
        "prefill_context_parallel_size",
        "decode_context_parallel_size",
        "enable_expert_parallel",
        "enable_eplb",
        "distributed_executor_backend",
    ),
}
"""What a factor is about, by the arguments of vLLM that it is made of (0.32.0, engine/arg_utils.py). The
order is that in which factors are read."""

_SUBJECTS = {argument: subject for subject, arguments in _ARGUMENTS.items() for argument in arguments}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One setting that differs. None: it is left to the engine."""

    place: Place
    off: Json
    """The control's value."""
    on: Json
    """The config's."""

    @property
    def setting(self) -> str:
        """`model`, an argument by its dotted name, or `environment NAME`."""
        kind, *names = self.place
        dotted = ".".join(names)
        return f"environment {dotted}" if kind == "environment" else dotted or kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """Settings that are switched together."""

    name: str
    changes: tuple[Change, ...]
    parameters: tuple[str, ...]
    """Top parameters of the space that set them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """All that a config changes of the control."""

    factors: tuple[Factor, ...]
    same: tuple[Change, ...]
    """Asked for otherwise, but the same in effect: the engine does what is asked for anyway."""


def differences(
    control: Settings,
    config: Settings,
    parameters: Sequence[Parameter],
    *,
    control_effective: Mapping[str, Json],
    config_effective: Mapping[str, Json],
) -> Differences:
    """What the config changes of the control, by factor.

    Args:
        parameters: the space's.
        control_effective: settings in effect with the control, by vLLM's argument names; empty where unknown.
        config_effective: the same with the config.
    """
    before, after = _flat(control), _flat(config)
    changes = [
        Change(place=place, off=before.get(place), on=after.get(place))
        for place in dict.fromkeys((*before, *after))
        if before.get(place) != after.get(place)
    ]
    same = tuple(change for change in changes if _same(change, control_effective, config_effective))
    owned: dict[str, list[Change]] = {}
    for change in changes:
        if change not in same:
            owner = next((parameter.path for parameter in parameters if _sets(parameter, change)), "")
            owned.setdefault(owner or change.setting, []).append(change)
    grouped: dict[str, list[str]] = {}
    for owner, mine in owned.items():
        grouped.setdefault(_name(owner, mine), []).append(owner)
    order = {name: place for place, name in enumerate(_ARGUMENTS)}
    paths = {parameter.path for parameter in parameters}
    return Differences(
        factors=tuple(
            Factor(
                name=name,
                changes=tuple(change for owner in grouped[name] for change in owned[owner]),
                parameters=tuple(owner for owner in grouped[name] if owner in paths),
            )
            for name in sorted(grouped, key=lambda name: order.get(name, len(order)))
        ),
        same=same,
    )


def without(config: Settings, factors: Collection[Factor]) -> Settings:
    """The config with these factors set back to what they are in the control."""
    flat = _flat(config)
    for factor in factors:
        for change in factor.changes:
            flat.pop(change.place, None)
            if change.off is not None:
                flat[change.place] = change.off
    arguments: dict[str, Json] = {}
    environment: dict[str, str] = {}
    model = config.model
    for place, value in flat.items():
        match place:
            case ("model",):
                model = str(value)
            case ("environment", name):
                environment[name] = str(value)
            case _:
                _put(arguments, place[1:], value)
    return Settings(model=model, arguments=arguments, environment=environment)


def _flat(settings: Settings) -> dict[Place, Json]:
    """Every setting by its place; those that are left to the engine are not there."""
    return {
        ("model",): settings.model,
        **{("argument", *path): value for path, value in _leaves(settings.arguments)},
        **{("environment", name): text for name, text in settings.environment.items()},
    }


def _leaves(arguments: Mapping[str, Json], above: Place = ()) -> Iterator[tuple[Place, Json]]:
    for key, value in arguments.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*above, key))
        elif value is not None:
            yield (*above, key), value


def _put(arguments: dict[str, Json], path: Place, value: Json) -> None:
    head, *rest = path
    if not rest:
        arguments[head] = value
        return
    below = arguments.setdefault(head, {})
    if not isinstance(below, dict):
        below = arguments[head] = {}
    _put(below, tuple(rest), value)


def _same(change: Change, control: Mapping[str, Json], config: Mapping[str, Json]) -> bool:
    """Whether one side leaves to the engine what the other asks for, and gets the same."""
    kind, *names = change.place
    asked = change.on if change.off is None else change.off
    if kind != "argument" or (change.off is not None and change.on is not None):
        return False
    if asked == "auto":
        return True  # vLLM's own word for leaving it
    in_effect = control if change.off is None else config
    seen = at(in_effect, ".".join(names))
    return seen is not None and seen == asked and isinstance(seen, bool) == isinstance(asked, bool)


def _sets(parameter: Parameter, change: Change) -> bool:
    kind, *names = change.place
    mine = kind if kind == "model" else f"{kind} {'.'.join(names)}"
    return any(f"{mine}.".startswith(f"{theirs}.") for theirs in touched(parameter))


def _name(owner: str, changes: Sequence[Change]) -> str:
    """What the changes are about, if it is one thing; a single setting's own name; else their owner's.

    By what changes, not by what might: a cache that only gets other memory is not switched on or off.
    """
    found = {subject for change in changes if (subject := _subject(change)) is not None}
    if len(found) == 1:
        return found.pop()
    return changes[0].setting.removeprefix("environment ") if len(changes) == 1 else owner


def _subject(change: Change) -> str | None:
    return None if change.place[0] == "environment" else _SUBJECTS.get(change.setting.partition(".")[0])
