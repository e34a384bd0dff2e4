"""A config as a KServe InferenceService, its predictor vLLM's own image."""

import shlex
from pathlib import Path

from search_spaces.values import Json
from tuner.export import pods
from tuner.export.folder import comment, fenced
from tuner.export.kubernetes import before_text, pod_spec
from tuner.export.launch import Launch, containerised, launch_of
from tuner.export.subject import Subject
from tuner.export.target import Target
from tuner.export.yaml_text import yaml_text

SERVICE = "inference-service.yaml"
CONTAINER = "kserve-container"
"""The name by which KServe knows the container that serves."""


def launch_files(subject: Subject) -> dict[str, str]:
    """The InferenceService."""
    launch, local = containerised(launch_of(subject))
    return {SERVICE: yaml_text(inference_service(subject, launch, local), comment=comment(subject))}


def inference_service(subject: Subject, launch: Launch, local: tuple[str, ...]) -> dict[str, Json]:
    """One replica that is always there: a config that was measured warm promises nothing of a cold start."""
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {
            "name": launch.name,
            "labels": pods.labels(subject, launch.name),
            "annotations": {
                # An ordinary Deployment, without the proxy that Knative puts before each pod.
                "serving.kserve.io/deploymentMode": "Standard",
                **pods.annotations(subject),
            },
        },
        "spec": {
            "predictor": {
                "minReplicas": 1,
                "maxReplicas": 1,
                "deploymentStrategy": {"type": "Recreate"},
                **pod_spec(launch, local, CONTAINER),
            }
        },
    }


def _start(subject: Subject) -> str:
    launch, local = containerised(launch_of(subject))
    lines = [
        f"kubectl apply -f {SERVICE}",
        f"kubectl wait --for=condition=Ready --timeout={launch.start_allowed_s}s "
        f"inferenceservice/{launch.name}",
    ]
    return (
        "In this folder, on a cluster with KServe 0.16 or newer (older ones call the mode "
        "`RawDeployment`):\n\n"
        f"{fenced(lines)}\n{before_text(subject, launch, local)}"
    )


def _line(subject: Subject, out: Path) -> str:
    return f"kubectl apply -f {shlex.quote(str(out / SERVICE))}"


TARGET = Target(name="kserve", launch_files=launch_files, start=_start, line=_line)
