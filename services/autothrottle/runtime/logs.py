"""Log lines in Go's format, which operators of the original grep for, or as JSON, one object per line.

Times are UTC in both formats, whatever the machine's time zone (Go's default is local time), so that the lines of
several hosts sort together. Libraries (ZooKeeper's and Kafka's clients) log warnings and errors only.

No thread waits for the reader of the log. Lines go into a bounded queue, and one thread writes them. While the reader
accepts nothing, further lines are dropped and counted. The text format escapes control characters, so that a name of
another party cannot forge a line or control a terminal; JSON escapes them, too.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from types import TracebackType
from typing import TextIO

from autothrottle.core.exported_metrics import LOG_DROPS, MetricSample
from autothrottle.core.texts import escape_unprintable, without_secrets

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")

CONTEXT = ("trace_id", "cycle", "audit")
"""Attributes of a record (`extra={"cycle": 7}`) that the JSON format prints if present."""


_QUEUE_CHARACTERS = 4_000_000
"""Size of the queue. A line beyond it is dropped, unless the queue is empty."""

_WRITE_CHARACTERS = 65_536
"""Lines are joined up to this size for one write."""

_COLLECT_SECONDS = 0.01
"""Lines of this time share a write. A write for each would pass the interpreter's lock to and fro."""

_DROPS_REPORT_SECONDS = 60.0
"""Time between two lines about dropped lines while the queue never empties."""

FLUSH = timedelta(seconds=1)
"""How long a process that ends waits for its last lines to be written."""

_LAST_LINE_SECONDS = 0.2

_STANDARD_ERROR = 2


def configure_logs(format: str = "text", level: str = "info", stream: TextIO | None = None) -> None:
    """Send every record to one stream. Replaces the previous configuration.

    Args:
        format: "text" or "json".
        level: "debug", "info", "warning" or "error", for autothrottle's own records.
        stream: destination; None: standard error.
    """
    # No format shows these. To determine where a line was logged takes a third of its time.
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    threshold = getattr(logging, level.upper())
    lines = _Lines(_writer(stream or sys.stderr))
    lines.setFormatter(JsonFormat() if format == "json" else TextFormat())
    root = logging.getLogger()
    for handler in _handlers():
        root.removeHandler(handler)
        handler.close()
    root.addHandler(lines)
    root.setLevel(max(threshold, logging.WARNING))
    for package in ("autothrottle", "autothrottle_client"):
        logging.getLogger(package).setLevel(threshold)


def log_standard_error() -> None:
    """Log what libraries write to standard error, from now to the end of the process.

    gRPC's core and Python's hooks for exceptions write there themselves, and would wait for its reader. They write into
    a pipe of this process instead, which never blocks them. Call it once, after `configure_logs`.
    """
    if sys.stderr is None or sys.stderr is not sys.__stderr__:
        return  # closed, or replaced by a test
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    os.dup2(writing, _STANDARD_ERROR)
    os.close(writing)
    sys.excepthook = _log_exception
    thread = threading.Thread(target=_log_lines, args=(reading,), name="standard-error", daemon=True)
    thread.start()
    atexit.register(_end_standard_error, thread)


def _log_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger("autothrottle").critical("The process ends", exc_info=(kind, error, trace))


def _end_standard_error(reader: threading.Thread) -> None:
    """Let the reader reach the end of the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), _STANDARD_ERROR)
    reader.join(FLUSH.total_seconds())


def _log_lines(reading: int) -> None:
    log, rest = logging.getLogger("stderr"), b""
    while data := os.read(reading, _WRITE_CHARACTERS):
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > _WRITE_CHARACTERS:
            lines, rest = [*lines, rest], b""
        for line in lines:
            log.warning("%s", line.decode(errors="backslashreplace"))


def flush_logs(limit: timedelta = FLUSH) -> None:
    """Wait until all lines are written, for at most `limit`; not at all if an earlier wait had no result."""
    for handler in _handlers():
        handler.wait(limit)


def log_last_line(log: logging.Logger, level: int, message: str, *arguments: object) -> None:
    """Log a line before `os._exit`, and wait for its write for at most 0.2 s, whatever blocks."""

    def write() -> None:
        log.log(level, message, *arguments)
        flush_logs()

    with suppress(RuntimeError):  # no further thread can start
        thread = threading.Thread(target=write, name="last-line", daemon=True)
        thread.start()
        thread.join(_LAST_LINE_SECONDS)


def log_samples() -> Iterator[MetricSample]:
    """Return the exported metrics of the log, without waiting."""
    yield LOG_DROPS.sample(sum(handler.dropped for handler in _handlers()))


def _handlers() -> list[_Lines]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, _Lines)]


def add_trace_ids(trace_id: Callable[[], str | None]) -> None:
    """Add the trace id of the logging thread to every record. Call it after `configure_logs`."""

    def mark(record: logging.LogRecord) -> bool:
        if not hasattr(record, "trace_id"):
            record.trace_id = trace_id()
        return True

    for handler in _handlers():
        handler.addFilter(mark)


class TextFormat(logging.Formatter):
    """`2020/02/27 22:28:13 message`; warnings and errors have the level's name before the message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, followed by the indented traceback if present: only a record begins in the first column."""
        prefix = f"{record.levelname} " if record.levelno >= logging.WARNING else ""
        lines = [f"{_second(int(record.created))} {prefix}{escape_unprintable(without_secrets(record.getMessage()))}"]
        trace = [self.formatException(record.exc_info)] if record.exc_info else []
        trace += [record.stack_info] if record.stack_info else []
        lines += (f"    {escape_unprintable(without_secrets(line))}" for text in trace for line in text.split("\n"))
        return "\n".join(lines)


class JsonFormat(logging.Formatter):
    """One object per line: time, level, logger, message; trace_id, cycle and exception if present."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object as one line."""
        at = datetime.fromtimestamp(record.created, UTC)
        entry: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": without_secrets(record.getMessage()),
        }
        entry |= {key: getattr(record, key) for key in CONTEXT if getattr(record, key, None) is not None}
        if record.exc_info:
            entry["exception"] = without_secrets(self.formatException(record.exc_info))
        return json.dumps(entry, default=str)


class _Lines(logging.Handler):
    """Queues lines for the thread that writes them; `emit` never waits for the destination."""

    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__()
        self._write = write
        self._changed = threading.Condition()
        self._queue: deque[str] = deque()
        self._queued_characters = 0
        """Including the lines that are being written."""
        self.dropped = 0
        """Number of lines that were not written."""
        self._reported_drops = 0
        self._reported_at = time.monotonic()
        self._writes = 0
        self._writes_at_timeout = -1
        self._closed = False
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record, or drop it if the queue is full."""
        try:
            line = f"{self.format(record)}\n"
        except Exception:  # as in every handler of logging
            return self.handleError(record)
        with self._changed:
            if self._queue and self._queued_characters + len(line) > _QUEUE_CHARACTERS:
                self.dropped += 1
                return
            self._queue.append(line)
            self._queued_characters += len(line)
            if len(self._queue) == 1:  # otherwise the writer has been notified
                self._changed.notify_all()

    def wait(self, limit: timedelta) -> None:
        """Wait until the queue is written; at once if the writer is stuck since an earlier wait."""
        with self._changed:
            if self._writes_at_timeout == self._writes and self._queued_characters:
                return
            if not self._changed.wait_for(lambda: not self._queued_characters, limit.total_seconds()):
                self._writes_at_timeout = self._writes

    def flush(self) -> None:
        """Wait for the last lines; `logging` calls this at the end of the process."""
        self.wait(FLUSH)

    def close(self) -> None:
        """Let the thread end after it has written the queue."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        super().close()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed)
                if not self._queue:
                    return
            time.sleep(_COLLECT_SECONDS)
            with self._changed:
                lines = self._next_lines()
            text = "".join(lines)
            is_written = self._is_written(text)
            with self._changed:
                self.dropped += 0 if is_written else len(lines)
                self._queued_characters -= len(text)
                self._writes += 1
                self._changed.notify_all()
            self._report_drops()

    def _next_lines(self) -> list[str]:
        lines = [self._queue.popleft()]
        size = len(lines[0])
        while self._queue and size + len(self._queue[0]) <= _WRITE_CHARACTERS:
            lines.append(self._queue.popleft())
            size += len(lines[-1])
        return lines

    def _is_written(self, text: str) -> bool:
        try:
            self._write(text)
        except (OSError, ValueError):  # the reader has gone, the disk is full, or a test has closed the stream
            return False
        return True

    def _report_drops(self) -> None:
        """Write how many lines were dropped, when the destination has accepted the others."""
        count, now = self.dropped - self._reported_drops, time.monotonic()
        if not count or (self._queue and now - self._reported_at < _DROPS_REPORT_SECONDS):
            return
        message = f"{count} log lines were dropped: the reader of the log did not accept them. Fix: check it"
        report = logging.LogRecord(__name__, logging.WARNING, __file__, 0, message, None, None)
        if self._is_written(f"{self.format(report)}\n"):
            self._reported_drops += count
            self._reported_at = now


def _writer(stream: TextIO | None) -> Callable[[str], None]:
    """Return a function that writes text to a stream.

    A stream with a file descriptor is not used itself: Python waits for its lock when the interpreter ends.
    """
    if stream is None:
        return lambda _: None
    try:
        descriptor = os.dup(stream.fileno())
    except (OSError, ValueError):  # a stream in memory
        return partial(print, file=stream, end="", flush=True)
    encoding = stream.encoding or "utf-8"
    return lambda text: _write_all(descriptor, text.encode(encoding, "backslashreplace"))


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:  # the process that started this one has made it non-blocking
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()


@lru_cache(maxsize=1)  # a cycle logs thousands of lines within a second
def _second(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y/%m/%d %H:%M:%S}"
