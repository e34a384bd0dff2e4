"""Azure's LLM inference traces of 2023 and 2024: CSV of time, prompt tokens, output tokens.

Source: Azure Public Dataset (Splitwise, ISCA 2024; DynamoLLM, HPCA 2025). Times have seven digits of a
second in 2023 and a zone in 2024. There are no sessions and no prefixes.
"""

from pathlib import Path

from cluster.traffic.formats.row import Dropped, Row, Rows
from cluster.traffic.formats.rows import csv_rows, is_csv_of
from cluster.traffic.formats.values import instant, whole

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def recognises(head: str) -> bool:
    """Whether a file that begins like this is one."""
    return is_csv_of(head, COLUMNS)


def rows(path: Path) -> Rows:
    """The file's rows."""
    for line, row in csv_rows(path, COLUMNS):
        at, asked, given = (
            instant(row["TIMESTAMP"]),
            whole(row["ContextTokens"]),
            whole(row["GeneratedTokens"]),
        )
        if at is None:
            yield Dropped(line=line, reason="no time", detail=f"TIMESTAMP is {row['TIMESTAMP']!r}")
        elif asked is None or given is None:
            yield Dropped(line=line, reason="no length", detail="tokens must be whole numbers")
        else:
            yield Row(line=line, at_s=at, input_length=asked, output_length=given)
