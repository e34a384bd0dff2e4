"""A config as a Ray Serve application that serves one LLM."""

import shlex
from pathlib import Path, PurePosixPath

from search_spaces.values import Json
from tuner.export.folder import comment, fenced, secrets_text
from tuner.export.launch import Launch, is_local, launch_of, with_secrets, without_secrets
from tuner.export.refusals import ExportError
from tuner.export.subject import Subject
from tuner.export.target import Target
from tuner.export.yaml_text import yaml_text

CONFIG = "serve.yaml"
_API = "VLLM_API_KEY"


def launch_files(subject: Subject) -> dict[str, str]:
    """The config that `serve run` and `serve deploy` take."""
    launch = launch_of(subject)
    if hidden := with_secrets(launch.arguments):
        raise ExportError(
            f"{', '.join(hidden)} of trial {subject.trial.number} held a secret, and Ray Serve's config can "
            "only hold it in the clear; another --to can be"
        )
    return {CONFIG: yaml_text(serve_config(subject, launch), comment=comment(subject))}


def serve_config(subject: Subject, launch: Launch) -> dict[str, Json]:
    """One application with one replica, as it was measured."""
    local = is_local(launch.model)
    model: dict[str, Json] = {
        "model_loading_config": {
            "model_id": PurePosixPath(launch.model).name if local else launch.model,
            "model_source": launch.model,
        },
        **_accelerator(subject, launch),
        "engine_kwargs": {
            name: value for name, value in without_secrets(launch.arguments).items() if value is not None
        },
        # Ray's own gauges read the engine's statistics.
        **({"log_engine_metrics": False} if launch.arguments.get("disable_log_stats") else {}),
        "deployment_config": {"num_replicas": 1},
        **({"runtime_env": {"env_vars": dict(launch.environment)}} if launch.environment else {}),
    }
    return {
        "applications": [
            {
                "name": launch.name,
                "route_prefix": "/",
                "import_path": "ray.serve.llm:build_openai_app",
                "args": {"llm_configs": [model]},
            }
        ]
    }


def _accelerator(subject: Subject, launch: Launch) -> dict[str, Json]:
    if not launch.gpus:
        return {"accelerator_config": {"kind": "cpu"}}
    kind = subject.promised.resources.accelerator
    return {} if kind is None else {"accelerator_type": kind}


def _start(subject: Subject) -> str:
    launch = launch_of(subject)
    pinned = f", with vLLM {launch.version} on every node" if launch.version else ""
    secrets = secrets_text(subject, "Set them on every node before its Ray is started.")
    keyless = (
        f"\nRay Serve's own API server asks for no key: `{_API}` does nothing there, so put something before "
        "it that does.\n"
        if any(secret.variable == _API for secret in launch.secrets)
        else ""
    )
    local = f"\n`{launch.model}` has to be there on every node.\n" if is_local(launch.model) else ""
    return (
        f"In this folder, on a Ray cluster with `ray[serve,llm]`{pinned}:\n\n"
        f"{fenced([f'serve deploy {CONFIG}'])}\n{secrets}{keyless}{local}\n"
        "What is promised is of vLLM's own server: Ray Serve's takes requests through processes of its own, "
        "and what that costs was not measured."
    )


def _line(subject: Subject, out: Path) -> str:
    return f"serve deploy {shlex.quote(str(out / CONFIG))}"


TARGET = Target(name="ray-serve", launch_files=launch_files, start=_start, line=_line)
