"""Files as recorders leave them."""

import json
from pathlib import Path

import pytest

from cluster.traffic.formats.importing import import_trace
from cluster.traffic.trace import TraceError


def lines(path: Path, *records: object) -> Path:
    """A file of lines: text as it is, anything else as JSON."""
    path.write_text("".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in records))
    return path


def failure(path: Path, **options: object) -> str:
    """Why a file can't be imported."""
    with pytest.raises(TraceError) as caught:
        import_trace(path, **options)  # type: ignore[arg-type]  # the options' types are the test's business
    return str(caught.value)
