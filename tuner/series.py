"""A trial's records and samples as Parquet, one row each, list columns for what comes in lists.

Requests carry their latencies as well, so that the file can be read without this code.
"""

import typing
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from objectives.measurement import Histogram, Record, Sample

_HISTOGRAM = pa.struct(
    [
        pa.field("bounds", pa.list_(pa.float64())),
        pa.field("counts", pa.list_(pa.float64())),
        pa.field("sum", pa.float64()),
    ]
)
_ARROW: dict[object, pa.DataType] = {
    int: pa.int64(),
    int | None: pa.int64(),
    float: pa.float64(),
    float | None: pa.float64(),
    str | None: pa.string(),
    tuple[int, ...]: pa.list_(pa.int64()),
    tuple[float, ...]: pa.list_(pa.float64()),
    tuple[float, ...] | None: pa.list_(pa.float64()),
    Histogram | None: _HISTOGRAM,
}

_DERIVED = ("ttft_s", "tpot_s", "e2e_s", "lateness_s")
"""Of a Record: computed on the way out, left aside on the way in."""


def _schema(kind: type[Record] | type[Sample], derived: Sequence[str] = ()) -> pa.Schema:
    hints = typing.get_type_hints(kind)
    columns = [pa.field(field.name, _ARROW[hints[field.name]]) for field in fields(kind)]
    return pa.schema(columns + [pa.field(name, pa.float64()) for name in derived])


def _write(path: Path, rows: Sequence[Record | Sample], schema: pa.Schema) -> None:
    columns = {name: [_plain(getattr(row, name)) for row in rows] for name in schema.names}
    pq.write_table(pa.table(columns, schema=schema), path)


def _plain(value: object) -> object:
    return asdict(value) if isinstance(value, Histogram) else value


def _read(path: Path, kind: type[Record] | type[Sample]) -> list[dict[str, object]]:
    table = pq.read_table(path)
    # A file of an earlier version lacks what was not kept then; its default says so.
    kept = [field.name for field in fields(kind) if field.name in table.column_names]
    rows = table.select(kept).to_pylist()
    return [{name: _shaped(value) for name, value in row.items()} for row in rows]


def _shaped(value: object) -> object:
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, dict):
        return Histogram(bounds=tuple(value["bounds"]), counts=tuple(value["counts"]), sum=value["sum"])
    return value


def write_records(path: Path, records: Sequence[Record]) -> None:
    _write(path, records, _schema(Record, _DERIVED))


def read_records(path: Path) -> tuple[Record, ...]:
    """Raises OSError or pyarrow.ArrowInvalid where the file is not there or is no such file."""
    return tuple(Record(**row) for row in _read(path, Record))  # type: ignore[arg-type]  # one column a field


def write_samples(path: Path, samples: Sequence[Sample]) -> None:
    _write(path, samples, _schema(Sample))


def read_samples(path: Path) -> tuple[Sample, ...]:
    """Raises OSError or pyarrow.ArrowInvalid where the file is not there or is no such file."""
    return tuple(Sample(**row) for row in _read(path, Sample))  # type: ignore[arg-type]  # one column a field
