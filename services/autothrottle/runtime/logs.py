"""Log lines: Go's format, which operators of the original grep for, or JSON, one object a line.

Times are UTC in both, whatever the machine's zone (Go's default is local time), so that the lines of several
hosts sort together. Libraries (ZooKeeper's and Kafka's clients) are heard from warnings upwards only.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from typing import TextIO

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")

CONTEXT = ("trace_id", "cycle")
"""Attributes of a record (`extra={"cycle": 7}`) that the JSON format prints when they are there."""


def configure_logs(format: str = "text", level: str = "info", stream: TextIO | None = None) -> None:
    """Send every record to one stream, standard error by default, in place of what was configured before.

    Args:
        format: "text" or "json".
        level: "debug", "info", "warning" or "error", for autothrottle's own records.
        stream: where lines go.
    """
    threshold = getattr(logging, level.upper())
    lines = _Lines(stream or sys.stderr)
    lines.setFormatter(JsonFormat() if format == "json" else TextFormat())
    root = logging.getLogger()
    for handler in [h for h in root.handlers if isinstance(h, _Lines)]:
        root.removeHandler(handler)
    root.addHandler(lines)
    root.setLevel(max(threshold, logging.WARNING))
    logging.getLogger("autothrottle").setLevel(threshold)


def add_trace_ids(trace_id: Callable[[], str | None]) -> Callable[[], None]:
    """Let every record have the trace of the thread that logs it; return what takes that back.

    To be called after `configure_logs`.
    """

    def mark(record: logging.LogRecord) -> bool:
        if not hasattr(record, "trace_id"):
            record.trace_id = trace_id()
        return True

    handlers = [handler for handler in logging.getLogger().handlers if isinstance(handler, _Lines)]
    for handler in handlers:
        handler.addFilter(mark)

    def remove() -> None:
        for handler in handlers:
            handler.removeFilter(mark)

    return remove


class TextFormat(logging.Formatter):
    """`2020/02/27 22:28:13 message`; from warnings upwards the level's name stands before the message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, followed by the traceback if there is one."""
        text = super().format(record)
        prefix = f"{record.levelname} " if record.levelno >= logging.WARNING else ""
        return f"{_time(record):%Y/%m/%d %H:%M:%S} {prefix}{text}"


class JsonFormat(logging.Formatter):
    """One object a line: time, level, logger, message; trace_id, cycle and exception when there are any."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object, without a line break in it."""
        entry: dict[str, object] = {
            "time": _time(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {key: getattr(record, key) for key in CONTEXT if getattr(record, key, None) is not None}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


@contextmanager
def together() -> Iterator[None]:
    """Let the lines that this thread logs meanwhile come out in blocks, the last one at the end.

    Each write lets go of the interpreter's lock, and among 100 clients whoever writes 4,000 lines singly gets it back
    4,000 times after somebody else.
    """
    if _held.lines is not None:
        yield
        return
    _held.lines = {}
    try:
        yield
    finally:
        held, _held.lines = _held.lines, None
        for handler, lines in held.items():
            handler.write(lines)


class _Held(threading.local):
    lines: dict[_Lines, list[str]] | None = None
    """What this thread has not written yet; None: it writes at once."""


_held = _Held()

_BLOCK_LINES = 200


class _Lines(logging.StreamHandler[TextIO]):
    """The handler that `configure_logs` put there, told apart from those of others."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or hold it back for the others of its block."""
        if _held.lines is None:
            return super().emit(record)
        try:
            lines = _held.lines.setdefault(self, [])
            lines.append(self.format(record))
        except Exception:  # as any handler's
            return self.handleError(record)
        if len(lines) >= _BLOCK_LINES:
            del _held.lines[self]
            self.write(lines)

    def write(self, lines: Sequence[str]) -> None:
        """Write lines at once; what cannot be written is lost, as the line of a record is."""
        with suppress(OSError, ValueError), self.lock or nullcontext():
            self.stream.write("".join(line + self.terminator for line in lines))
            self.flush()


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)
