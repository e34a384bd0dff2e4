import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.traffic.formats import rows
from cluster.traffic.formats.row import Dropped
from cluster.traffic.formats.rows import json_rows
from cluster.traffic.trace import TraceError

RECORDS = [{"a": 1, "text": "x]}, {" * 5}, {"b": [1, {"c": None}]}, {"d": 12}]


@pytest.mark.parametrize("chunk", [1, 2, 7, 2**20])
@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_is_read_element_by_element_wherever_the_reads_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, indent: int | None
) -> None:
    monkeypatch.setattr(rows, "_CHUNK", chunk)
    path = tmp_path / "a.json"
    path.write_text(json.dumps(RECORDS, indent=indent))
    assert list(json_rows(path)) == list(enumerate(RECORDS, 1))
    path.with_suffix(".json.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert list(json_rows(path.with_suffix(".json.gz"))) == list(enumerate(RECORDS, 1))


@given(
    st.lists(
        st.dictionaries(st.text(max_size=3), st.text(max_size=3) | st.integers(-(2**63), 2**63), max_size=3),
        max_size=5,
    )
)
def test_arrays_and_lines_of_the_same_records_are_the_same(records: list[dict[str, object]]) -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        array, lines = Path(folder) / "a", Path(folder) / "l"
        array.write_text(json.dumps(records))
        lines.write_text("".join(json.dumps(record) + "\n" for record in records))
        of_lines = [record for _, record in json_rows(lines)]
        assert [record for _, record in json_rows(array)] == of_lines
        assert not any(
            isinstance(record, Dropped) and record.reason == "not a JSON object" for record in of_lines
        )


def test_an_array_cut_off_stops_the_import_since_nothing_after_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(RECORDS)[:-10])
    with pytest.raises(TraceError, match="not JSON: element 3 of its array"):
        list(json_rows(path))


def test_elements_that_are_no_objects_are_dropped_by_their_place(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[1, {"a": 2}, [3]]')
    first, second, third = json_rows(path)
    assert (first[1], second, third[1]) == (
        Dropped(line=1, reason="not a JSON object"),
        (2, {"a": 2}),
        Dropped(line=3, reason="not a JSON object"),
    )
