"""Events on disk: none lost, none damaged, none twice, whoever is killed when."""

import multiprocessing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.service.event_log import NoSuchEvent, append, read


@given(st.integers(0, 5), st.binary(max_size=50), st.integers(1, 4000))
@settings(max_examples=25)
def test_what_a_killed_writer_left_of_a_line_is_cut_off(
    tmp_path_factory: pytest.TempPathFactory, before: int, tail: bytes, times: int
) -> None:
    path = tmp_path_factory.mktemp("events") / "events.jsonl"
    for number in range(before):
        append(path, "trial_measured", {"trial": number})
    with path.open("ab") as file:
        file.write(tail.replace(b"\n", b"") * times)
    assert [event.data["trial"] for event in read(path)] == list(range(before))
    append(path, "trial_measured", {"trial": before})
    assert [event.data["trial"] for event in read(path)] == list(range(before + 1))


@given(st.lists(st.text(max_size=30), min_size=1, max_size=8))
@settings(max_examples=25)
def test_reading_on_from_any_event_gives_what_follows_it(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    path = tmp_path_factory.mktemp("events") / "events.jsonl"
    for text in texts:
        append(path, "note", {"text": text})
    whole = list(read(path))
    assert [event.data["text"] for event in whole] == texts
    for number, event in enumerate(whole):
        assert list(read(path, event.id)) == whole[number + 1 :]


@pytest.mark.parametrize("id", [1, 7, 10_000])
def test_an_id_at_which_no_event_ends_is_refused(tmp_path: Path, id: int) -> None:
    append(tmp_path / "events.jsonl", "note", {"text": "one"})
    with pytest.raises(NoSuchEvent):
        list(read(tmp_path / "events.jsonl", id))
    with pytest.raises(NoSuchEvent):
        list(read(tmp_path / "none.jsonl", id))


def _write(path: Path, writer: int) -> None:
    for number in range(20):
        append(path, "note", {"writer": writer, "number": number})


def test_several_processes_write_whole_lines_and_lose_none(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(path, writer)) for writer in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    found = [(event.data["writer"], event.data["number"]) for event in read(path)]
    assert sorted(found, key=str) == sorted(
        ((writer, number) for writer in range(3) for number in range(20)), key=str
    )
