"""Mooncake's JSON lines (FAST 2025), which are also a trace's own."""

from pathlib import Path

from cluster.traffic.formats.row import Dropped, Row, Rows
from cluster.traffic.formats.rows import json_rows
from cluster.traffic.request import LineFaults, from_record


def recognises(head: str) -> bool:
    """Whether a file that begins like this is one."""
    first = head.partition("\n")[0]
    return all(f'"{key}"' in first for key in ("timestamp", "input_length", "output_length"))


def rows(path: Path) -> Rows:
    """The file's rows."""
    for line, record in json_rows(path):
        if isinstance(record, Dropped):
            yield record
            continue
        try:
            request, block_tokens = from_record(record, origin_ms=0.0)
        except LineFaults as faults:
            yield Dropped(line=line, reason="not a trace's line", detail=str(faults))
            continue
        yield Row(
            line=line,
            at_s=request.arrival_s,
            input_length=request.input_length,
            output_length=request.output_length,
            hash_ids=request.hash_ids,
            duration_s=request.duration_s,
            block_tokens=block_tokens,
            session_id=request.session_id,
            prompt=request.prompt,
            messages=request.messages,
        )
