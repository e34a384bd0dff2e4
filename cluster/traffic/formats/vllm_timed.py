"""The timed traces of vLLM's benchmark (0.23 on), and Qwen's public ones: Mooncake's keys, other units.

Times are seconds and blocks have 16 tokens, the defaults of `vllm bench serve --dataset-name timed_trace`.
(A trace of 512-token blocks in milliseconds, which it also takes, is a Mooncake trace.) Qwen's traces say
by `chat_id` and `parent_chat_id` which request goes on from which.
"""

from pathlib import Path

import orjson

from cluster.traffic.formats.row import Dropped, Row, Rows
from cluster.traffic.formats.rows import json_rows
from cluster.traffic.formats.values import instant, whole
from cluster.traffic.request import BLOCK_TOKENS, MAX_HASH_ID

BLOCK = 16
_NO_PARENT = -1


def recognises(head: str) -> bool:
    """Whether a file that begins like this is one: its blocks fit 16 tokens, and not 512."""
    lines = head.splitlines()
    seen = [_blocks(line) for line in (lines[:-1] if len(lines) > 1 else lines)]
    fits = all(found is not None and found[1] == -(-found[0] // BLOCK) for found in seen)
    return fits and any(found is not None and found[1] != -(-found[0] // BLOCK_TOKENS) for found in seen)


def rows(path: Path) -> Rows:
    """The file's rows."""
    roots: dict[int, int] = {}
    """By chat id, the chat that its conversation began with."""
    for line, record in json_rows(path):
        if isinstance(record, Dropped):
            yield record
            continue
        value = record.get("timestamp")
        # Seconds, whatever their size: `instant` would take large ones for milliseconds.
        at = float(value) if isinstance(value, int | float) and instant(value) is not None else None
        asked, given = whole(record.get("input_length")), whole(record.get("output_length"))
        ids = record.get("hash_ids") or []
        if at is None:
            yield Dropped(line=line, reason="no time", detail=f"timestamp is {value!r:.40}")
        elif asked is None or given is None:
            yield Dropped(line=line, reason="no length", detail="lengths must be whole numbers")
        elif not isinstance(ids, list) or not all(_is_id(item) for item in ids):
            yield Dropped(line=line, reason="no blocks", detail="hash_ids must be whole numbers")
        elif ids and len(ids) != -(-asked // BLOCK):
            detail = f"{len(ids)} hash_ids for input_length {asked}"
            yield Dropped(line=line, reason="blocks that do not fit", detail=f"{detail}: blocks have {BLOCK}")
        else:
            yield Row(
                line=line,
                at_s=at,
                input_length=asked,
                output_length=given,
                hash_ids=tuple(ids),
                block_tokens=BLOCK if ids else None,
                session_id=_session(record, roots),
            )


def _session(record: dict[str, object], roots: dict[int, int]) -> str | None:
    chat, parent = record.get("chat_id"), record.get("parent_chat_id")
    if not isinstance(chat, int):
        return None
    root = roots.get(parent, chat) if isinstance(parent, int) and parent != _NO_PARENT else chat
    roots[chat] = root
    return str(root)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_HASH_ID


def _blocks(line: str) -> tuple[int, int] | None:
    """Prompt tokens and number of blocks of a line that has both and names no block size."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(record, dict) or "block_size" in record or "timestamp" not in record:
        return None
    length, ids = whole(record.get("input_length")), record.get("hash_ids")
    return (length, len(ids)) if length is not None and isinstance(ids, list) else None
