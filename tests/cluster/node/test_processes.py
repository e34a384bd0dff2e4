import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from cluster.node.processes import (
    descendants,
    is_running,
    listening_inodes,
    listens_alone,
    process,
    session_members,
)

BIND = """
import socket, sys
one = socket.socket()
one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
one.bind(("127.0.0.1", int(sys.argv[1])))
one.listen()
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A socket of this process that listens, and lets others listen on its port."""
    with socket.socket() as ours:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        ours.bind(("127.0.0.1", 0))
        ours.listen()
        yield ours


def test_this_process_is_found_with_its_parent_and_session() -> None:
    found = process(os.getpid())
    assert found is not None
    assert (found.parent, found.group, found.session) == (os.getppid(), os.getpgrp(), os.getsid(0))
    assert is_running(found.pid, found.started)
    assert not is_running(found.pid, found.started + 1)


def test_a_command_with_spaces_and_parentheses_in_its_name_is_read() -> None:
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; open('/proc/self/comm', 'w').write('a) b (c'); print(); sys.stdin.read()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        found = process(child.pid)
    assert found is not None
    assert found.parent == os.getpid()


def test_a_zombie_does_not_run() -> None:
    child = subprocess.Popen(["true"])
    found = process(child.pid)
    assert found is not None  # not collected yet, so /proc has it in any case
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_running(child.pid, found.started)
    child.wait()
    assert process(child.pid) is None


def test_descendants_are_children_and_theirs() -> None:
    with subprocess.Popen(
        ["sh", "-c", "sleep 60 & echo $!; read _; kill $!"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        assert {one.pid for one in descendants(os.getpid())} >= {child.pid, grandchild}
        assert {one.pid for one in descendants(child.pid)} == {grandchild}


def test_a_session_has_its_leader_and_its_children() -> None:
    with subprocess.Popen(
        ["sh", "-c", "sleep 60 & echo; read _; kill $!"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert len(session_members(child.pid)) == 2


def test_a_port_that_only_we_listen_on_is_ours(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    assert listens_alone(port, [os.getpid()])
    assert not listens_alone(port, [])
    assert not listens_alone(port, [os.getppid()])


def test_a_port_shared_with_another_process_is_not_ours(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    with subprocess.Popen(
        [sys.executable, "-c", BIND, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert len(listening_inodes(port)) == 2
        assert not listens_alone(port, [os.getpid()])
        assert listens_alone(port, [os.getpid(), other.pid])


def test_a_connection_to_a_port_is_no_listener(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)) as client:
        assert not listening_inodes(client.getsockname()[1])


def test_nobody_listens_on_a_closed_port(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    listener.close()
    assert listening_inodes(port) == frozenset()
    assert not listens_alone(port, [os.getpid()])
