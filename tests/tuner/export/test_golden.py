"""Every target's files, byte for byte, as they were when they were last read by a person."""

import pytest

from tests.tuner.export.renew_golden import CASES, GOLDEN, golden_files


@pytest.mark.parametrize(("target", "name"), CASES)
def test_the_files_are_the_golden_ones(target: str, name: str) -> None:
    folder = GOLDEN / target / name
    written = dict(golden_files(target, name))
    assert sorted(written) == sorted(path.name for path in folder.iterdir())
    for file, text in written.items():
        assert text == (folder / file).read_text(encoding="utf-8"), f"{target}/{name}/{file}"


def test_no_golden_folder_is_left_of_a_target_that_is_no_more() -> None:
    assert {(path.parent.name, path.name) for path in GOLDEN.glob("*/*")} == set(CASES)
