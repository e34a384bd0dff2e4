"""How a config is launched, whatever carries it: arguments, environment, secrets by reference, resources.

A secret is never stored, so none can be written: where one stood, `Reference` names the environment variable
that is to hold it, and each target writes that in its own syntax.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from cluster.node.simulation.argument_names import VERSION
from search_spaces.arguments import to_flags
from search_spaces.secrets import HIDDEN
from search_spaces.values import Json
from tuner.export.refusals import ExportError
from tuner.export.subject import Subject
from tuner.records import StoredTrial

PORT = 8000
"""vLLM's own."""
HEALTH = "/health"

MODELS = "/models"
"""Where a container finds models that come from no hub."""

_MADE_EXPLICIT = (
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "tensor_parallel_size",
)
"""Settings that decide whether a launch fits in memory, and how steps are filled: written down as they were
in effect even where the config left them to a default, since another version's default may differ."""

_LEFT_OPEN = (None, "auto", -1)
"""Asked for so, a setting was left to the engine."""

_READ_FROM_ENVIRONMENT = {"hf_token": "HF_TOKEN", "api_key": "VLLM_API_KEY"}
"""Secret arguments that vLLM and the hub's client take from the environment as well."""

_IMAGES = {True: "vllm/vllm-openai", False: "vllm/vllm-openai-cpu"}
"""vLLM's own images, with GPUs and without."""

_MARKED = re.compile(r"\*\*\*(\w+)\*\*\*")


@dataclass(frozen=True, slots=True)
class Reference:
    """A secret, by the environment variable that holds it."""

    variable: str


Word = tuple[str | Reference, ...]
"""One word of a command line, in the parts that it is put together from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A secret that has to be set before the start."""

    variable: str
    """Environment variable that is to hold it."""
    was: str
    """What was secret when this was measured: `--hf-token`, or the variable itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything that starts one config."""

    name: str
    """A DNS label: begins with a letter, at most 40 of a-z, 0-9 and hyphens, since charts append to it."""
    model: str
    arguments: Mapping[str, Json]
    """By vLLM's own names; *** where a secret stood."""
    environment: Mapping[str, str]
    """Without secrets."""
    secrets: tuple[Secret, ...]
    gpus: int
    version: str
    """The engine's, as its packages and images name it; empty where it is not known."""
    start_s: float | None
    """How long it took to start when it was measured, its weights on disk."""

    @property
    def image(self) -> str:
        """Raises ExportError where the version is not known: an image that may be any is no export."""
        return f"{self.repository}:{self.tag}"

    @property
    def repository(self) -> str:
        return _IMAGES[self.gpus > 0]

    @property
    def tag(self) -> str:
        """Raises ExportError where the version is not known."""
        if not self.version:
            raise ExportError(
                "which vLLM was measured is not known, so no image can be named; --to vllm can be"
            )
        return f"v{self.version}"

    @property
    def shared_memory_gib(self) -> int:
        """vLLM's workers talk through /dev/shm, of which containers get 64 MB if nobody asks for more.

        2 GiB a GPU, 2 at least: twice what vLLM's own Kubernetes example has for one. Not measured.
        """
        return 2 * max(self.gpus, 1)

    @property
    def cpus(self) -> int:
        """Cores: vLLM's documentation wants 2 and one more a GPU, for the API server, the engine's core and
        each worker. Not measured."""
        return 2 + self.gpus

    @property
    def memory_gib(self) -> int:
        """Host memory to ask for: 8 GiB, 8 more a GPU, and KV caches that lie there. Not measured."""
        offloaded = self.arguments.get("kv_offloading_size")
        pool = self.arguments.get("kv_cache_memory_bytes") if not self.gpus else None
        on_cpu = self.environment.get("VLLM_CPU_KVCACHE_SPACE", "0")
        caches = (
            (float(offloaded) if isinstance(offloaded, int | float) else 0.0)
            + (pool / 2**30 if isinstance(pool, int | float) else 0.0)
            + (float(on_cpu) if re.fullmatch(r"\d+(\.\d+)?", on_cpu) else 0.0)
        )
        return 8 * (1 + self.gpus) + math.ceil(caches)

    @property
    def start_allowed_s(self) -> int:
        """How long a start may take before it is given up: half an hour, since weights may have to come over
        the network first, or five times what it took when measured where that is more."""
        return max(1800, math.ceil(5 * (self.start_s or 0) / 10) * 10)


def launch_of(subject: Subject) -> Launch:
    """How this config is launched, on the machine that it was measured on or one like it."""
    trial = subject.trial
    arguments = {
        name: value for name, value in explicit_arguments(trial).items() if not _from_environment(name, value)
    }
    environment = {name: value for name, value in sorted(trial.environment.items()) if HIDDEN not in value}
    return Launch(
        name=_label(f"vllm-{subject.study.name}-{trial.number}"),
        model=trial.model,
        arguments=arguments,
        environment=environment,
        secrets=_secrets(trial),
        gpus=trial.gpus,
        version=_version(trial),
        start_s=trial.ran.start_s,
    )


def is_local(model: str) -> bool:
    """Whether this is a path: a hub's name has one slash at the most, and none in front."""
    return model.startswith(("/", ".", "~")) or model.count("/") > 1


def containerised(launch: Launch) -> tuple[Launch, tuple[str, ...]]:
    """The launch as a container needs it, and the local models that it finds under `MODELS`.

    Clients call a local model by the last part of its path, which no longer says where it lay.
    """
    local: list[str] = []

    def moved(model: str) -> str:
        if not is_local(model):
            return model
        if model not in local:
            local.append(model)
        return f"{MODELS}/{PurePosixPath(model).name}"

    model = moved(launch.model)
    arguments = dict(launch.arguments)
    for name in ("tokenizer", "speculative_config"):
        value = arguments.get(name)
        if isinstance(value, str):
            arguments[name] = moved(value)
        elif isinstance(value, dict) and isinstance(path := value.get("model"), str):
            arguments[name] = {**value, "model": moved(path)}
    if model != launch.model:
        arguments.setdefault("served_model_name", PurePosixPath(launch.model).name)
    if len({PurePosixPath(path).name for path in local}) < len(local):
        raise ExportError(f"local models of one name cannot lie in one folder: {', '.join(local)}")
    return replace(launch, model=model, arguments=dict(sorted(arguments.items()))), tuple(local)


def words(arguments: Mapping[str, Json]) -> list[Word]:
    """The flags that `vllm serve` takes after the model."""
    return [_parted(text) for text in to_flags(_with_variables(arguments))]


def written(word: Word, literal: Callable[[str], str], reference: Callable[[str], str]) -> str:
    """The word in a target's syntax.

    Args:
        literal: how plain text is escaped there.
        reference: how an environment variable is expanded there.
    """
    return "".join(
        reference(part.variable) if isinstance(part, Reference) else literal(part) for part in word
    )


def without_secrets(arguments: Mapping[str, Json]) -> dict[str, Json]:
    """The arguments that hold no secret at any depth, whole."""
    return {name: value for name, value in arguments.items() if not _hidden(value, name)}


def with_secrets(arguments: Mapping[str, Json]) -> dict[str, Json]:
    """The others."""
    return {name: value for name, value in arguments.items() if _hidden(value, name)}


def flag(name: str) -> str:
    """`--hf-token` for hf_token; keys below an argument keep their names, as vLLM takes them."""
    top, dot, below = name.partition(".")
    return f"--{top.replace('_', '-')}{dot}{below}"


def explicit_arguments(trial: StoredTrial) -> dict[str, Json]:
    """The arguments asked for, and what decides a launch as it was in effect; by name, secrets as ***."""
    explicit = {
        name: trial.ran.effective[name]
        for name in _MADE_EXPLICIT
        if trial.ran.effective.get(name) is not None
        and trial.arguments.get(name) in _LEFT_OPEN
        # Asked for as bytes, the pool's share of memory is not what decides.
        and not (name == "gpu_memory_utilization" and trial.arguments.get("kv_cache_memory_bytes"))
    }
    trust = {"trust_remote_code": True} if trial.trust_remote_code else {}
    asked = {name: value for name, value in trial.arguments.items() if name not in explicit}
    return dict(sorted((explicit | trust | asked).items()))


def _version(trial: StoredTrial) -> str:
    """What was simulated is the vLLM whose arguments the simulation takes."""
    known = trial.ran.version or (VERSION if trial.ran.engine == "simulated" else "")
    return known.partition("+")[0]


def _from_environment(name: str, value: Json) -> bool:
    return name in _READ_FROM_ENVIRONMENT and bool(_hidden(value, name))


def _secrets(trial: StoredTrial) -> tuple[Secret, ...]:
    found = [
        Secret(variable=variable, was=flag(path))
        if name not in _READ_FROM_ENVIRONMENT
        else Secret(variable=_READ_FROM_ENVIRONMENT[name], was=flag(name))
        for name, value in sorted(trial.arguments.items())
        for path, variable in _hidden(value, name)
    ]
    found += [
        Secret(variable=name, was=name)
        for name, value in sorted(trial.environment.items())
        if HIDDEN in value
    ]
    return tuple({secret.variable: secret for secret in found}.values())


def _hidden(value: Json, path: str) -> list[tuple[str, str]]:
    """Dotted path and variable of every secret in this value."""
    match value:
        case str():
            return [(path, _variable(path))] if HIDDEN in value else []
        case list():
            return [one for number, item in enumerate(value) for one in _hidden(item, f"{path}.{number}")]
        case dict():
            return [one for key, item in value.items() for one in _hidden(item, f"{path}.{key}")]
        case _:
            return []


def _variable(path: str) -> str:
    return "SECRET_" + re.sub(r"\W", "_", path, flags=re.ASCII).upper()


def _with_variables(arguments: Mapping[str, Json]) -> dict[str, Json]:
    def named(value: Json, path: str) -> Json:
        match value:
            case str():
                return f"{HIDDEN}{_variable(path)}{HIDDEN}" if HIDDEN in value else value
            case list():
                return [named(item, f"{path}.{number}") for number, item in enumerate(value)]
            case dict():
                return {key: named(item, f"{path}.{key}") for key, item in value.items()}
            case _:
                return value

    return {name: named(value, name) for name, value in arguments.items()}


def _parted(text: str) -> Word:
    parts = _MARKED.split(text)
    return tuple(
        Reference(part) if number % 2 else part for number, part in enumerate(parts) if number % 2 or part
    )


def _label(text: str) -> str:
    """A DNS label; a name that is too long loses its middle, since both its ends tell names apart."""
    label = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return label if len(label) <= 40 else f"{label[:19].rstrip('-')}-{label[-20:].lstrip('-')}"
