"""The clusters of docs/cluster.md, as far as they can be checked without one."""

import re
import shlex
import subprocess
from pathlib import Path

import click
import ray
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.scripts import scripts
from ray.scripts.symmetric_run import symmetric_run

_TEXT = (Path(__file__).resolve().parents[3] / "docs" / "cluster.md").read_text()


def _block(kind: str, word: str) -> str:
    (found,) = [b for b in re.findall(rf"```{kind}\n(.*?)```", _TEXT, re.DOTALL) if word in b]
    return str(found)


def _checked(command: click.Command, words: list[str]) -> click.Context:
    """The words as the command takes them; raises where it does not. It is not run."""
    return command.make_context("ray", words)


def test_the_launchers_file_is_what_its_schema_asks() -> None:
    cluster = prepare_config(yaml.safe_load(_block("yaml", "cluster_name")))
    validate_config(cluster)
    assert cluster["max_workers"] == 2
    for line in (*cluster["head_start_ray_commands"], *cluster["worker_start_ray_commands"]):
        program, command, *words = shlex.split(line)
        assert program == "ray"
        _checked(scripts.cli.commands[command], words)


def test_the_raycluster_asks_every_node_for_the_token_and_workers_for_gpus() -> None:
    cluster = yaml.safe_load(_block("yaml", "RayCluster"))
    assert (cluster["apiVersion"], cluster["kind"]) == ("ray.io/v1", "RayCluster")
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    containers = [group["template"]["spec"]["containers"][0] for group in groups]
    for container in containers:
        assert {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"} == {variable["name"] for variable in container["env"]}
    assert [c["resources"]["limits"].get("nvidia.com/gpu") for c in containers] == [None, "8"]
    assert cluster["spec"]["rayVersion"] == ray.__version__
    for group in groups:
        words = [f"--{name}={value}" for name, value in group["rayStartParams"].items()]
        _checked(scripts.cli.commands["start"], words)


def test_the_slurm_job_is_a_script_and_rays_command_takes_its_words() -> None:
    script = _block("bash", "SBATCH")
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    line = script.partition("srun ray symmetric-run ")[2].replace("\\\n", "")
    words = shlex.split(line)
    assert words.index("--") > 0
    number = words.index("--min-nodes") + 1
    assert words[number] == "$SLURM_JOB_NUM_NODES"
    context = _checked(symmetric_run, [*words[:number], "4", *words[number + 1 :]])
    assert (context.params["address"], context.params["min_nodes"]) == ("$head:6379", 4)
