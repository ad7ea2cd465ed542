from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from autothrottle.core.exported_metrics import LOG_DROPS
from autothrottle.runtime import logs
from autothrottle.runtime.logs import JsonFormat, TextFormat, configure_logs, flush_logs, log_samples
from tests.builders import eventually
from tests.pipes import full_pipe

PADDING = "x" * 10_000
WHEN = datetime(2020, 2, 27, 22, 28, 13, 250_000, UTC).timestamp()


def record(message: str, level: int = logging.INFO, **extra: object) -> logging.LogRecord:
    made = logging.makeLogRecord(
        {
            "name": "autothrottle.planner",
            "levelno": level,
            "levelname": logging.getLevelName(level),
            "msg": message,
        }
        | extra
    )
    made.created = WHEN
    return made


class Writes(io.StringIO):
    """A stream that counts its writes."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def write(self, text: str) -> int:
        self.count += 1
        return super().write(text)

    def getvalue(self) -> str:
        """Return all lines that were logged so far."""
        flush_logs()
        return super().getvalue()


@pytest.fixture
def configured() -> Iterator[Callable[..., Writes]]:
    """Configure logs to write to memory; restore the previous configuration afterwards."""
    root, *ours = map(logging.getLogger, (None, "autothrottle", "autothrottle_client"))
    before = (root.level, [logger.level for logger in ours], list(root.handlers))

    def configure(format: str = "text", level: str = "info") -> Writes:
        stream = Writes()
        configure_logs(format, level, stream)
        return stream

    yield configure
    for handler in [handler for handler in root.handlers if handler not in before[2]]:
        handler.close()
    root.setLevel(before[0])
    for logger, level in zip(ours, before[1], strict=True):
        logger.setLevel(level)
    root.handlers[:] = before[2]


def test_a_text_line_has_the_originals_format() -> None:
    assert TextFormat().format(record("Autothrottle Running")) == "2020/02/27 22:28:13 Autothrottle Running"


@pytest.mark.parametrize("level", [logging.WARNING, logging.ERROR])
def test_a_text_line_of_a_warning_or_error_names_its_level(level: int) -> None:
    line = TextFormat().format(record("no metrics", level))
    assert line == f"2020/02/27 22:28:13 {logging.getLevelName(level)} no metrics"


def test_times_are_utc_in_any_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "XYZ-9")
    time.tzset()
    try:
        assert TextFormat().format(record("x")).startswith("2020/02/27 22:28:13 ")
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_json_line_has_exactly_time_level_logger_and_message() -> None:
    assert json.loads(JsonFormat().format(record("a\nb"))) == {
        "time": "2020-02-27T22:28:13.250Z",
        "level": "info",
        "logger": "autothrottle.planner",
        "message": "a\nb",
    }


def test_a_json_line_has_trace_and_cycle_if_the_record_has_them() -> None:
    entry = json.loads(JsonFormat().format(record("x", trace_id="abc", cycle=0)))
    assert (entry["trace_id"], entry["cycle"]) == ("abc", 0)


def test_a_json_record_with_a_traceback_is_one_line(configured: Callable[..., io.StringIO]) -> None:
    stream = configured("json")
    try:
        raise KeyError("gone")
    except KeyError:
        logging.getLogger("autothrottle.x").exception("failed")
    (line,) = stream.getvalue().splitlines()
    assert "KeyError: 'gone'" in json.loads(line)["exception"]


def test_records_below_the_level_are_not_logged(configured: Callable[..., io.StringIO]) -> None:
    stream = configured(level="warning")
    logging.getLogger("autothrottle.x").info("quiet")
    logging.getLogger("autothrottle.x").warning("loud")
    assert re.fullmatch(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d WARNING loud\n", stream.getvalue())


def test_libraries_log_only_warnings_even_at_debug(
    configured: Callable[..., io.StringIO],
) -> None:
    stream = configured(level="debug")
    logging.getLogger("kazoo.client").info("connecting")
    logging.getLogger("kazoo.client").warning("dropped")
    logging.getLogger("autothrottle.x").debug("ours")
    logging.getLogger("autothrottle_client.x").debug("of the connection")
    lines = [line.split(" ", 2)[2] for line in stream.getvalue().splitlines()]
    assert lines == ["WARNING dropped", "ours", "of the connection"]


def test_configuring_again_replaces_the_configuration(configured: Callable[..., io.StringIO]) -> None:
    first, second = configured(), configured()
    logging.getLogger("autothrottle.x").info("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1


def test_queued_lines_are_written_in_blocks_and_in_order(configured: Callable[..., Writes]) -> None:
    """A cycle of a large cluster logs 4,000 lines; a write for each released the interpreter's lock 4,000 times."""
    stream, log = configured(), logging.getLogger("autothrottle.x")
    for number in range(4_000):
        log.info("line %d", number)
    words = [line.split(" ", 2)[2] for line in stream.getvalue().splitlines()]
    assert words == [f"line {number}" for number in range(4_000)]
    assert stream.count < 400


def dropped() -> float:
    (sample,) = log_samples()
    assert sample.metric is LOG_DROPS
    return sample.value


@pytest.mark.parametrize("format", ["text", "json"])
def test_no_thread_waits_for_the_reader_of_the_log(
    configured: Callable[..., Writes],
    format: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stalled log collector stopped the leader's loop while it kept its term, and no other planner could lead.

    Lines are queued up to a limit, then dropped and counted. One line says how many, as soon as the reader reads again.
    """
    monkeypatch.setattr(logs, "_QUEUE_CHARACTERS", 400_000)
    configured()
    with full_pipe() as (reading, writing), open(writing, "w", closefd=False) as stream:
        configure_logs(format, "info", stream)
        check_drops(reading)


def check_drops(reading: int) -> None:
    log, started = logging.getLogger("autothrottle.x"), time.monotonic()
    for number in range(50):
        log.info("line %d %s", number, PADDING)
    flush_logs(timedelta(seconds=0.2))
    flush_logs(timedelta(seconds=30))  # the second wait has no reason to end otherwise
    assert time.monotonic() - started < 5
    count = dropped()
    assert 0 < count < 50
    received = bytearray()
    reader = threading.Thread(target=lambda: received.extend(read_until(reading, b"log lines were dropped")))
    reader.start()
    reader.join(20)
    *lines, last = received.decode().lstrip("x").splitlines()
    assert len(lines) == 50 - count
    assert f"{count:.0f} log lines were dropped: the reader of the log did not accept them. Fix: check it" in last
    log.info("the next line")
    eventually(lambda: b"the next line" in os.read(reading, 4_096))


def read_until(reading: int, end: bytes) -> bytes:
    received = b""
    while end not in received or not received.endswith((b"it\n", b"}\n")):
        received += os.read(reading, 65_536)
    return received


NAMES = ["a\n2026/01/01 00:00:00 forged", "\x1b]0;title\x07\x1b[2J", "\u202etxt\u2066", "\ud800"]


@pytest.mark.parametrize("name", NAMES)
def test_a_text_line_escapes_what_could_forge_a_line_or_control_a_terminal(name: str) -> None:
    """A name in a znode printed a line of its own in the log, and a terminal carried out its escape sequences."""
    try:
        raise ValueError(name)
    except ValueError:
        trace = sys.exc_info()
    text = TextFormat().format(record("topic %s", logging.ERROR, args=(name,), exc_info=trace))
    first, *others = text.split("\n")
    escaped = name.encode("unicode_escape").decode()
    assert first == f"2020/02/27 22:28:13 ERROR topic {escaped}"
    assert others and all(line.startswith("    ") and line.isprintable() for line in others)
    assert JsonFormat().format(record("%s", args=(name,), exc_info=trace)).isprintable()


LIBRARY = """
    import os, sys, threading
    from autothrottle.runtime.logs import configure_logs, log_standard_error
    configure_logs()
    log_standard_error()
    os.write(2, b"E0000 from a library\\x1b[2J\\n")
    print("from Python", file=sys.stderr)
    threading.Thread(target=lambda: 1 / 0).start()
    raise KeyError("main")
"""


def test_standard_error_of_libraries_is_part_of_the_log() -> None:
    """gRPC's core writes to the descriptor itself, and its threads waited for the reader of the log."""
    program = [sys.executable, "-c", textwrap.dedent(LIBRARY)]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("    ")]
    assert ended.returncode == 1
    assert all(re.match(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d (WARNING|CRITICAL) ", line) for line in lines), ended.stderr
    messages = [line.split(" ", 3)[3] for line in lines]
    assert {r"E0000 from a library\x1b[2J", "from Python", "ZeroDivisionError: division by zero"} <= {*messages}
    assert "The process ends" in messages and "KeyError: 'main'" in ended.stderr
