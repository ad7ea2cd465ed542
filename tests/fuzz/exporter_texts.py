"""The door of exporters: the text of one broker's exporter beside that of another broker."""

from __future__ import annotations

import io
import time
from contextlib import suppress
from typing import Any, NamedTuple

from urllib3 import HTTPResponse

from autothrottle.adapters.http.client import Exchange, Failure
from autothrottle.adapters.kafka_common.broker_hosts import BrokerHosts
from autothrottle.adapters.memory import MemoryCluster
from autothrottle.adapters.scrape import ScrapedMetrics, ScrapeSettings
from autothrottle.adapters.scrape.metrics import Target
from autothrottle.core.traffic.capacity import CapacityLimits
from autothrottle.core.traffic.exporters import EXPORTERS
from autothrottle.core.traffic.loads import Capacity, Loads
from autothrottle.wire.metrics import loads_from_message, loads_to_message
from tests.fuzz import hostile
from tests.fuzz.hostile import Choices
from tests.fuzz.series import require, require_bytes, require_same

NOW = 1_793_620_800.0
SECONDS_BETWEEN = 10.0
CLEAN, ATTACKED = 1, 2
LIMITS = CapacityLimits(by_broker={CLEAN: Capacity(100, 100)})
"""The attacked broker has no capacity but the speed that its exporter reports."""

NODE = [
    "# HELP node_network_transmit_bytes_total Sent bytes.",
    "# TYPE node_network_transmit_bytes_total counter",
    {"name": "node_network_transmit_bytes_total", "labels": {"device": "eth0"}, "value": "1.5e+09", "time": ""},
    {"name": "node_network_transmit_bytes_total", "labels": {"device": "eth1"}, "value": "7", "time": ""},
    "# TYPE node_network_receive_bytes_total counter",
    {"name": "node_network_receive_bytes_total", "labels": {"device": "eth0"}, "value": "1.5e+09", "time": ""},
    "# TYPE node_network_speed_bytes gauge",
    {"name": "node_network_speed_bytes", "labels": {"device": "eth0"}, "value": "1.25e+08", "time": ""},
    {
        "name": "node_network_info",
        "labels": {"device": "eth0", "address": "3c:ec:ef:10:20:30"},
        "value": "1",
        "time": "",
    },
    {"name": "node_network_address_assign_type", "labels": {"device": "eth0"}, "value": "0", "time": ""},
    {"name": "node_network_iface_id", "labels": {"device": "eth0"}, "value": "2", "time": ""},
    {"name": "node_network_iface_link", "labels": {"device": "eth0"}, "value": "2", "time": ""},
]
STAMPED = [
    {**line, "time": "1793620795000"} if isinstance(line, dict) and "bytes_total" in str(line["name"]) else line
    for line in NODE
]
JMX = [
    "# TYPE kafka_server_brokertopicmetrics_bytesout_total untyped",
    {"name": "kafka_server_brokertopicmetrics_bytesout_total", "labels": {}, "value": "5", "time": ""},
    {"name": "kafka_server_brokertopicmetrics_replicationbytesout_total", "labels": {}, "value": "5.0", "time": ""},
    {"name": "kafka_server_brokertopicmetrics_bytesin_total", "labels": {"topic": "t"}, "value": "5.0", "time": ""},
    {"name": "kafka_server_brokertopicmetrics_bytesin_total", "labels": {}, "value": "5.0", "time": ""},
    {"name": "kafka_server_brokertopicmetrics_replicationbytesin_total", "labels": {}, "value": "5.0", "time": ""},
]
DOCUMENTS = {"node_exporter": (NODE, STAMPED), "jmx": (JMX,)}


NUMBERS = (
    *(
        "NaN",
        "+Inf",
        "-Inf",
        "nan",
        "9e18",
        "9.3e18",
        "1e308",
        "-1",
        "-0.0",
        "0",
        "5e-324",
        "1_0",
        "\u0667",
        hostile.LONG_DIGITS,
    ),
    *("1793620800000", "1793620800001", "1793620799999", "1793620810000", "1793620900000", "253402300800000", "9e99"),
    *("9223372036854775807", "9223372036854775808", "1.8e19", "-9e18", "0x7", "", "1 2 3", "1e3e", "1793620809999.5"),
)
"""Texts of values and timestamps: NaN, rates that overflow, and times around that of a scrape."""


class Attack(NamedTuple):
    """Two answers of one broker's exporter."""

    exporter: str
    first: bytes
    second: bytes
    seconds: float
    """Time between the answers."""


class ExporterTexts:
    """A source that scrapes two brokers, one of which is hostile."""

    name = "exporter texts"

    def __init__(self) -> None:
        self._now = NOW
        self._sources = {name: self._source(name) for name in DOCUMENTS}
        self._clean_targets = {name: self._clean_target(name) for name in DOCUMENTS}
        self._clean = {name: self._loads(Attack(name, b"", b"", SECONDS_BETWEEN)) for name in DOCUMENTS}

    def _source(self, exporter: str) -> ScrapedMetrics:
        settings = ScrapeSettings("http://{host}/metrics", EXPORTERS[exporter])
        source = ScrapedMetrics(settings, LIMITS, BrokerHosts(MemoryCluster()), lambda: self._now)
        source.close()  # without its thread, which would request what no server answers
        return source

    def make(self, choices: Choices) -> Attack:
        exporter = choices.of(tuple(DOCUMENTS))
        document = choices.of(DOCUMENTS[exporter])
        seconds = choices.of((SECONDS_BETWEEN, SECONDS_BETWEEN, SECONDS_BETWEEN, 0.001, 0.0, -5.0, 1e9))
        attacked = _text(document, choices)
        first, second = choices.of(
            ((text_of(document), attacked), (attacked, text_of(document, 1)), (attacked, attacked), (attacked, None))
        )
        return Attack(exporter, first, second if second is not None else _text(document, choices), seconds)

    def check(self, attack: Attack) -> None:
        loads = self._loads(attack)
        clean = self._clean[attack.exporter]
        require_same("the load of another broker", clean.brokers.get(CLEAN), loads.brokers.get(CLEAN))
        require(ATTACKED in loads.brokers or ATTACKED in loads.problems, "a broker is neither a load nor a problem")
        check_loads(loads)

    def _loads(self, attack: Attack) -> Loads:
        source = self._sources[attack.exporter]
        attacked = Target("http://b2")
        for number, text in enumerate((attack.first, attack.second)):
            self._now = NOW + number * attack.seconds
            _scrape(source, attacked, text)
        self._now = NOW + SECONDS_BETWEEN
        source._targets = {CLEAN: self._clean_targets[attack.exporter], ATTACKED: attacked}
        return source._loads()

    def _clean_target(self, exporter: str) -> Target:
        target = Target("http://b1")
        for number in range(2):
            self._now = NOW + number * SECONDS_BETWEEN
            _scrape(self._sources[exporter], target, text_of(DOCUMENTS[exporter][0], number))
        return target

    def close(self) -> None:
        """Nothing to release: the sources are closed."""


def _scrape(source: ScrapedMetrics, target: Target, text: bytes) -> None:
    call = source._call(target, {})
    object.__setattr__(call, "send", lambda: canned(text))
    try:
        Exchange(call, time.monotonic() + 60).run()
    except Failure as failure:
        target.problem = failure.reason


def canned(body: bytes, status: int = 200, headers: Any = None) -> HTTPResponse:
    """Return an unread response."""
    return HTTPResponse(io.BytesIO(body), headers or {}, status, preload_content=False)


def _text(document: Any, choices: Choices) -> bytes:
    """Return a text with hostile numbers, with any other hostile part, or with damage."""
    kind = choices.below(8)
    if kind == 7:
        return hostile.damaged(text_of(document), choices)
    if kind > 4:
        return text_of(hostile.mutated(document, choices))
    field, number = choices.of(("value", "time")), choices.of(NUMBERS)
    samples = [place for place, line in enumerate(document) if isinstance(line, dict)]
    places = set(samples if choices.one_in(3) else [choices.of(samples)])
    return text_of([{**line, field: number} if place in places else line for place, line in enumerate(document)])


def text_of(document: Any, growth: int = 0) -> bytes:
    """Return a text of Prometheus's format; `growth` is added to all values."""
    lines = document if isinstance(document, list) else [document]
    return "".join(f"{_line(line, growth)}\n" for line in lines).encode("utf-8", "surrogatepass")


def _line(line: Any, growth: int) -> str:
    if not isinstance(line, dict):
        return str(line)
    labels, value = line.get("labels", ""), line.get("value", "")
    if isinstance(labels, dict):
        labels = "{" + ",".join(f'{name}="{text}"' for name, text in labels.items()) + "}" if labels else ""
    if growth:
        with suppress(ValueError, TypeError):
            value = float(value) + growth * 1e6
    return f"{line.get('name', '')}{labels} {value} {line.get('time', '')}".rstrip(" ")


def check_loads(loads: Loads) -> None:
    """Check that loads are within their ranges and can be sent."""
    for load in loads.brokers.values():
        require_bytes("a rate", (load.outbound.rate, load.inbound.rate))
        require_bytes("a capacity", (load.capacity.outbound, load.capacity.inbound))
    message = loads_to_message(loads)
    received = loads_from_message(type(message).FromString(message.SerializeToString()))
    require_same("loads", loads.brokers, received.brokers)
    require_same("the brokers with problems", loads.problems.keys(), received.problems.keys())
