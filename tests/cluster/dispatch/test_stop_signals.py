"""SIGTERM to a process that has a Ray open, as a scheduler or the service sends it."""

import signal
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.slow

PROGRAM = textwrap.dedent(
    """
    import signal, threading
    from cluster.dispatch.on_ray import OnRay
    from tests.cluster.dispatch.scripted import Scripted

    def stop(number, frame):
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    with OnRay(Scripted("vllm")):
        try:
            print("open", flush=True)
            threading.Event().wait(60)
        except KeyboardInterrupt:
            print("in order", flush=True)
    """
)


def test_a_process_with_a_ray_open_ends_in_order_on_sigterm() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        line = program.stdout.readline()
        program.send_signal(signal.SIGTERM)
        out, err = program.communicate(timeout=60)
    assert line == "open\n", err
    assert out == "in order\n", err
    assert program.returncode == 0
    assert "SIGTERM" not in err
