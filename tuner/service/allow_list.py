"""What a space from outside may make the service do: nothing that runs code or reads files, but for what the
operator allows.

Engine arguments are closed by default. Those listed here only tune; any other may name a file, a URL, a
plugin or a class, in this vLLM or the next, and needs a word of the operator, as do environment variables,
local models and `trust_remote_code`. A space that ships with the tuner is the operator's own and passes.

    trust_remote_code: [org/model]            # models that may run their own code
    local_models: [/models]                   # folders: these, and what is below them
    hub_models: [meta-llama/*, org/*]         # left out: any of the hub
    environment: [VLLM_CPU_KVCACHE_SPACE]
    arguments: [load_format, compilation_config.mode]
"""

import fnmatch
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from search_spaces.parameters import Categorical, Choice, Parameter, every
from search_spaces.settings import leaves
from search_spaces.space import Space
from search_spaces.values import Json
from tuner.mistakes import Mistake

MODEL_ARGUMENTS = frozenset({"tokenizer", "speculative_config.model"})
"""Arguments that take a model, judged as the space's own."""

TUNING = frozenset(
    {
        "async_scheduling",
        "attention_backend",
        "block_size",
        "compilation_config.cudagraph_capture_sizes",
        "compilation_config.cudagraph_mode",
        "compilation_config.max_cudagraph_capture_size",
        "compilation_config.mode",
        "cpu_offload_gb",
        "cudagraph_capture_sizes",
        "data_parallel_size",
        "dbo_decode_token_threshold",
        "decode_context_parallel_size",
        "disable_cascade_attn",
        "disable_custom_all_reduce",
        "disable_hybrid_kv_cache_manager",
        "disable_sliding_window",
        "dtype",
        "enable_chunked_prefill",
        "enable_dbo",
        "enable_eplb",
        "enable_expert_parallel",
        "enable_prefix_caching",
        "enforce_eager",
        "gpu_memory_utilization",
        "kv_cache_dtype",
        "kv_cache_memory_bytes",
        "kv_offloading_backend",
        "kv_offloading_size",
        "kv_sharing_fast_prefill",
        "language_model_only",
        "linear_backend",
        "long_prefill_token_threshold",
        "max_cudagraph_capture_size",
        "max_model_len",
        "max_num_batched_tokens",
        "max_num_seqs",
        "moe_backend",
        "num_gpu_blocks_override",
        "optimization_level",
        "performance_mode",
        "pipeline_parallel_size",
        "prefill_context_parallel_size",
        "prefix_caching_hash_algo",
        "quantization",
        "scheduler_reserve_full_isl",
        "scheduling_policy",
        "seed",
        "skip_mm_profiling",
        "speculative_config.disable_padded_drafter_batch",
        "speculative_config.draft_tensor_parallel_size",
        "speculative_config.max_model_len",
        "speculative_config.method",
        "speculative_config.num_speculative_tokens",
        "speculative_config.prompt_lookup_max",
        "speculative_config.prompt_lookup_min",
        "speculative_config.quantization",
        "stream_interval",
        "tensor_parallel_size",
    }
)
"""Arguments that take numbers, switches and names from closed lists of vLLM's own."""

_METHODS = frozenset(
    {"ngram", "ngram_gpu", "draft_model", "eagle", "eagle3", "medusa", "mlp_speculator", "mtp", "suffix"}
)
"""Ways to speculate that run vLLM's own code (config/speculative.py); others load a class by its name."""

_WORD = re.compile(r"[A-Za-z0-9_.+-]{1,64}")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)


class AllowList(BaseModel):
    """What the operator allows beyond tuning."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    trust_remote_code: tuple[str, ...] = Field(default=(), strict=False)
    """Models, by hub id or folder, that may run the code they bring."""
    local_models: tuple[str, ...] = Field(default=(), strict=False)
    """Absolute folders: a model may be one of them or lie below one."""
    hub_models: tuple[str, ...] | None = Field(default=None, strict=False)
    """Patterns of hub ids, `*` for any text; None: any model of the hub."""
    environment: tuple[str, ...] = Field(default=(), strict=False)
    """Variables that a space may set."""
    arguments: tuple[str, ...] = Field(default=(), strict=False)
    """Engine arguments beyond `TUNING`, by vLLM's names with underscores, dotted into nested ones."""

    @field_validator("local_models")
    @classmethod
    def _absolute(cls, folders: tuple[str, ...]) -> tuple[str, ...]:
        for folder in folders:
            if not Path(folder).is_absolute():
                raise ValueError(f"{folder} is no absolute path")
        return folders

    @classmethod
    def read(cls, path: Path) -> Self:
        """The operator's file. Raises Mistake with every fault of it."""
        try:
            raw = yaml.safe_load(path.read_text(encoding="utf-8"))
            return cls.model_validate({} if raw is None else raw)
        except OSError as error:
            raise Mistake(f"{path}: cannot be read: {error.strerror or error}") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise Mistake(f"{path}: is no YAML: {' '.join(str(error).split())}") from error
        except ValidationError as error:
            faults = [
                f"{'.'.join(map(str, fault['loc'])) or 'the file'}: {fault['msg']}"
                for fault in error.errors()
            ]
            raise Mistake(f"{path}: {'; '.join(faults)}") from error


def check_space(space: Space, allowed: AllowList) -> None:
    """Raise Mistake, with everything that the space asks for and the operator does not allow."""
    found = list(dict.fromkeys(_refusals(space, allowed)))
    if found:
        raise Mistake(f"{space.source} asks for what this service does not allow: {'; '.join(found)}")


def _refusals(space: Space, allowed: AllowList) -> Iterator[str]:
    models = {space.model, *_models(space)}
    for model in sorted(models):
        yield from _model_refusals(model, allowed)
    if space.trust_remote_code:
        for model in sorted(models - set(allowed.trust_remote_code)):
            yield f"trust_remote_code for {model}"
    for name in sorted(set(_variables(space)) - set(allowed.environment)):
        yield f"environment variable {name}"
    for path, value in _arguments(space):
        yield from _argument_refusals(path, value, allowed)


def _model_refusals(model: str, allowed: AllowList) -> Iterator[str]:
    # A folder goes before the hub where an engine looks a model up, so one of that name is local here too.
    if _HUB_ID.fullmatch(model) and not Path(model).is_dir():
        patterns = allowed.hub_models
        if patterns is not None and not any(fnmatch.fnmatchcase(model, pattern) for pattern in patterns):
            yield f"model {model} of the hub"
        return
    place = Path(model).expanduser().resolve()
    if not any(place.is_relative_to(Path(folder).resolve()) for folder in allowed.local_models):
        yield f"local model {model}"


def _argument_refusals(path: str, value: Json, allowed: AllowList) -> Iterator[str]:
    if path in MODEL_ARGUMENTS:
        if not isinstance(value, str | None):
            yield f"argument {path} that is no model"
        return  # a model, looked at as such
    above = [path[:index] for index, character in enumerate(path) if character == "."]
    if any(name in allowed.arguments for name in (path, *above)):
        return
    if path not in TUNING:
        yield f"argument {path}"
    elif not _plain(value):
        yield f"argument {path} with the value {value!r}"
    elif path == "speculative_config.method" and isinstance(value, str) and value not in _METHODS:
        yield f"speculative_config.method {value}"


def _plain(value: Json) -> bool:
    """A number, a switch, a word, nothing, or a list of these: no path and no URL."""
    match value:
        case str():
            return _WORD.fullmatch(value) is not None
        case list():
            return all(not isinstance(item, list) and _plain(item) for item in value)
        case dict():
            return not value
        case _:
            return True


def _arguments(space: Space) -> Iterator[tuple[str, Json]]:
    """Every value that any config of the space may give an engine argument, by dotted path."""
    yield from _leaves(space.engine)
    for parameter in every(space.parameters):
        if parameter.argument is not None:
            for value in _values(parameter):
                yield from _leaves({parameter.argument: value})
        for choice in _choices(parameter):
            yield from _leaves(choice.set)


def _leaves(arguments: Mapping[str, Json]) -> Iterator[tuple[str, Json]]:
    for path, value in leaves(arguments):
        yield path.replace("-", "_"), value


def _models(space: Space) -> Iterator[str]:
    for path, value in _arguments(space):
        if path in MODEL_ARGUMENTS and isinstance(value, str):
            yield value
    for parameter in every(space.parameters):
        for choice in _choices(parameter):
            if choice.model is not None:
                yield choice.model


def _variables(space: Space) -> Iterator[str]:
    yield from space.environment
    for parameter in every(space.parameters):
        if parameter.environment is not None:
            yield parameter.environment
        for choice in _choices(parameter):
            yield from choice.environment


def _choices(parameter: Parameter) -> Iterator[Choice]:
    if isinstance(parameter, Categorical):
        yield from (choice for choice in parameter.choices if isinstance(choice, Choice))


def _values(parameter: Parameter) -> tuple[Json, ...]:
    """What a parameter may give its argument; of a range any one value, all being numbers."""
    return tuple(parameter.values) if isinstance(parameter, Categorical) else (parameter.low,)
