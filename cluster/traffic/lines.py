"""A file's lines with their numbers, compressed or not, and none so long that it would fill the memory."""

import gzip
import os
import zlib
from collections.abc import Iterator
from io import BufferedReader

MAX_LINE_BYTES = 64 * 2**20
"""A longer line is a fault: it is a file of another kind, and would otherwise have to fit in memory."""

READ_ERRORS = (OSError, EOFError, zlib.error)
"""What reading such a file may raise."""

_MARK = b"\xef\xbb\xbf"


def opened(path: str | os.PathLike[str]) -> BufferedReader | gzip.GzipFile:
    """The file's bytes, unpacked where its name ends in `.gz`.

    Raises:
        OSError: where it can't be opened.
    """
    name = os.fspath(path)
    if "\0" in name:
        raise OSError(None, "a file's name has no zero byte in it")
    return gzip.open(name, "rb") if name.endswith(".gz") else open(name, "rb")


def numbered(path: str | os.PathLike[str]) -> Iterator[tuple[int, bytes | None]]:
    """The file's lines, counted from 1, line ends included; None for one that is too long.

    The byte order mark with which some editors and spreadsheets begin a file is left out.

    Raises:
        OSError, EOFError, zlib.error: where the file can't be opened or read on, as in `READ_ERRORS`.
    """
    number = 0
    with opened(path) as file:
        while raw := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(raw) > MAX_LINE_BYTES:
                yield number, None
                while raw and not raw.endswith(b"\n"):
                    raw = file.readline(MAX_LINE_BYTES)
                continue
            yield number, raw.removeprefix(_MARK) if number == 1 else raw


def reason(error: Exception) -> str:
    """Why a file can't be read, in the system's words."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
