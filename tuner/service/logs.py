"""What the service logs: one JSON object a line on standard error, for whatever gathers logs."""

import json
import logging
import sys
from datetime import UTC, datetime

_OWN = frozenset(logging.LogRecord("", 0, "", 0, "", None, None).__dict__) | {"message", "taskName"}


class JsonLines(logging.Formatter):
    """A record as JSON: time, level, logger, message, whatever was given as `extra`, and a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in record.__dict__.items() if name not in _OWN},
        }
        told.pop("color_message", None)  # uvicorn's own
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps(told, default=str)


def log_to_stderr() -> None:
    """Send what the service and its HTTP server log to standard error, as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("tuner.service", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(logging.INFO)
        logger.propagate = False
