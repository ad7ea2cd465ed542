from __future__ import annotations

import io
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from autothrottle.runtime.logs import JsonFormat, TextFormat, batched_lines, configure_logs

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


def test_batched_lines_are_written_in_blocks_and_in_order(
    configured: Callable[..., Writes],
) -> None:
    stream, log = configured(), logging.getLogger("autothrottle.x")
    with batched_lines(), batched_lines():
        for number in range(1000):
            log.info("line %d", number)
        elsewhere = threading.Thread(target=log.info, args=("another thread's",))
        elsewhere.start()
        elsewhere.join()
        log.info("the last")
    log.info("after it")
    words = [line.split(" ", 2)[2] for line in stream.getvalue().splitlines()]
    ours = [*(f"line {number}" for number in range(1000)), "the last", "after it"]
    assert [word for word in words if word != "another thread's"] == ours
    assert len(words) == len(ours) + 1
    assert stream.count < 20


def test_batched_lines_are_written_despite_an_error(configured: Callable[..., io.StringIO]) -> None:
    stream = configured()
    with pytest.raises(KeyError), batched_lines():
        logging.getLogger("autothrottle.x").info("logged")
        raise KeyError
    assert stream.getvalue().endswith("logged\n")
