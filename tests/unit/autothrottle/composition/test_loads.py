"""One log line says which metrics source is used, and what it does not see."""

from __future__ import annotations

import logging

import pytest

from autothrottle.composition.services import Composition
from autothrottle.runtime.command_line import COMMANDS
from autothrottle.runtime.configuration_reader import parse
from autothrottle.runtime.shutdown import Shutdown

KEYS = ("--api-key=k1", "--app-key=k2", "--datadog-url=http://127.0.0.1:1")
BROKERS = ("--bootstrap-servers=127.0.0.1:1", "--zk-addr=127.0.0.1:1")
SCRAPE = ("--scrape-url=http://{host}:1", *BROKERS)
PROMETHEUS = ("--prometheus-url=http://127.0.0.1:1", *BROKERS)
NO_CAPACITY = ". No capacity is given, so no broker has a load. Fix: --capacity=1000MB/s, for example"


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (
            [*BROKERS, "--capacity=1000MB/s", "--consumer-fanout=1.5"],
            "kafka. It computes loads from the growth of logs and --consumer-fanout 1.5. "
            "It does not see consumers that read old data or from followers, other traffic of the hosts, bytes that "
            "compaction removes, the capacity of links",
        ),
        (
            [*KEYS, '--cap-map={"d2":1}', "--broker-id-tag=id"],
            "datadog. It does not see loads of the last minute, hosts without the tag id, the capacity of links",
        ),
        (
            KEYS,
            "datadog. It does not see loads of the last minute, hosts without the tag broker_id, the capacity of links",
        ),
        (SCRAPE, "scrape. It does not see peaks shorter than 12 s (--metrics-window)"),
        (
            [*SCRAPE, "--broker-exporter=jmx", '--broker-cap-map={"1":1}'],
            "scrape. It does not see peaks shorter than 12 s (--metrics-window), other traffic of the hosts, protocol "
            "headers, the capacity of links",
        ),
        (PROMETHEUS, "prometheus. It does not see changes since the last scrape"),
        (
            [*PROMETHEUS, "--broker-exporter=cadvisor"],
            "prometheus. It does not see changes since the last scrape, the capacity of links",
        ),
        (["--metrics-source=none"], "none. It does not see any load"),
    ],
)
def test_a_source_logs_at_its_start_what_it_does_not_see(
    caplog: pytest.LogCaptureFixture, argv: list[str], line: str
) -> None:
    """A source without a capacity of any broker starts, as in earlier versions, and the line names the fix."""
    caplog.set_level(logging.INFO, "autothrottle.composition.loads")
    lacks_capacity = "the capacity of links" in line and not any("cap" in word for word in argv)
    with Shutdown() as stack:
        Composition(parse(argv, {}, used=COMMANDS["metrics"].options), stack).sources.load_source()
    record = next(record for record in caplog.records if record.getMessage().startswith("Metrics source: "))
    assert record.getMessage() == f"Metrics source: {line}{NO_CAPACITY if lacks_capacity else ''}"
    assert record.levelno == (logging.WARNING if lacks_capacity else logging.INFO)
