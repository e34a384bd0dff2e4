"""BurstGPT (KDD 2025): CSV of time in seconds, model, tokens; from version 2 on elapsed time, and
sessions of conversations.

Rows with no response tokens are requests that failed when they were recorded.
"""

import math
from pathlib import Path

from cluster.traffic.formats.row import Dropped, Row, Rows
from cluster.traffic.formats.rows import csv_rows, is_csv_of
from cluster.traffic.formats.values import number, whole

COLUMNS = ("Timestamp", "Request tokens", "Response tokens")


def recognises(head: str) -> bool:
    """Whether a file that begins like this is one."""
    return is_csv_of(head, COLUMNS)


def rows(path: Path) -> Rows:
    """The file's rows."""
    for line, row in csv_rows(path, COLUMNS):
        asked, given = whole(row["Request tokens"]), whole(row["Response tokens"])
        try:
            at = float(row["Timestamp"])
        except ValueError:
            at = math.nan
        if not 0 <= at < math.inf:
            yield Dropped(line=line, reason="no time", detail=f"Timestamp is {row['Timestamp']!r}")
        elif asked is None or given is None:
            yield Dropped(line=line, reason="no length", detail="tokens must be whole numbers")
        else:
            session = row.get("Session ID") or None  # empty on requests that came through the API
            yield Row(
                line=line,
                at_s=at,
                duration_s=number(row.get("Elapsed time")),
                input_length=asked,
                output_length=given,
                session_id=session,
            )
