"""A space from outside runs no code and reads no file, but for what the operator allows."""

from pathlib import Path

import pytest

from cluster.node.simulation.argument_names import known_names
from search_spaces.load import parse_space, shipped_spaces, space_text
from tuner.mistakes import Mistake
from tuner.service.allow_list import MODEL_ARGUMENTS, TUNING, AllowList, check_space

NOTHING = AllowList()


def _space(text: str, model: str = "org/model") -> str:
    return f"model: {model}\nresources: {{gpus: 1}}\n{text}"


def _check(text: str, allowed: AllowList = NOTHING, model: str = "org/model") -> None:
    check_space(parse_space(_space(text, model), "space.yaml"), allowed)


def _refused(text: str, *told: str, allowed: AllowList = NOTHING, model: str = "org/model") -> None:
    with pytest.raises(Mistake) as refused:
        _check(text, allowed, model)
    for word in told:
        assert word in str(refused.value)


def test_tuning_is_open() -> None:
    _check(
        "engine: {max_model_len: 4096, dtype: bfloat16}\n"
        "parameters:\n"
        "  max_num_seqs: {int: [16, 64]}\n"
        "  speculation:\n"
        "    choices:\n"
        "      off: {}\n"
        "      draft:\n"
        "        set: {speculative_config: {method: draft_model, model: org/draft}}\n"
        "        parameters: {depth: {int: [1, 4], argument: speculative_config.num_speculative_tokens}}\n"
    )


@pytest.mark.parametrize("name", [name for name in shipped_spaces() if "smollm2" not in name])
def test_the_shipped_spaces_of_hub_models_would_pass(name: str) -> None:
    check_space(parse_space(space_text(name), name), NOTHING)


def test_every_open_argument_is_vllms_own_and_takes_no_path_url_plugin_or_class() -> None:
    known = known_names()
    for name in TUNING | MODEL_ARGUMENTS:
        assert name.partition(".")[0] in known, name
    marks = ("path", "file", "dir", "url", "uri", "endpoint", "plugin", "cls", "parser", "template", "host")
    assert not [name for name in TUNING for mark in marks if mark in name]
    assert TUNING.isdisjoint(MODEL_ARGUMENTS)


@pytest.mark.parametrize(
    "argument",
    [
        "worker_cls: mine.Worker",
        "scheduler_cls: mine.Scheduler",
        "tool_parser_plugin: /tmp/x.py",
        "io_processor_plugin: x",
        "logits_processors: [mine.Processor]",
        "middleware: [mine.Middleware]",
        "hf_config_path: /etc",
        "download_dir: /etc",
        "config: /etc/passwd",
        "chat_template: /etc/passwd",
        "allowed_local_media_path: /",
        "otlp_traces_endpoint: 'http://elsewhere'",
        "kv_transfer_config: {kv_connector_module_path: mine}",
        "additional_config: {x: 1}",
        "hf_overrides: {architectures: [Mine]}",
        "load_format: tensorizer",
        "trust_remote: true",
        "not_an_argument_yet: 1",
        'speculative_config: \'{"model": "/etc"}\'',
        "speculative_config: {code_revision: x}",
    ],
)
def test_an_argument_that_may_name_code_or_a_file_is_refused_wherever_it_stands(argument: str) -> None:
    name = argument.partition(":")[0].replace("-", "_")
    _refused(f"engine: {{{argument}}}\n", name)
    _refused(f"parameters:\n  p:\n    choices:\n      a: {{}}\n      b: {{set: {{{argument}}}}}\n", name)


def test_an_argument_under_another_parameters_name_is_refused() -> None:
    _refused("parameters:\n  p: {choices: [a, b], argument: worker_cls}\n", "worker_cls")
    _refused("parameters:\n  p: {int: [1, 4], argument: master_port}\n", "master_port")


def test_an_argument_deep_in_a_tree_of_choices_is_refused() -> None:
    _refused(
        "parameters:\n"
        "  a:\n    choices:\n      x: {}\n      y:\n        parameters:\n"
        "          b:\n            choices:\n              u: {}\n              v: {set: {worker_cls: W}}\n",
        "worker_cls",
    )


@pytest.mark.parametrize("value", ["/etc/passwd", "../x", "http://elsewhere", "a b", "x/y", "$(id)"])
def test_an_open_argument_takes_words_and_no_paths(value: str) -> None:
    _refused(f"parameters:\n  dtype: {{choices: [auto, '{value}']}}\n", "dtype")
    _refused(f"engine: {{cudagraph_capture_sizes: [1, '{value}']}}\n", "cudagraph_capture_sizes")


def test_a_way_to_speculate_that_loads_a_class_is_refused() -> None:
    _refused("engine: {speculative_config: {method: custom_class, model: org/mine}}\n", "custom_class")


def test_arguments_are_allowed_by_name_and_with_what_is_below_them() -> None:
    _check("engine: {load_format: dummy}\n", AllowList(arguments=("load_format",)))
    _check("engine: {kv_transfer_config: {kv_role: both}}\n", AllowList(arguments=("kv_transfer_config",)))
    _refused("engine: {load_format: dummy}\n", "load_format", allowed=AllowList(arguments=("load",)))


def test_environment_variables_are_allowed_by_name() -> None:
    allowed = AllowList(environment=("VLLM_CPU_KVCACHE_SPACE",))
    _check("environment: {VLLM_CPU_KVCACHE_SPACE: 4}\n", allowed)
    for text in (
        "environment: {LD_PRELOAD: x.so}\n",
        "parameters:\n  p: {choices: [a, b], environment: LD_PRELOAD}\n",
        "parameters:\n  p:\n    choices:\n      a: {}\n      b: {environment: {LD_PRELOAD: x}}\n",
    ):
        _refused(text, "LD_PRELOAD", allowed=allowed)


def test_models_on_disk_lie_in_folders_that_are_allowed(tmp_path: Path) -> None:
    models, secret = tmp_path / "models", tmp_path / "secret"
    for folder in (models / "a", secret):
        folder.mkdir(parents=True)
    (models / "link").symlink_to(secret)
    allowed = AllowList(local_models=(str(models),))
    _check("", allowed, model=str(models / "a"))
    for model in (secret, models / ".." / "secret", models / "link", tmp_path / "models-too"):
        _refused("", "local model", allowed=allowed, model=str(model))
    for text in (
        f"engine: {{tokenizer: {secret}}}\n",
        f"engine: {{speculative_config: {{model: {secret}}}}}\n",
        f"parameters:\n  p:\n    choices:\n      a: {{}}\n      b: {{model: {secret}}}\n",
        f"parameters:\n  p: {{choices: [org/a, {secret}], argument: speculative_config.model}}\n",
    ):
        _refused(text, "local model", allowed=allowed)


@pytest.mark.parametrize(
    "model", ["model", "./org/model", "../org/model", "~/model", "/model", "a/b/c", "-a/b"]
)
def test_what_is_no_hub_id_is_a_local_model(model: str) -> None:
    _refused("", "local model", model=model)


def test_a_folder_that_has_a_hub_ids_name_is_a_local_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    _refused("", "local model org/model")


def test_models_of_the_hub_may_be_held_to_a_list() -> None:
    allowed = AllowList(hub_models=("meta-llama/*", "org/one"))
    _check("", allowed, model="meta-llama/Llama-3.1-8B")
    _refused("", "org/two", allowed=allowed, model="org/two")


def test_code_of_a_models_own_is_allowed_for_all_models_of_the_space_or_not() -> None:
    allowed = AllowList(trust_remote_code=("org/model",))
    _check("trust_remote_code: true\n", allowed)
    _refused("trust_remote_code: true\n", "trust_remote_code for org/model")
    other = "trust_remote_code: true\nparameters:\n  p:\n    choices:\n      a: {}\n      b: {model: org/b}\n"
    _refused(other, "trust_remote_code for org/b", allowed=allowed)


def test_all_that_is_refused_is_told_at_once() -> None:
    _refused("engine: {worker_cls: a.B}\nenvironment: {X: 1}\n", "worker_cls", "variable X")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("argument: [x]\n", "argument"),
        ("arguments: x\n", "arguments"),
        ("local_models: [models]\n", "absolute"),
        ("arguments: [\n", "YAML"),
        ("trust_remote_code: true\n", "trust_remote_code"),
    ],
)
def test_an_operators_file_that_says_nothing_known_is_refused(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "allow.yaml"
    path.write_text(text)
    with pytest.raises(Mistake, match=told):
        AllowList.read(path)
    with pytest.raises(Mistake, match="cannot be read"):
        AllowList.read(tmp_path / "none.yaml")


def test_an_operators_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "allow.yaml"
    path.write_text(
        "local_models: [/models]\nenvironment: [A]\narguments: [load_format]\nhub_models: ['org/*']\n"
    )
    assert AllowList.read(path) == AllowList(
        local_models=("/models",), environment=("A",), arguments=("load_format",), hub_models=("org/*",)
    )
