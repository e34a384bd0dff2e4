"""A long log as its beginning and its end: how the engine was set up, and what it said last."""

from pathlib import Path


def excerpt(path: Path, limit_bytes: int) -> str:
    """The text of a log, its middle cut out where it is longer than so many bytes.

    Whole lines are kept, so a secret in the text is never cut in two and missed. Empty where there is no log.
    """
    try:
        with path.open("rb") as log:
            size = log.seek(0, 2)
            log.seek(0)
            if size <= limit_bytes:
                return log.read().decode(errors="replace")
            half = limit_bytes // 2
            head = log.read(half)
            log.seek(size - half)
            tail = log.read(half)
    except FileNotFoundError:
        return ""
    head = head[: head.rfind(b"\n") + 1]
    tail = tail[tail.find(b"\n") + 1 :]
    cut = f"… {size - len(head) - len(tail)} bytes cut out …\n".encode()
    return (head + cut + tail).decode(errors="replace")
