"""What the Kubernetes targets share: one container of vLLM's own image, its volumes, labels and probes."""

import re
from collections.abc import Collection, Iterable
from pathlib import PurePosixPath

from search_spaces.values import Json
from tuner.export.launch import HEALTH, MODELS, PORT, Launch, words, written
from tuner.export.subject import Subject

SECRETS = "vllm-secrets"
"""The Kubernetes Secret that holds every secret, each under its variable's name."""
MODELS_CLAIM = "models"
"""The PersistentVolumeClaim that local models are read from."""

PORT_NAME = "http"
_PREFIX = "llm-serving-tuner"
_CACHE = "/root/.cache/huggingface"
_SHARED, _MODELS, _HUB = "shared-memory", "models", "hub-cache"


def container(launch: Launch, local: tuple[str, ...], name: str) -> dict[str, Json]:
    """The container that serves."""
    return {
        "name": name,
        "image": launch.image,
        "command": ["vllm", "serve"],
        "args": arguments(launch),
        **({"env": environment(launch)} if launch.environment or launch.secrets else {}),
        "ports": [{"name": PORT_NAME, "containerPort": PORT, "protocol": "TCP"}],
        "resources": resources(launch),
        "startupProbe": {
            **_probe(),
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": launch.start_allowed_s // 10,
        },
        "readinessProbe": {**_probe(), "periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 3},
        # A full batch answers late; only an engine that answers nothing for a minute is started anew.
        "livenessProbe": {**_probe(), "periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 6},
        "securityContext": {"allowPrivilegeEscalation": False, "seccompProfile": {"type": "RuntimeDefault"}},
        "volumeMounts": volume_mounts(local),
    }


def arguments(launch: Launch) -> list[Json]:
    """The model, where it listens, and the flags."""
    return [literal(launch.model), "--host", "0.0.0.0", "--port", str(PORT), *flags(launch)]


def flags(launch: Launch, without: Collection[str] = ()) -> list[Json]:
    """The flags of all arguments but these, as Kubernetes expands them: secrets as `$(VARIABLE)`."""
    kept = {name: value for name, value in launch.arguments.items() if name not in without}
    return [written(word, literal, lambda variable: f"$({variable})") for word in words(kept)]


def environment(launch: Launch, without: Collection[str] = ()) -> list[Json]:
    """The container's variables but these; secrets come from the Secret."""
    plain: list[Json] = [
        {"name": name, "value": literal(value)} for name, value in sorted(launch.environment.items())
    ]
    hidden: list[Json] = [
        {"name": variable, "valueFrom": {"secretKeyRef": {"name": SECRETS, "key": variable}}}
        for variable in (secret.variable for secret in launch.secrets)
        if variable not in without
    ]
    return [*hidden, *plain]


def resources(launch: Launch) -> dict[str, Json]:
    """GPUs as measured; cores and memory are requests alone, since nobody measured where a limit belongs."""
    asked: dict[str, Json] = {"cpu": str(launch.cpus), "memory": f"{launch.memory_gib}Gi"}
    if not launch.gpus:
        return {"requests": asked}
    gpus: dict[str, Json] = {"nvidia.com/gpu": str(launch.gpus)}
    return {"requests": asked | gpus, "limits": gpus}


def volumes(launch: Launch, local: tuple[str, ...]) -> list[Json]:
    """Shared memory, what is downloaded, and local models where there are any."""
    found: list[Json] = [
        {"name": _SHARED, "emptyDir": {"medium": "Memory", "sizeLimit": f"{launch.shared_memory_gib}Gi"}},
        {"name": _HUB, "emptyDir": {}},
    ]
    if local:
        claim: Json = {"claimName": MODELS_CLAIM, "readOnly": True}
        found.append({"name": _MODELS, "persistentVolumeClaim": claim})
    return found


def volume_mounts(local: tuple[str, ...]) -> list[Json]:
    """Where they are found."""
    found: list[Json] = [
        {"name": _SHARED, "mountPath": "/dev/shm"},
        {"name": _HUB, "mountPath": _CACHE},
    ]
    if local:
        found.append({"name": _MODELS, "mountPath": MODELS, "readOnly": True})
    return found


def labels(subject: Subject, name: str) -> dict[str, Json]:
    """The recommended labels, and one for each mark, so that `kubectl get -l` finds what was let pass."""
    return {
        "app.kubernetes.io/name": "vllm",
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/managed-by": _PREFIX,
        **{f"{_PREFIX}/{mark}": "true" for mark in subject.marks},
    }


def annotations(subject: Subject) -> dict[str, Json]:
    """Whose config it is."""
    return {
        f"{_PREFIX}/study": subject.study.name,
        f"{_PREFIX}/trial": str(subject.trial.number),
        f"{_PREFIX}/trace-digest": subject.study.trace_digest,
        **({f"{_PREFIX}/marks": ", ".join(subject.marks)} if subject.marks else {}),
    }


def selector(name: str) -> dict[str, Json]:
    """The labels that tell these pods from all others."""
    return {"app.kubernetes.io/name": "vllm", "app.kubernetes.io/instance": name}


def label_value(text: str) -> str:
    """The text as a label's value: at most 63 letters, digits, `-`, `_`, `.`, plain ones at both ends."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:63].strip("-_.")


def literal(text: str) -> str:
    """Kubernetes expands `$(…)` in arguments and variables; a doubled `$` is itself."""
    return text.replace("$", "$$")


def models_text(local: tuple[str, ...]) -> str:
    """What a cluster has to have for local models, as a paragraph; empty where there are none."""
    if not local:
        return ""
    named = " and ".join(f"`{PurePosixPath(path).name}`" for path in local)
    return f"\nThe PersistentVolumeClaim `{MODELS_CLAIM}` has to hold {named}: the model came from no hub.\n"


def secret_line(variables: Iterable[str]) -> str:
    """The line that makes the Secret from variables of the shell."""
    pairs = " ".join(f'--from-literal={name}="${name}"' for name in variables)
    return f"kubectl create secret generic {SECRETS} {pairs}"


def _probe() -> dict[str, Json]:
    return {"httpGet": {"path": HEALTH, "port": PORT_NAME}}
