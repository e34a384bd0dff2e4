"""The custom dataset of vLLM's own benchmark: JSON lines of `prompt` and `output_tokens`, without times."""

from pathlib import Path

from cluster.traffic.formats.row import Dropped, Row, Rows
from cluster.traffic.formats.rows import json_rows
from cluster.traffic.formats.values import whole


def recognises(head: str) -> bool:
    """Whether a file that begins like this is one."""
    first = head.partition("\n")[0]
    return '"prompt"' in first and '"output_tokens"' in first and '"timestamp"' not in first


def rows(path: Path) -> Rows:
    """The file's rows."""
    for line, record in json_rows(path):
        if isinstance(record, Dropped):
            yield record
            continue
        prompt, given = record.get("prompt"), whole(record.get("output_tokens"))
        if not isinstance(prompt, str) or not prompt:
            yield Dropped(line=line, reason="no prompt")
        elif given is None:
            yield Dropped(line=line, reason="no length", detail="output_tokens must be a whole number")
        else:
            yield Row(line=line, prompt=prompt, output_length=given)
