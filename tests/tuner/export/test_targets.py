"""Each target's files, read by the tools that are to take them, or by a parser that is not ours."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import compose_spec
import kubernetes_validate
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.node.simulation.argument_names import known_names
from search_spaces.arguments import to_flags
from search_spaces.values import Json
from tests.tuner.export.subjects import ARGUMENTS, PLAIN, SUBJECTS, TRIAL, changed, subject
from tuner.export import systemd
from tuner.export.launch import launch_of
from tuner.export.subject import Subject
from tuner.export.targets import TARGETS

_KUBERNETES = "1.34"
"""Schemas of this version: what is set here has been the same in every one since 1.26."""

_VALUES = {
    "HF_TOKEN": "hf-secret",
    "HTTPS_PROXY": "http://me:pa$s@proxy:3128",
    "MODELS": "/srv/models",
    "SECRET_SPECULATIVE_CONFIG_HF_TOKEN": "token",
    "SECRET_SPECULATIVE_CONFIG_URL": "http://me:100%$$@host",
    "VLLM_API_KEY": "key",
}
BOTH = pytest.mark.parametrize("name", list(SUBJECTS))


def _yaml(target: str, file: str, chosen: Subject = PLAIN) -> Any:
    return yaml.safe_load(TARGETS[target].files(chosen)[file])


def _meant(chosen: Subject, *, local: bool) -> list[str]:
    """What follows `vllm serve MODEL` and the address, with the secrets in their places."""
    arguments = dict(launch_of(chosen).arguments)
    config = arguments["speculative_config"]
    assert isinstance(config, dict)
    if "url" in config:
        arguments["speculative_config"] = {
            "method": "draft",
            "url": _VALUES["SECRET_SPECULATIVE_CONFIG_URL"],
            "hf_token": _VALUES["SECRET_SPECULATIVE_CONFIG_HF_TOKEN"],
        }
        if local:
            arguments["served_model_name"] = "Model-8B"
    return list(to_flags(dict(sorted(arguments.items()))))


def _interpolated(text: str, pattern: str) -> str:
    """The text with `$$` as `$` and each variable as its value, in one pass from the left."""
    return re.sub(rf"\$\$|{pattern}", lambda found: "$" if found[0] == "$$" else _VALUES[found["name"]], text)


def _by_compose(text: str) -> str:
    return _interpolated(text, r"\$\{(?P<name>\w+):\?[^}]*\}")


def _by_kubernetes(text: str) -> str:
    return _interpolated(text, r"\$\((?P<name>\w+)\)")


@BOTH
def test_compose_takes_the_file_and_starts_what_was_measured(name: str) -> None:
    chosen = SUBJECTS[name]
    text = TARGETS["docker-compose"].files(chosen)["compose.yaml"]
    filled: Any = _tree(yaml.safe_load(text), _by_compose)
    assert compose_spec.PyCompose.from_yaml(yaml.safe_dump(filled)).service_names() == ["vllm"]
    unheard_of = {**filled, "services": {"vllm": {"imago": "x"}}}
    with pytest.raises(ValueError, match="imago"):
        compose_spec.PyCompose.from_yaml(yaml.safe_dump(unheard_of))
    service = filled["services"]["vllm"]
    model, *flags = service["command"]
    assert model == ("org/Model-8B" if name == "plain" else "/models/Model-8B")
    assert flags == ["--host", "0.0.0.0", "--port", "8000", *_meant(chosen, local=True)]
    assert service["environment"]["SPACED"] == "two 'words' and \"$more\" 5%"
    assert service["image"] == "vllm/vllm-openai:v0.32.0"
    assert service["deploy"]["resources"]["reservations"]["devices"][0]["count"] == 2
    assert service["ports"] == ["127.0.0.1:8000:8000"]
    if name == "secrets":
        assert service["environment"]["HF_TOKEN"] == "hf-secret"
        assert {"source": "/srv/models", "target": "/models"}.items() <= service["volumes"][1].items()


def test_compose_reserves_no_gpu_for_a_config_that_was_served_by_a_cpu() -> None:
    service = _yaml("docker-compose", "compose.yaml", _on_a_cpu())["services"]["vllm"]
    assert "deploy" not in service
    assert service["image"] == "vllm/vllm-openai-cpu:v0.32.0"


@BOTH
@pytest.mark.parametrize(
    ("target", "file"),
    [("kubernetes", "deployment.yaml"), ("kubernetes", "service.yaml"), ("llm-d", "deployment.yaml")],
)
def test_kubernetes_own_schemas_take_it_without_an_unknown_field(target: str, file: str, name: str) -> None:
    document = _yaml(target, file, SUBJECTS[name])
    assert kubernetes_validate.validate(document, _KUBERNETES, strict=True)
    document["spec"]["unheard_of"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, _KUBERNETES, strict=True)


@BOTH
@pytest.mark.parametrize("target", ["kubernetes", "llm-d", "kserve"])
def test_a_pod_starts_what_was_measured_with_gpus_shared_memory_probes_and_secrets_by_reference(
    target: str, name: str
) -> None:
    chosen = SUBJECTS[name]
    pod = _pod(target, chosen)
    (container,) = pod["containers"]
    variables = {one["name"]: one for one in container["env"]}
    model, *flags = [_by_kubernetes(word) for word in container["args"]]
    assert model == ("org/Model-8B" if name == "plain" else "/models/Model-8B")
    assert flags == ["--host", "0.0.0.0", "--port", "8000", *_meant(chosen, local=True)]
    assert _by_kubernetes(variables["SPACED"]["value"]) == "two 'words' and \"$more\" 5%"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert container["resources"]["requests"]["nvidia.com/gpu"] == "2"
    assert container["startupProbe"]["failureThreshold"] * container["startupProbe"]["periodSeconds"] == 1800
    assert {probe["httpGet"]["path"] for key, probe in container.items() if key.endswith("Probe")} == {
        "/health"
    }
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes[mounted["/dev/shm"]]["emptyDir"] == {"medium": "Memory", "sizeLimit": "4Gi"}
    if name == "secrets":
        for variable in set(_VALUES) - {"MODELS"}:
            assert variables[variable]["valueFrom"]["secretKeyRef"] == {
                "name": "vllm-secrets",
                "key": variable,
            }
        assert volumes[mounted["/models"]]["persistentVolumeClaim"]["claimName"] == "models"


@pytest.mark.parametrize("target", ["kubernetes", "llm-d"])
def test_selectors_match_the_pods_that_they_are_for(target: str) -> None:
    found = _yaml(target, "deployment.yaml")
    labels = found["spec"]["template"]["metadata"]["labels"]
    assert found["spec"]["selector"]["matchLabels"].items() <= labels.items()
    if target == "kubernetes":
        assert _yaml(target, "service.yaml")["spec"]["selector"].items() <= labels.items()
    else:
        chosen = _yaml(target, "router.values.yaml")["router"]["modelServers"]["matchLabels"]
        assert chosen.items() <= labels.items()


@pytest.mark.parametrize("target", ["kubernetes", "llm-d"])
def test_the_kustomization_names_files_that_are_there(target: str) -> None:
    files = TARGETS[target].files(PLAIN)
    assert set(yaml.safe_load(files["kustomization.yaml"])["resources"]) <= set(files)


def test_a_pod_that_is_served_by_a_cpu_asks_for_no_gpu() -> None:
    (container,) = _pod("kubernetes", _on_a_cpu())["containers"]
    assert "limits" not in container["resources"]
    # 8 GiB, and the 4 GiB that the CPU build keeps its KV cache in.
    assert container["resources"]["requests"] == {"cpu": "2", "memory": "12Gi"}
    assert container["image"] == "vllm/vllm-openai-cpu:v0.32.0"


@BOTH
def test_the_production_stacks_values_hold_every_argument_once(name: str) -> None:
    chosen = SUBJECTS[name]
    spec = _yaml("helm-values", "values.yaml", chosen)["servingEngineSpec"]
    (model,) = spec["modelSpec"]
    config = model["vllmConfig"]
    # As the chart's template writes its own keys onto the command line.
    own = {
        "enablePrefixCaching": ["--no-enable-prefix-caching"],
        "enableChunkedPrefill": ["--enable-chunked-prefill"],
        "maxModelLen": ["--max-model-len", "8192"],
        "maxNumSeqs": ["--max-num-seqs", "96"],
        "tensorParallelSize": ["--tensor-parallel-size", "2"],
        "gpuMemoryUtilization": ["--gpu-memory-utilization", "0.9"],
    }
    assert set(config) == {*own, "extraArgs"}
    assert config["enablePrefixCaching"] is False
    assert config["enableChunkedPrefill"] is True
    assert all(isinstance(word, str) for word in config["extraArgs"])
    flags = [word for words in own.values() for word in words] + list(
        map(_by_kubernetes, config["extraArgs"])
    )
    assert sorted(flags) == sorted(_meant(chosen, local=True))
    assert (model["repository"], model["tag"]) == ("vllm/vllm-openai", "v0.32.0")
    assert (model["requestGPU"], model["shmSize"]) == (2, "4Gi")
    if name == "secrets":
        assert spec["vllmApiKey"] == {"secretName": "vllm-secrets", "secretKey": "VLLM_API_KEY"}
        assert model["hf_token"] == {"secretName": "vllm-secrets", "secretKey": "HF_TOKEN"}
        referred = {one["name"] for one in model["env"] if "valueFrom" in one}
        assert referred == set(_VALUES) - {"MODELS", "HF_TOKEN", "VLLM_API_KEY"}


def test_a_length_that_helm_would_write_with_an_exponent_is_an_extra_argument() -> None:
    long = subject(changed(TRIAL, arguments={"max_model_len": 1048576}))
    (model,) = _yaml("helm-values", "values.yaml", long)["servingEngineSpec"]["modelSpec"]
    assert "maxModelLen" not in model["vllmConfig"]
    words = model["vllmConfig"]["extraArgs"]
    assert words[words.index("--max-model-len") + 1] == "1048576"


def test_names_within_the_chart_stay_below_what_a_hostname_takes() -> None:
    longest = replace(PLAIN.study, name="a-study-of-a-very-long-name-" * 4)
    name = launch_of(subject(study=longest)).name
    # The chart's own: release, model, and "engine-service" or the chart's name, with hyphens between.
    assert len(f"{name}-llm-engine-service") <= 63
    assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name)
    assert name.endswith("-17")


def test_ray_serves_engine_arguments_are_vllms_own_names() -> None:
    (application,) = _yaml("ray-serve", "serve.yaml")["applications"]
    (model,) = application["args"]["llm_configs"]
    assert model["engine_kwargs"] == dict(launch_of(PLAIN).arguments)
    assert set(model["engine_kwargs"]) <= known_names()
    assert model["accelerator_type"] == "H100"
    assert model["runtime_env"]["env_vars"]["SPACED"] == "two 'words' and \"$more\" 5%"
    assert application["import_path"] == "ray.serve.llm:build_openai_app"


def test_ray_serve_is_told_where_there_is_no_gpu() -> None:
    (application,) = _yaml("ray-serve", "serve.yaml", _on_a_cpu())["applications"]
    (model,) = application["args"]["llm_configs"]
    assert model["accelerator_config"] == {"kind": "cpu"}
    assert "accelerator_type" not in model


@BOTH
def test_a_unit_holds_the_words_that_were_measured_as_systemd_reads_them(name: str) -> None:
    chosen = SUBJECTS[name]
    launch = launch_of(chosen)
    unit = TARGETS["systemd"].files(chosen)[f"{launch.name}.service"]
    program, serve, model, *flags = _exec_words(unit)
    assert (program, serve, model) == ("/opt/vllm/bin/vllm", "serve", launch.model)
    assert flags == ["--host", "127.0.0.1", "--port", "8000", *_meant(chosen, local=False)]
    secret = f"EnvironmentFile=/etc/{launch.name}/secrets.env"
    assert (secret in unit.splitlines()) == (name == "secrets")


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30))
def test_any_word_comes_back_from_a_unit_as_it_was(text: str) -> None:
    assert _exec_words(f"ExecStart=/bin/x {systemd.word(text)} end\n") == ["/bin/x", text, "end"]


@settings(deadline=None, max_examples=50)
@given(
    st.dictionaries(
        st.sampled_from(["hf_overrides", "compilation_config", "quantization"]),
        st.recursive(
            st.text(max_size=12), lambda inner: st.dictionaries(st.text(max_size=5), inner, max_size=2)
        ),
    )
)
def test_any_argument_reaches_a_pod_as_it_was(arguments: dict[str, Json]) -> None:
    chosen = subject(changed(TRIAL, arguments=arguments))
    (container,) = _pod("kubernetes", chosen)["containers"]
    flags = [_by_kubernetes(word) for word in container["args"][5:]]
    expected = launch_of(chosen).arguments
    assert flags == list(to_flags(expected))


@BOTH
def test_systemd_itself_has_nothing_to_say_against_the_unit(tmp_path: Path, name: str) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("systemd-analyze is not installed; the tests above read the unit by another parser")
    service = f"{launch_of(SUBJECTS[name]).name}.service"
    unit = TARGETS["systemd"].files(SUBJECTS[name])[service]
    # It looks whether the program is there, and no test machine has it in /opt.
    (tmp_path / service).write_text(unit.replace("/opt/vllm/bin/vllm", "/bin/true"))
    told = subprocess.run(
        [verify, "verify", str(tmp_path / service)], capture_output=True, text=True, timeout=60
    )
    assert (told.returncode, told.stdout, told.stderr) == (0, "", "")


def _tree(value: Any, change: Any) -> Any:
    match value:
        case str():
            return change(value)
        case list():
            return [_tree(item, change) for item in value]
        case dict():
            return {key: _tree(item, change) for key, item in value.items()}
        case _:
            return value


def _pod(target: str, chosen: Subject) -> dict[str, Any]:
    if target == "kserve":
        found: dict[str, Any] = _yaml(target, "inference-service.yaml", chosen)["spec"]["predictor"]
        return found
    template: dict[str, Any] = _yaml(target, "deployment.yaml", chosen)["spec"]["template"]["spec"]
    return template


def _on_a_cpu() -> Subject:
    trial = replace(
        TRIAL,
        gpus=0,
        arguments={name: value for name, value in ARGUMENTS.items() if name != "tensor_parallel_size"},
        environment={"VLLM_CPU_KVCACHE_SPACE": "4"},
    )
    return subject(trial)


def _exec_words(unit: str) -> list[str]:
    """The words of `ExecStart=`, after systemd.syntax(7): lines joined, quotes and escapes undone, double `%`
    and `$` single again, variables filled in."""
    joined = unit.replace("\\\n", " ")
    (line,) = (line for line in joined.split("\n") if line.startswith("ExecStart="))
    text, at = line.removeprefix("ExecStart="), 0
    words: list[str] = []
    word: str | None = None
    quote: str | None = None
    escapes = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'", "s": " "}
    while at < len(text):
        letter, rest = text[at], text[at + 1 :]
        if letter == "\\":
            word, at = (word or "") + escapes[rest[0]], at + 2
        elif letter == "%" or (letter == "$" and rest.startswith("$")):
            assert rest[0] == letter, "a specifier that nobody meant"
            word, at = (word or "") + letter, at + 2
        elif letter == "$":
            name = re.match(r"\{(\w+)\}", rest)
            assert name, "an unescaped dollar"
            word, at = (word or "") + _VALUES[name[1]], at + 1 + len(name[0])
        elif letter == quote:
            quote, at = None, at + 1
        elif quote is None and letter in "\"'":
            word, quote, at = word or "", letter, at + 1
        elif quote is None and letter in " \t":
            words, word, at = words + ([] if word is None else [word]), None, at + 1
        else:
            word, at = (word or "") + letter, at + 1
    assert quote is None
    return words + ([] if word is None else [word])
