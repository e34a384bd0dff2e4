"""A config as a model server of llm-d: a Deployment that its router finds by label, and the router's values.

llm-d puts model servers together with kustomize since 0.7; its Helm chart for them is deprecated.
"""

import shlex
from pathlib import Path

from search_spaces.values import Json
from tuner.export import kubernetes, pods
from tuner.export.folder import comment, fenced
from tuner.export.launch import Launch, containerised, launch_of
from tuner.export.subject import Subject
from tuner.export.target import Target
from tuner.export.yaml_text import yaml_text

DEPLOYMENT = "deployment.yaml"
KUSTOMIZATION = "kustomization.yaml"
ROUTER = "router.values.yaml"

_GUIDE = "llm-d.ai/guide"


def launch_files(subject: Subject) -> dict[str, str]:
    """Deployment, kustomization, and the values by which llm-d's router finds the pods."""
    launch, local = containerised(launch_of(subject))
    documents: dict[str, Json] = {
        DEPLOYMENT: deployment(subject, launch, local),
        KUSTOMIZATION: kubernetes.kustomization(DEPLOYMENT),
        ROUTER: {"router": {"modelServers": {"matchLabels": {_GUIDE: launch.name}}}},
    }
    return {name: yaml_text(document, comment=comment(subject)) for name, document in documents.items()}


def deployment(subject: Subject, launch: Launch, local: tuple[str, ...]) -> dict[str, Json]:
    """The plain Deployment with llm-d's labels on it and its pods."""
    found = kubernetes.deployment(subject, launch, local)
    labels: dict[str, Json] = {**pods.labels(subject, launch.name), **_labels(subject, launch)}
    annotations = pods.annotations(subject)
    spec = found["spec"]
    assert isinstance(spec, dict)
    template: Json = {
        "metadata": {"labels": labels, "annotations": annotations},
        "spec": kubernetes.pod_spec(launch, local, "modelserver"),
    }
    return {
        **found,
        "metadata": {"name": launch.name, "labels": labels, "annotations": annotations},
        "spec": {**spec, "template": template},
    }


def _labels(subject: Subject, launch: Launch) -> dict[str, Json]:
    model = pods.label_value(subject.trial.model.rpartition("/")[2])
    return {
        "llm-d.ai/inference-serving": "true",
        _GUIDE: launch.name,
        "llm-d.ai/model": model,
        "llm-d.ai/role": "decode",
    }


def _start(subject: Subject) -> str:
    launch, local = containerised(launch_of(subject))
    return (
        f"In this folder, in the namespace of an llm-d router:\n\n{fenced(['kubectl apply -k .'])}\n\n"
        f"The router finds the pods by `{_GUIDE}: {launch.name}`: give its chart `{ROUTER}` after its own "
        f"values, `-f {ROUTER}`.\n{kubernetes.before_text(subject, launch, local)}\n"
        "What is promised is of one engine without a router before it: how it spreads requests over several "
        "changes what their prefix caches hold."
    )


def _line(subject: Subject, out: Path) -> str:
    return f"kubectl apply -k {shlex.quote(str(out))}"


TARGET = Target(name="llm-d", launch_files=launch_files, start=_start, line=_line)
