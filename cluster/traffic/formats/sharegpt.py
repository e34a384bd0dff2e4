"""ShareGPT's conversations: one JSON array of `conversations`, without times.

As in vLLM's and others' benchmarks the first exchange of each is taken, its answer giving the output
length.
"""

from pathlib import Path

from cluster.traffic.formats.row import Dropped, Row, Rows
from cluster.traffic.formats.rows import json_rows
from cluster.traffic.request import Message

_HUMAN = frozenset({"human", "user"})


def recognises(head: str) -> bool:
    """Whether a file that begins like this is one."""
    return head.lstrip().startswith("[") and '"conversations"' in head


def rows(path: Path) -> Rows:
    """The file's conversations; a row's line is its place in the array, from 1."""
    for number, conversation in json_rows(path):
        if isinstance(conversation, Dropped):
            yield conversation
            continue
        turns = conversation.get("conversations")
        if not isinstance(turns, list):
            yield Dropped(line=number, reason="no conversations")
            continue
        spoken = [(_part(turn, "from"), _part(turn, "value")) for turn in turns[:2]]
        if len(spoken) < 2 or spoken[0][0] not in _HUMAN or spoken[1][0] in _HUMAN:
            yield Dropped(line=number, reason="begins with no question and answer", bad=False)
        elif not spoken[0][1] or not spoken[1][1]:
            yield Dropped(line=number, reason="empty question or answer", bad=False)
        else:
            asked = (Message(role="user", content=spoken[0][1]),)
            yield Row(line=number, messages=asked, answer=spoken[1][1])


def _part(turn: object, key: str) -> str:
    value = turn.get(key) if isinstance(turn, dict) else None
    return value if isinstance(value, str) else ""
