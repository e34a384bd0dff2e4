"""Every target by the name that `--to` takes."""

from collections.abc import Mapping
from types import MappingProxyType

from tuner.export import docker_compose, helm_values, kserve, kubernetes, llm_d, ray_serve, systemd, vllm
from tuner.export.target import Target

TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        module.TARGET.name: module.TARGET
        for module in (vllm, docker_compose, systemd, kubernetes, helm_values, kserve, llm_d, ray_serve)
    }
)
