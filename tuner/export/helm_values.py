"""A config as values of the vLLM production stack's Helm chart.

The chart has keys of its own for a few settings, and says something for prefix caching whether it is told or
not: it turns it off. So that key is always there, and what the chart has no key for goes into `extraArgs`.
"""

import shlex
from pathlib import Path

from search_spaces.values import Json
from tuner.export import pods
from tuner.export.folder import comment, fenced, secrets_text
from tuner.export.launch import HEALTH, MODELS, PORT, Launch, containerised, launch_of
from tuner.export.refusals import ExportError
from tuner.export.subject import Subject
from tuner.export.target import Target
from tuner.export.yaml_text import yaml_text

VALUES = "values.yaml"
CHART = "vllm/vllm-stack"
MODEL = "llm"
"""The chart appends it, and more, to the release's name, and pods take no hostname above 63 letters."""
REPOSITORY = "https://vllm-project.github.io/production-stack"

_KEYS = {
    "enable_prefix_caching": ("enablePrefixCaching", bool),
    "enable_chunked_prefill": ("enableChunkedPrefill", bool),
    "max_model_len": ("maxModelLen", int),
    "max_num_seqs": ("maxNumSeqs", int),
    "tensor_parallel_size": ("tensorParallelSize", int),
    "gpu_memory_utilization": ("gpuMemoryUtilization", float),
}
"""Argument → the chart's key and the type that its schema wants; everything else is an extra argument."""

_HUB, _API = "HF_TOKEN", "VLLM_API_KEY"


def launch_files(subject: Subject) -> dict[str, str]:
    """The chart's values."""
    launch, local = containerised(launch_of(subject))
    return {VALUES: yaml_text(values(subject, launch, local), comment=comment(subject))}


def values(subject: Subject, launch: Launch, local: tuple[str, ...]) -> dict[str, Json]:
    """The values of one model with one replica, as it was measured."""
    own = {
        name: value
        for name, value in launch.arguments.items()
        if name in _KEYS and type(value) is _KEYS[name][1] and not _misprinted(value)
    }
    if "enable_prefix_caching" not in own:
        raise ExportError(
            f"whether trial {subject.trial.number} had prefix caching is not known, and the production "
            "stack's chart turns it off where it is not told; another --to can be"
        )
    config: dict[str, Json] = {_KEYS[name][0]: value for name, value in own.items()}
    # The chart gives a pod shared memory only where it is told this.
    config.setdefault("tensorParallelSize", 1)
    config["extraArgs"] = pods.flags(launch, without=tuple(own))
    referred = {secret.variable for secret in launch.secrets}
    model: dict[str, Json] = {
        "name": MODEL,
        "annotations": pods.annotations(subject),
        "podAnnotations": pods.annotations(subject),
        "repository": launch.repository,
        "tag": launch.tag,
        "modelURL": pods.literal(launch.model),
        "replicaCount": 1,
        "requestCPU": launch.cpus,
        "requestMemory": f"{launch.memory_gib}Gi",
        "requestGPU": launch.gpus,
        "shmSize": f"{launch.shared_memory_gib}Gi",
        "vllmConfig": dict(sorted(config.items())),
        **({"hf_token": _secret(_HUB)} if _HUB in referred else {}),
    }
    # The chart has these two itself, and its router needs to know the key.
    if environment := pods.environment(launch, without=(_HUB, _API)):
        model["env"] = environment
    if local:
        claim: Json = {"claimName": pods.MODELS_CLAIM, "readOnly": True}
        model["extraVolumes"] = [{"name": "models", "persistentVolumeClaim": claim}]
        model["extraVolumeMounts"] = [{"name": "models", "mountPath": MODELS, "readOnly": True}]
    return {
        "servingEngineSpec": {
            "enableEngine": True,
            "labels": pods.labels(subject, launch.name),
            "containerPort": PORT,
            **({"vllmApiKey": _secret(_API)} if _API in referred else {}),
            "startupProbe": {
                "initialDelaySeconds": 10,
                "periodSeconds": 10,
                "failureThreshold": launch.start_allowed_s // 10,
                "httpGet": {"path": HEALTH, "port": PORT},
            },
            "livenessProbe": {
                "initialDelaySeconds": 10,
                "periodSeconds": 10,
                "failureThreshold": 6,
                "httpGet": {"path": HEALTH, "port": PORT},
            },
            "modelSpec": [model],
        }
    }


def _misprinted(value: Json) -> bool:
    """Whether Helm would write the number otherwise: it reads all as floats, 1048576 as `1.048576e+06`."""
    return isinstance(value, int) and value >= 10**6


def _secret(variable: str) -> dict[str, Json]:
    return {"secretName": pods.SECRETS, "secretKey": variable}


def _start(subject: Subject) -> str:
    launch, local = containerised(launch_of(subject))
    lines = [
        f"helm repo add vllm {REPOSITORY}",
        f"helm upgrade --install {launch.name} {CHART} -f {VALUES}",
    ]
    secrets = ""
    if launch.secrets:
        line = pods.secret_line([secret.variable for secret in launch.secrets])
        secrets = secrets_text(
            subject, f"They are read from the Secret `{pods.SECRETS}`:\n\n{fenced([line])}"
        )
    return (
        f"In this folder, with Helm:\n\n{fenced(lines)}\n{secrets}{pods.models_text(local)}\n"
        "Cores and memory are requests, not measured: raise them where your nodes tell you to. What is "
        "promised is of one engine without the stack's router before it."
    )


def _line(subject: Subject, out: Path) -> str:
    return f"helm upgrade --install {launch_of(subject).name} {CHART} -f {shlex.quote(str(out / VALUES))}"


TARGET = Target(name="helm-values", launch_files=launch_files, start=_start, line=_line)
