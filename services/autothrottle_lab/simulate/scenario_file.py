"""The reader of scenario files (TOML) for `autothrottle simulate`. It checks every key and value.

`deploy/scenario.toml` explains the keys. The type to know is `ScenarioFile`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from autothrottle.core.cluster.configs import BROKER_IDS, MAX_BROKER_ID
from autothrottle.core.errors import Invalid
from autothrottle.core.traffic.capacity import MAX_CAPACITY_MEGABYTES, parse_capacity
from autothrottle.core.units import MEGABYTE
from autothrottle_client.files import read_toml
from autothrottle_lab.simulate.virtual_time import (
    BEGIN,
    EventKind,
    VirtualBroker,
    VirtualEvent,
    VirtualReassignment,
    VirtualScenario,
)
from autothrottle_lab.simulation.link import ClientTraffic, Contention, Sharing, TrafficStep

PLANNER_OPTIONS = (
    "policy",
    "static-rate",
    "interval",
    "metrics-window",
    "min-rate",
    "max-rate",
    "max-tx-rate",
    "max-rx-rate",
    "change-threshold",
    "failure-threshold",
    "pause-over-capacity",
    "schedule",
    "finish-by",
)
"""Names of the planner options that apply to a simulation."""

MOST_PARTITIONS = 5_000
"""Most partitions of a scenario file."""
SMALLEST, _MOST_MEGABYTES = 0.001, 10**9
"""Smallest and largest partition, MB."""
_MOST_CONNECTIONS = 1_000_000
_KEYS = (
    *("begin", "metrics-delay", "step", "longest", "contention", "client-connections", "fetcher-rate"),
    *("planner", "broker", "move", "event"),
)


@dataclass(frozen=True, slots=True)
class ScenarioFile:
    """The contents of a scenario file."""

    name: str
    """File name, for error messages."""
    scenario: VirtualScenario
    """All but the planner's settings."""
    planner: Mapping[str, str]
    """Option -> its text; flags, environment variables and `--config` take precedence."""
    longest: timedelta


class _Table:
    """One table of a file, without unknown keys."""

    def __init__(self, content: object, where: str, keys: Collection[str]) -> None:
        if not isinstance(content, dict):
            raise Invalid(f"{where} is {content!r}; it must be a table. Fix: see deploy/scenario.toml")
        self._content: dict[str, Any] = content
        self.where = where
        for key in content.keys() - set(keys):
            near = get_close_matches(key, keys, n=1)
            fix = f"did you mean {near[0]}?" if near else "remove it"
            raise Invalid(f"{where}: unknown key {key!r}; it must be one of {', '.join(keys)}. Fix: {fix}")

    def get(self, key: str, default: object = None) -> Any:
        return self._content.get(key, default)

    def wrong(self, key: str, value: object, range: str, example: str) -> Invalid:
        """Return the error for a value outside its range."""
        problem = f"{key} is {value!r}" if key in self._content else f"{key} is missing"
        return Invalid(f"{self.where}: {problem}; it must be {range}. Fix: {key} = {example}, for example")

    def number(
        self, key: str, unit: str, example: float, *, default: float | None = None, least: float = 0, most: float
    ) -> float:
        """Return a number in [least, most]."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise self.wrong(key, value, f"a number of {unit}, >= {least:g} and <= {most:g}", f"{example:g}")
        return float(value)

    def integer(self, key: str, unit: str, example: int, *, default: int, least: int, most: int) -> int:
        """Return an integer in [least, most]; it may be written as a float."""
        value = self.number(key, unit, example, default=default, least=least, most=most)
        if not math.isclose(value, round(value)):
            raise self.wrong(key, value, "an integer", str(example))
        return round(value)

    def broker_ids(self, key: str, example: str) -> tuple[int, ...]:
        """Return broker ids without duplicates; a single id may stand without a list."""
        value = self.get(key)
        ids = value if isinstance(value, list) else [value]
        if not ids or not all(type(b) is int and b in BROKER_IDS for b in ids) or len(set(ids)) < len(ids):
            raise self.wrong(key, value, f"a list of broker ids, each once, >= 0 and <= {MAX_BROKER_ID}", example)
        return tuple(ids)

    def tables(self, key: str, keys: Collection[str], example: str, empty: bool = False) -> list[_Table]:
        value = self.get(key, [])
        if not isinstance(value, list) or not (value or empty):
            raise self.wrong(key, value, "a list of tables", example)
        return [_Table(entry, f"{key} {number} of {self.where}", keys) for number, entry in enumerate(value, 1)]


def read_scenario(path: Path) -> ScenarioFile:
    """Return the contents of a scenario file.

    Raises:
        Invalid: the file cannot be read, or a key or value is invalid; the message has value, range and fix.
    """
    try:
        content = read_toml(path)[0]
    except OSError as error:
        raise Invalid(f"scenario {str(path)!r} cannot be read: {error.strerror}. Fix: name a TOML file") from None
    except ValueError as error:
        raise Invalid(f"scenario {str(path)!r} is not valid TOML: {error}. Fix: correct the file") from None
    top = _Table(content, path.name, _KEYS)
    brokers = _brokers(top)
    scenario = VirtualScenario(
        brokers,
        _reassignments(top, brokers),
        events=_events(top, brokers),
        sharing=_sharing(top),
        metrics_delay=timedelta(seconds=top.number("metrics-delay", "seconds", 120, default=120, most=3600)),
        traffic_waits=True,
        begin=_begin(top),
        step=timedelta(seconds=top.number("step", "seconds", 0.1, default=0.1, least=0.01, most=0.2)),
    )
    longest = timedelta(hours=top.number("longest", "hours", 24, default=24, least=0.01, most=1000))
    return ScenarioFile(path.name, scenario, _planner(top), longest)


def _begin(top: _Table) -> datetime:
    value = top.get("begin", BEGIN)
    # Measurements before this time and forecasts after it must be valid datetimes, too.
    if not isinstance(value, datetime) or value.tzinfo is None or not 1970 < value.year < 9000:
        raise top.wrong("begin", value, "a time with its zone, in the years 1971 to 8999", "2026-11-02T12:00:00Z")
    return value


def _sharing(top: _Table) -> Sharing:
    name, most = top.get("contention", Contention.PROPORTIONAL.value), _MOST_CONNECTIONS
    if name not in list(Contention):
        raise top.wrong("contention", name, f"one of {', '.join(Contention)}", '"connections"')
    count = top.integer("client-connections", "connections", 64, default=64, least=1, most=most)
    rate = None
    if top.get("fetcher-rate") is not None:
        rate = round(top.number("fetcher-rate", "MB/s", 200, least=0.001, most=MAX_CAPACITY_MEGABYTES) * MEGABYTE)
    return Sharing(Contention(name), count, rate)


def _events(top: _Table, brokers: Mapping[int, VirtualBroker]) -> list[VirtualEvent]:
    keys, example = ("at", "broker", "what"), '[{ at = 600, broker = 1003, what = "fails" }]'
    tables = [(_event(table, brokers), table) for table in top.tables("event", keys, example, empty=True)]
    down: set[int] = set()
    for event, table in sorted(tables, key=lambda pair: pair[0].at):
        if (event.kind is EventKind.RETURNS) != (event.broker_id in down):
            state = "down" if event.broker_id in down else "up"
            raise table.wrong(
                "what", event.kind.value, f"an event that is possible while the broker is {state}", _EXAMPLES[state]
            )
        down ^= {event.broker_id} if event.kind is not EventKind.LEADS else set()
    return sorted((event for event, _ in tables), key=lambda event: event.at)


_EXAMPLES = {"up": '"fails"', "down": '"returns"'}


def _event(table: _Table, brokers: Mapping[int, VirtualBroker]) -> VirtualEvent:
    at = table.number("at", "seconds since the start of the reassignment", 600, most=10**7)
    broker_id, kind = table.get("broker"), table.get("what")
    if type(broker_id) is not int or broker_id not in brokers:
        raise table.wrong("broker", broker_id, f"one of the brokers {sorted(brokers)}", str(min(brokers)))
    if kind not in list(EventKind):
        raise table.wrong("what", kind, f"one of {', '.join(EventKind)}", '"fails"')
    return VirtualEvent(timedelta(seconds=at), broker_id, EventKind(kind))


def _planner(top: _Table) -> dict[str, str]:
    table = _Table(top.get("planner", {}), f"planner of {top.where}", PLANNER_OPTIONS)
    values = {name: table.get(name) for name in PLANNER_OPTIONS if table.get(name) is not None}
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}


def _brokers(top: _Table) -> dict[int, VirtualBroker]:
    brokers: dict[int, VirtualBroker] = {}
    for table in top.tables("broker", ("id", "capacity", "traffic"), "[{ id = [1001, 1002], capacity = 100 }]"):
        capacity = table.get("capacity")
        if capacity is None:
            example = "100, or { tx = 100, rx = 80 }"
            raise table.wrong("capacity", None, f"MB/s, > 0 and <= {MAX_CAPACITY_MEGABYTES}", example)
        link = parse_capacity(json.dumps(capacity, default=str), f"{table.where}: capacity")
        for broker_id in table.broker_ids("id", "[1001, 1002]"):
            if broker_id in brokers:
                raise Invalid(f"{table.where}: duplicate broker {broker_id}. Fix: name each broker once")
            brokers[broker_id] = VirtualBroker(link, _traffic(table))
    return brokers


def _traffic(table: _Table) -> ClientTraffic:
    steps: list[TrafficStep] = []
    for step in table.tables("traffic", ("at", "tx", "rx"), "[{ at = 0, tx = 40, rx = 20 }]", empty=True):
        at = step.number("at", "seconds since the start of the reassignment", 0, default=0, most=10**7)
        outbound, inbound = (
            round(step.number(key, "MB/s", 40, default=0, most=MAX_CAPACITY_MEGABYTES) * MEGABYTE)
            for key in ("tx", "rx")
        )
        if steps and at <= steps[-1].at_seconds:
            raise step.wrong("at", at, f"later than the previous step, {steps[-1].at_seconds:g}", f"{at + 600:g}")
        steps.append(TrafficStep(at, outbound, inbound))
    return ClientTraffic(tuple(steps))


def _reassignments(top: _Table, brokers: Mapping[int, VirtualBroker]) -> list[VirtualReassignment]:
    reassignments: list[VirtualReassignment] = []
    keys = ("topic", "partitions", "megabytes", "replicas", "to", "produce")
    example = '[{ topic = "orders", megabytes = 500, replicas = [1001, 1000], to = [1001, 1006] }]'
    for table in top.tables("move", keys, example):
        reassignments += _partitions(table, brokers, reassignments)
    if len(reassignments) > MOST_PARTITIONS:
        raise Invalid(
            f"{top.where}: {len(reassignments)} partitions to reassign; the limit is {MOST_PARTITIONS}. "
            "Fix: use fewer and larger partitions"
        )
    return reassignments


def _partitions(
    table: _Table, brokers: Mapping[int, VirtualBroker], earlier: Sequence[VirtualReassignment]
) -> list[VirtualReassignment]:
    topic = table.get("topic", "moving")
    if not isinstance(topic, str) or not topic:
        raise table.wrong("topic", topic, "a name", '"orders"')
    count = table.integer("partitions", "partitions", 8, default=1, least=1, most=MOST_PARTITIONS)
    size = table.number("megabytes", "MB of each partition", 500, least=SMALLEST, most=_MOST_MEGABYTES) * MEGABYTE
    produce = round(table.number("produce", "MB/s to each", 0.5, default=0, most=MAX_CAPACITY_MEGABYTES) * MEGABYTE)
    replicas, target = table.broker_ids("replicas", "[1001, 1000]"), table.broker_ids("to", "[1001, 1006]")
    _check_replicas(table, replicas, target, brokers)
    first = sum(reassignment.topic == topic for reassignment in earlier)
    return [VirtualReassignment(topic, first + n, size, replicas, target, produce) for n in range(count)]


def _check_replicas(
    table: _Table, replicas: Sequence[int], target: Sequence[int], brokers: Mapping[int, VirtualBroker]
) -> None:
    broker_ids, alive = sorted(brokers), [b for b in replicas if b in brokers]
    if not alive:
        required = f"broker ids with at least one of the brokers {broker_ids}, which leads"
        raise table.wrong("replicas", list(replicas), required, f"[{broker_ids[0]}]")
    if not set(target) <= brokers.keys() or set(target) <= set(replicas):
        new = next((b for b in broker_ids if b not in replicas), broker_ids[0])
        required = f"some of the brokers {broker_ids}, at least one of them outside the replicas {list(replicas)}"
        raise table.wrong("to", list(target), required, f"[{alive[0]}, {new}]")
