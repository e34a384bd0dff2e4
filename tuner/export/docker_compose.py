"""A config as a Compose file: one container of vLLM's own image, reached from this machine only."""

import shlex
from pathlib import Path, PurePosixPath

from search_spaces.values import Json
from tuner.export.folder import comment, fenced, secrets_text
from tuner.export.launch import HEALTH, MODELS, PORT, containerised, launch_of, words, written
from tuner.export.subject import Subject
from tuner.export.target import Target
from tuner.export.yaml_text import yaml_text

COMPOSE = "compose.yaml"
MODELS_VARIABLE = "MODELS"

_CACHE = "/root/.cache/huggingface"
_PROBE = f"import urllib.request; urllib.request.urlopen('http://127.0.0.1:{PORT}{HEALTH}', timeout=5)"
"""vLLM's image has Python for certain, and no certain curl."""


def launch_files(subject: Subject) -> dict[str, str]:
    """The Compose file."""
    launch, local = containerised(launch_of(subject))
    environment: dict[str, Json] = {name: _literal(value) for name, value in launch.environment.items()}
    environment |= {secret.variable: _variable(secret.variable) for secret in launch.secrets}
    volumes: list[Json] = [{"type": "volume", "source": "hub-cache", "target": _CACHE}]
    if local:
        folder = f"${{{MODELS_VARIABLE}:?the folder that has {_names(local)}}}"
        volumes.append({"type": "bind", "source": folder, "target": MODELS, "read_only": True})
    labels: dict[str, Json] = {
        "llm-serving-tuner.study": _literal(subject.study.name),
        "llm-serving-tuner.trial": str(subject.trial.number),
        **{f"llm-serving-tuner.{mark}": "true" for mark in subject.marks},
    }
    service: dict[str, Json] = {
        "image": launch.image,
        "entrypoint": ["vllm", "serve"],
        "command": [
            _literal(launch.model),
            "--host",
            "0.0.0.0",
            "--port",
            str(PORT),
            *(written(word, _literal, _variable) for word in words(launch.arguments)),
        ],
        **({"environment": dict(sorted(environment.items()))} if environment else {}),
        "labels": labels,
        # Whoever may reach it is decided by what stands before it.
        "ports": [f"127.0.0.1:{PORT}:{PORT}"],
        "volumes": volumes,
        "shm_size": f"{launch.shared_memory_gib}gb",
        "healthcheck": {
            "test": ["CMD", "python3", "-c", _PROBE],
            "interval": "10s",
            "timeout": "10s",
            "retries": 6,
            "start_period": f"{launch.start_allowed_s}s",
        },
        "restart": "unless-stopped",
        "stop_grace_period": "60s",
    }
    if launch.gpus:
        gpus: Json = {"driver": "nvidia", "count": launch.gpus, "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [gpus]}}}
    document: Json = {
        "name": launch.name,
        "services": {"vllm": service},
        "volumes": {"hub-cache": {}},
    }
    return {COMPOSE: yaml_text(document, comment=comment(subject))}


def _literal(text: str) -> str:
    """Compose expands `$` in every string; doubled, it is itself."""
    return text.replace("$", "$$")


def _variable(name: str) -> str:
    """Compose refuses to start where it is not set."""
    return f"${{{name}:?}}"


def _names(local: tuple[str, ...]) -> str:
    return " and ".join(PurePosixPath(path).name for path in local)


def _start(subject: Subject) -> str:
    launch, local = containerised(launch_of(subject))
    gpus = " and the NVIDIA container toolkit" if launch.gpus else ""
    models = (
        f"\nSet `{MODELS_VARIABLE}` to the folder on this machine that has {_names(local)}.\n"
        if local
        else ""
    )
    secrets = secrets_text(
        subject, "Set them in the shell, or in a file `.env` here that nobody else can read."
    )
    return (
        f"In this folder, with Docker{gpus}:\n\n{fenced(['docker compose up -d --wait'])}\n"
        f"{models}{secrets}\n"
        f"It listens on 127.0.0.1:{PORT}."
    )


def _line(subject: Subject, out: Path) -> str:
    return f"docker compose -f {shlex.quote(str(out / COMPOSE))} up -d --wait"


TARGET = Target(name="docker-compose", launch_files=launch_files, start=_start, line=_line)
