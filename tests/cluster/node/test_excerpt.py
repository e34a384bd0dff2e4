from pathlib import Path

import pytest

from cluster.node.excerpt import excerpt


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "engine.log"
    path.write_text("".join(f"line {number:04}\n" for number in range(1000)))  # 10 bytes a line
    return path


def test_a_short_log_is_whole(log: Path) -> None:
    assert excerpt(log, 10_000) == log.read_text()


def test_of_a_long_log_beginning_and_end_are_kept_in_whole_lines(log: Path) -> None:
    lines = excerpt(log, 105).splitlines()
    # Half of 105 is 52 bytes: five whole lines at each end, 1000 lines less 10 cut out.
    assert lines[:5] == [f"line {number:04}" for number in range(5)]
    assert lines[5] == "… 9900 bytes cut out …"
    assert lines[6:] == [f"line {number:04}" for number in range(995, 1000)]


def test_no_log_is_empty(tmp_path: Path) -> None:
    assert excerpt(tmp_path / "none", 10) == ""


def test_bytes_that_are_no_text_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    path.write_bytes(b"\xff\xfe ok\n")
    assert excerpt(path, 100).endswith(" ok\n")
