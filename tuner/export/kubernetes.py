"""A config as a Deployment and a Service, put together by a kustomization."""

import shlex
from pathlib import Path

from search_spaces.values import Json
from tuner.export import pods
from tuner.export.folder import comment, fenced, secrets_text
from tuner.export.launch import Launch, containerised, launch_of
from tuner.export.subject import Subject
from tuner.export.target import Target
from tuner.export.yaml_text import yaml_text

DEPLOYMENT = "deployment.yaml"
SERVICE = "service.yaml"
KUSTOMIZATION = "kustomization.yaml"


def launch_files(subject: Subject) -> dict[str, str]:
    """Deployment, Service and the kustomization that `kubectl apply -k` takes."""
    launch, local = containerised(launch_of(subject))
    about = comment(subject)
    documents: dict[str, Json] = {
        DEPLOYMENT: deployment(subject, launch, local),
        SERVICE: service(subject, launch),
        KUSTOMIZATION: kustomization(DEPLOYMENT, SERVICE),
    }
    return {name: yaml_text(document, comment=about) for name, document in documents.items()}


def deployment(subject: Subject, launch: Launch, local: tuple[str, ...]) -> dict[str, Json]:
    """One replica, as it was measured; how many are needed is arithmetic on its promised capacity."""
    labels, annotations = pods.labels(subject, launch.name), pods.annotations(subject)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": launch.name, "labels": labels, "annotations": annotations},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": pods.selector(launch.name)},
            # The GPUs of the old pod are those that the new one waits for.
            "strategy": {"type": "Recreate"},
            "progressDeadlineSeconds": launch.start_allowed_s + 600,
            "template": {
                "metadata": {"labels": labels, "annotations": annotations},
                "spec": pod_spec(launch, local, "vllm"),
            },
        },
    }


def pod_spec(launch: Launch, local: tuple[str, ...], name: str) -> dict[str, Json]:
    """The pod, its one container under this name."""
    return {
        "automountServiceAccountToken": False,
        # Without, every Service of the namespace becomes VLLM_… variables, and vLLM reads such.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 60,
        "containers": [pods.container(launch, local, name)],
        "volumes": pods.volumes(launch, local),
    }


def service(subject: Subject, launch: Launch) -> dict[str, Json]:
    """Within the cluster alone."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": launch.name,
            "labels": pods.labels(subject, launch.name),
            "annotations": pods.annotations(subject),
        },
        "spec": {
            "type": "ClusterIP",
            "selector": pods.selector(launch.name),
            "ports": [{"name": pods.PORT_NAME, "port": 80, "targetPort": pods.PORT_NAME, "protocol": "TCP"}],
        },
    }


def kustomization(*resources: str) -> dict[str, Json]:
    """So that `kubectl apply -k` leaves the other files of the folder alone."""
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(resources),
    }


def before_text(subject: Subject, launch: Launch, local: tuple[str, ...]) -> str:
    """What the cluster has to have before, as Markdown."""
    secrets = ""
    if launch.secrets:
        line = pods.secret_line([secret.variable for secret in launch.secrets])
        how = f"They are read from the Secret `{pods.SECRETS}`:\n\n{fenced([line])}"
        secrets = secrets_text(subject, how)
    gpus = (
        f"\nIt takes {launch.gpus} GPU{'s' if launch.gpus > 1 else ''} of the kind that it was measured on; "
        "where a cluster has several kinds, add a nodeSelector.\n"
        if launch.gpus
        else ""
    )
    return f"{secrets}{pods.models_text(local)}{gpus}" + (
        "\nCores and memory are requests, not measured, without limits: raise them where your nodes tell you "
        f"to. {launch.shared_memory_gib} GiB of shared memory are for what its processes tell each other.\n"
    )


def _start(subject: Subject) -> str:
    launch, local = containerised(launch_of(subject))
    lines = ["kubectl apply -k .", f"kubectl rollout status deployment/{launch.name}"]
    return (
        f"In this folder:\n\n{fenced(lines)}\n{before_text(subject, launch, local)}\n"
        f"Pods of the same namespace reach it at `http://{launch.name}/v1`."
    )


def _line(subject: Subject, out: Path) -> str:
    return f"kubectl apply -k {shlex.quote(str(out))}"


TARGET = Target(name="kubernetes", launch_files=launch_files, start=_start, line=_line)
