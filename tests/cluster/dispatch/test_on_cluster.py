"""A real cluster, a head and a smaller node, asked by drivers that are processes of their own."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cluster.dispatch.on_ray import OnRay
from cluster.node.processes import descendants, is_running
from tests.cluster.dispatch.raylets import LEAST_STORE, free_ports, node
from tests.cluster.dispatch.scripted import Scripted, order

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

_ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class _Cluster:
    address: str
    client: str
    """For Ray Client."""
    token: dict[str, str]
    """Environment of a driver that has the cluster's token."""
    no_token: dict[str, str]
    latest: Path
    """Where Ray notes which cluster was started last."""

    heads: tuple[int, ...]
    """Process ids of what started the nodes."""

    def running(self) -> set[tuple[int, int]]:
        """Ray's own daemons by id and start time; workers come and go."""
        below = (one for pid in self.heads for one in descendants(pid) if one.parent == pid)
        return {(one.pid, one.started) for one in below if is_running(one.pid, one.started)}

    def drive(self, address: str, *words: str, token: bool = True) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "tests.cluster.dispatch.driver", address, *words],
            cwd=_ROOT,
            env=self.token if token else self.no_token,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        said: dict[str, Any] = json.loads(done.stdout)  # and nothing else there
        return said


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Cluster]:
    here = tmp_path_factory.mktemp("ray")
    (here / "token").write_text("0" * 32)
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    plain |= {"HOME": str(here), "RAY_USAGE_STATS_ENABLED": "0"}
    known = plain | {"RAY_AUTH_TOKEN_PATH": str(here / "token")}
    environment = known | {"RAY_AUTH_MODE": "token"}
    port, client = free_ports(2)
    address = f"127.0.0.1:{port}"
    shared = ("--node-ip-address=127.0.0.1", f"--object-store-memory={LEAST_STORE}", "--num-gpus=0")
    # pytest's folders are too long: a socket's path holds 107 bytes.
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-")))
        first = ("--head", f"--port={port}", f"--ray-client-server-port={client}", f"--temp-dir={folder}")
        quiet = ("--include-dashboard=false", "--dashboard-agent-listen-port=0")
        one = stack.enter_context(
            node(environment, here / "head.log", *first, "--num-cpus=2", *shared, *quiet)
        )
        second = (f"--address={address}", "--num-cpus=1", "--dashboard-agent-listen-port=0")
        two = stack.enter_context(node(environment, here / "node.log", *second, *shared))
        yield _Cluster(
            address, f"ray://127.0.0.1:{client}", known, plain, folder / "ray_current_cluster", (one, two)
        )


def test_a_ray_of_our_own_neither_joins_nor_disturbs_the_one_that_runs(
    head: _Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", head.address)
    noted, running = head.latest.read_text(), head.running()
    with OnRay(Scripted()) as dispatch:
        assert dispatch.inventory.nodes == 1
        dispatch.submit(order(0))
        assert dispatch.next(60) is not None
    assert head.latest.read_text() == noted
    assert running
    assert all(is_running(*one) for one in running)


def test_vllm_on_cpus_has_a_node_to_itself_and_a_killed_worker_is_a_lost_node(head: _Cluster) -> None:
    said = head.drive(head.address, "vllm", "serve", "refuse", "die", *["say where and when"] * 4)
    served, refused, died, *told = said["outcomes"]
    assert served == ["measured", ""]
    assert refused == ["unsupported", "no such scheme"]
    assert died[0] == "lost node"
    # Nodes of two CPUs and of one: a trial each, however many the node has, and none with three.
    assert (said["nodes"], said["cpus"]) == (2, 3)
    assert (said["capacity"], said["too large"]) == (2, 0)
    stays: dict[str, list[tuple[float, float]]] = {}
    for cause, reason in told:
        assert cause == "unsupported"
        node, began, ended = reason.split()
        stays.setdefault(node, []).append((float(began), float(ended)))
    assert sorted(len(there) for there in stays.values()) == [2, 2]
    for there in stays.values():
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(there)))


def test_ray_client_takes_orders_too_and_simulated_trials_take_a_cpu_each(head: _Cluster) -> None:
    said = head.drive(head.client, "simulated", "serve")
    assert said["outcomes"] == [["measured", ""]]
    assert (said["capacity"], said["too large"]) == (3, 0)


@pytest.mark.parametrize("client", [False, True])
def test_phases_come_from_the_nodes_of_a_cluster_and_through_ray_client(
    head: _Cluster, tmp_path: Path, client: bool
) -> None:
    # The trial goes on once its driver has heard that it warms up.
    said = head.drive(head.client if client else head.address, "scripted", f"hold {tmp_path / 'heard'}")
    assert said["outcomes"] == [["measured", ""]]
    assert [text for _, _, text in said["phases"]][:3] == [
        "sent out",
        "starting the engine",
        "warming up",
    ]
    assert {number for number, _, _ in said["phases"]} == {0}
    assert all(node for _, node, _ in said["phases"])


def test_without_the_clusters_token_the_one_line_says_where_to_put_it(head: _Cluster) -> None:
    error = head.drive(head.address, "scripted", "serve", token=False)["error"]
    assert "RAY_AUTH_TOKEN" in error
    assert "\n" not in error
