import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator

import pytest

from tuner.interrupts import STOPS, stops_in_order

STUBBORN = textwrap.dedent(
    """
    import sys, time
    from tuner import interrupts
    interrupts._SAME_S = float(sys.argv[1])
    try:
        with interrupts.stops_in_order():
            try:
                print("working", flush=True)
                time.sleep(60)
            finally:
                print("ending", flush=True)
                sys.stdin.read()
    finally:
        print("ended", flush=True)
    """
)
"""A program whose end waits for its standard input to close."""


def start(same_s: float) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", STUBBORN, str(same_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def program() -> Iterator["subprocess.Popen[str]"]:
    with start(0.0) as program:
        yield program
        program.kill()


def line(program: "subprocess.Popen[str]") -> str:
    assert program.stdout is not None
    return program.stdout.readline().strip()


@pytest.mark.parametrize("number", STOPS)
def test_the_first_stop_ends_things_in_order_and_says_how_to_quit(
    program: "subprocess.Popen[str]", number: signal.Signals
) -> None:
    assert line(program) == "working"
    program.send_signal(number)
    assert line(program) == "ending"
    out, err = program.communicate(timeout=30)
    assert out == "ended\n"
    assert err.startswith("stopping: ")
    assert "once more quits at once" in err


def test_a_second_one_quits_at_once(program: "subprocess.Popen[str]") -> None:
    assert line(program) == "working"
    program.send_signal(signal.SIGINT)
    assert line(program) == "ending"
    program.send_signal(signal.SIGINT)
    assert program.wait(30) == 130
    assert line(program) == ""  # it did not end in order


def test_one_press_that_arrives_twice_is_one() -> None:
    with start(600.0) as program:
        assert line(program) == "working"
        program.send_signal(signal.SIGINT)
        assert line(program) == "ending"
        program.send_signal(signal.SIGTERM)
        out, _ = program.communicate(timeout=30)
    assert out == "ended\n"


def test_afterwards_signals_are_as_they_were() -> None:
    before = [signal.getsignal(number) for number in STOPS]
    with pytest.raises(KeyboardInterrupt), stops_in_order():
        os.kill(os.getpid(), signal.SIGTERM)
    assert [signal.getsignal(number) for number in STOPS] == before


class Finalized:
    """Something that a stop meets while it is being finalized, where Python drops what is raised."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def test_a_stop_that_meets_a_finalizer_is_not_dropped(capfd: pytest.CaptureFixture[str]) -> None:
    reached = threading.Event()

    def work() -> None:
        Finalized()
        reached.set()  # dropped, as Python does
        threading.Event().wait(30)

    with pytest.raises(KeyboardInterrupt), stops_in_order():
        work()
    assert reached.is_set()
    err = capfd.readouterr().err
    assert err.count("stopping: ") == 1
    assert "Exception ignored" not in err
    assert "quitting" not in err


def test_what_else_is_dropped_is_told_of_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: told.append(unraisable.exc_type))

    class Broken:
        def __del__(self) -> None:
            raise ValueError

    with stops_in_order():
        Broken()
    Broken()
    assert told == [ValueError, ValueError]
