import sys

import pytest

from cluster.node.command import engine_command, engine_environment, measuring
from cluster.order import Order
from cluster.traffic.trace import Trace
from cluster.traffic.workload import Workload
from objectives.slo import Slo
from search_spaces.values import Json


def order(
    arguments: dict[str, Json] | None = None,
    environment: dict[str, str] | None = None,
    trust_remote_code: bool = False,
) -> Order:
    return Order(
        study="s",
        number=0,
        model="org/model",
        arguments=arguments or {},
        environment=environment or {},
        workload=Workload(trace=Trace(requests=())),
        slo=Slo(),
        trust_remote_code=trust_remote_code,
    )


def test_the_command_is_the_module_our_own_settings_and_the_configs() -> None:
    asked: dict[str, Json] = {"enable_prefix_caching": False, "speculative_config": {"method": "ngram"}}
    assert engine_command(order(asked), port=81, served_name="n", version=None) == (
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", "org/model"),
        *("--host", "127.0.0.1", "--port", "81", "--served-model-name", "n"),
        *("--no-enable-prefix-caching", "--speculative-config", '{"method": "ngram"}'),
    )


def test_code_from_a_model_is_trusted_only_where_the_order_says_so() -> None:
    told = [
        "--trust-remote-code"
        in engine_command(order(trust_remote_code=trust), port=1, served_name="n", version=None)
        for trust in (True, False)
    ]
    assert told == [True, False]


def test_measuring_asks_an_engine_only_for_what_its_version_has() -> None:
    details, work, times = "enable_prompt_tokens_details", "enable_mfu_metrics", "enable_per_request_metrics"
    assert list(measuring("0.32.0", {})) == [details, work, times]
    assert list(measuring("0.25.0", {})) == [details, work]
    assert list(measuring("0.17.0rc1+cu129", {})) == [details]
    assert list(measuring("0.8.4", {})) == []
    assert list(measuring(None, {})) == []


@pytest.mark.parametrize(
    ("asked", "version", "told"),
    [
        ({"speculative_config": {"method": "ngram"}}, "0.32.0", True),
        ({"spec_method": "ngram", "spec_tokens": 3}, "0.32.0", True),
        ({"speculative_config": {"method": "ngram"}}, "0.28.1", False),
        ({"speculative_config": None}, "0.32.0", False),  # vLLM refuses it without speculation
        ({}, "0.32.0", False),
    ],
)
def test_acceptance_of_each_request_is_asked_for_only_where_there_can_be_any(
    asked: dict[str, Json], version: str, told: bool
) -> None:
    command = engine_command(order(asked), port=1, served_name="n", version=version)
    assert ("--per-request-spec-decode-metrics" in command) is told


def test_the_config_has_the_last_word_on_what_the_engine_tells() -> None:
    asked: dict[str, Json] = {
        "speculative_config": {"method": "ngram"},
        "per_request_spec_decode_metrics": "detailed",
        "enable_per_request_metrics": False,
    }
    command = engine_command(order(asked), port=1, served_name="n", version="0.32.0")
    at = command.index("--per-request-spec-decode-metrics")
    assert command[at + 1] == "detailed"
    assert command.count("--per-request-spec-decode-metrics") == 1
    assert "--no-enable-per-request-metrics" in command
    assert "--enable-per-request-metrics" not in command


def test_a_config_may_refuse_to_be_measured_so() -> None:
    command = engine_command(order({"enable_mfu_metrics": False}), port=1, served_name="n", version="0.32.0")
    assert "--no-enable-mfu-metrics" in command
    assert "--enable-mfu-metrics" not in command


def test_rays_own_variables_do_not_reach_the_engine() -> None:
    inherited = {"RAY_JOB_ID": "1", "OMP_NUM_THREADS": "1", "PATH": "/bin", "CUDA_VISIBLE_DEVICES": "3"}
    found = engine_environment(order().environment, inherited)
    assert "RAY_JOB_ID" not in found
    assert "OMP_NUM_THREADS" not in found
    assert (found["PATH"], found["CUDA_VISIBLE_DEVICES"]) == ("/bin", "3")


def test_threads_that_the_user_set_reach_it_and_the_orders_own_come_last() -> None:
    assert engine_environment(order().environment, {"OMP_NUM_THREADS": "4"})["OMP_NUM_THREADS"] == "4"
    found = engine_environment(
        order(environment={"OMP_NUM_THREADS": "2"}).environment, {"RAY_X": "1", "OMP_NUM_THREADS": "1"}
    )
    assert found["OMP_NUM_THREADS"] == "2"


def test_the_engine_is_told_to_let_itself_be_read_back_and_to_report_to_nobody() -> None:
    found = engine_environment(order().environment, {})
    assert found["VLLM_SERVER_DEV_MODE"] == "1"
    assert found["VLLM_NO_USAGE_STATS"] == "1"


def test_engines_on_different_gpus_of_a_node_keep_what_vllm_compiles_apart() -> None:
    by_ray = {"RAY_JOB_ID": "1", "HOME": "/home/x", "VLLM_CACHE_ROOT": "/cache"}
    roots = [
        engine_environment({}, by_ray | {"CUDA_VISIBLE_DEVICES": devices})["VLLM_CACHE_ROOT"]
        for devices in ("0", "1", "0,1", "GPU-5f/1")
    ]
    assert roots == ["/cache/gpus-0", "/cache/gpus-1", "/cache/gpus-0-1", "/cache/gpus-GPU-5f-1"]
    # Alone on its node an engine keeps the user's.
    for alone in (by_ray, by_ray | {"CUDA_VISIBLE_DEVICES": ""}, {"VLLM_CACHE_ROOT": "/cache"}):
        assert engine_environment({}, alone)["VLLM_CACHE_ROOT"] == "/cache"
    named = engine_environment({"VLLM_CACHE_ROOT": "/mine"}, by_ray | {"CUDA_VISIBLE_DEVICES": "0"})
    assert named["VLLM_CACHE_ROOT"] == "/mine"
