"""Log lines in Go's format, which operators of the original grep for, or as JSON, one object per line.

Times are UTC in both formats, whatever the machine's time zone (Go's default is local time), so that the lines of
several hosts sort together. Libraries (ZooKeeper's and Kafka's clients) log warnings and errors only.
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

CONTEXT = ("trace_id", "cycle", "audit")
"""Attributes of a record (`extra={"cycle": 7}`) that the JSON format prints if present."""


def configure_logs(format: str = "text", level: str = "info", stream: TextIO | None = None) -> None:
    """Send every record to one stream. Replaces the previous configuration.

    Args:
        format: "text" or "json".
        level: "debug", "info", "warning" or "error", for autothrottle's own records.
        stream: destination; None: standard error.
    """
    threshold = getattr(logging, level.upper())
    lines = _Lines(stream or sys.stderr)
    lines.setFormatter(JsonFormat() if format == "json" else TextFormat())
    root = logging.getLogger()
    for handler in [h for h in root.handlers if isinstance(h, _Lines)]:
        root.removeHandler(handler)
    root.addHandler(lines)
    root.setLevel(max(threshold, logging.WARNING))
    for package in ("autothrottle", "autothrottle_client"):
        logging.getLogger(package).setLevel(threshold)


def add_trace_ids(trace_id: Callable[[], str | None]) -> Callable[[], None]:
    """Add the trace id of the logging thread to every record; return a function that undoes this.

    Call it after `configure_logs`.
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
    """`2020/02/27 22:28:13 message`; warnings and errors have the level's name before the message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, followed by the traceback if present."""
        text = super().format(record)
        prefix = f"{record.levelname} " if record.levelno >= logging.WARNING else ""
        return f"{_time(record):%Y/%m/%d %H:%M:%S} {prefix}{text}"


class JsonFormat(logging.Formatter):
    """One object per line: time, level, logger, message; trace_id, cycle and exception if present."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object as one line."""
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
def batched_lines() -> Iterator[None]:
    """Write this thread's log lines in batches until the context ends.

    Each write releases the interpreter's lock. A thread that writes 4,000 single lines among 100 busy clients has to
    reacquire it 4,000 times.
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


class _Batch(threading.local):
    lines: dict[_Lines, list[str]] | None = None
    """Unwritten lines of this thread by handler; None: the thread writes at once."""


_held = _Batch()

_BLOCK_LINES = 200


class _Lines(logging.StreamHandler[TextIO]):
    """The handler of `configure_logs`, as a type of its own to distinguish it from foreign handlers."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or add it to the current batch."""
        if _held.lines is None:
            return super().emit(record)
        try:
            lines = _held.lines.setdefault(self, [])
            lines.append(self.format(record))
        except Exception:  # as in every handler of logging
            return self.handleError(record)
        if len(lines) >= _BLOCK_LINES:
            del _held.lines[self]
            self.write(lines)

    def write(self, lines: Sequence[str]) -> None:
        """Write lines in one call. A failed write loses them, as in the standard handler."""
        with suppress(OSError, ValueError), self.lock or nullcontext():
            self.stream.write("".join(line + self.terminator for line in lines))
            self.flush()


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)
