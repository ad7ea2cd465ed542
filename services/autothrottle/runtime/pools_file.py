"""The pools file: TOML that says which topics are on which brokers.

[pools.orders]
topics = ["orders", "payments.*"]
brokers = [1001, 1002, 1003]
replication = 3
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from autothrottle.core.capacity.pools import BrokerRule, Fault, Pool, PoolMembers, Pools, membership, pool_of_brokers
from autothrottle.core.capacity.sizing import InstanceType, UsableShares
from autothrottle.core.cluster.configs import MAX_BROKER_ID
from autothrottle.core.errors import Invalid
from autothrottle.core.exported_metrics import POOLS_FILE_OK, MetricSample
from autothrottle.core.placement.cluster import PlacementCluster
from autothrottle.core.placement.plan import Optimization, Strategy
from autothrottle.core.texts import escape_unprintable
from autothrottle.core.units import parse_quantity
from autothrottle.runtime.configuration_reader import InvalidConfiguration
from autothrottle.runtime.regular_expressions import compile_pattern
from autothrottle_client.files import OLD_SECONDS, ReloadedFiles, read_toml

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", re.ASCII)

_ID = {"type": "integer", "minimum": 0, "maximum": MAX_BROKER_ID}
_TEXTS = {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1, "uniqueItems": True}
_PERCENT = {"type": "number", "exclusiveMinimum": 0, "maximum": 100}


@dataclass(frozen=True, slots=True)
class _TableKey:
    """One key of a table in the file."""

    parse: Callable[[Any], Any]
    """Raises Invalid."""
    schema: Mapping[str, Any]
    meaning: str
    required: bool = False


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(text, str) and text for text in value):
        raise Invalid(f'{value!r:.60} is not a list of texts. Fix: for example ["orders.*"]')
    return tuple(_distinct(value))


def _distinct(values: Sequence[Any]) -> Sequence[Any]:
    if len(set(values)) < len(values):
        repeated = next(value for value, count in Counter(values).items() if count > 1)
        raise Invalid(f"{repeated!r} is there twice. Fix: remove one")
    return values


def _ids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or not all(_is_integer(id, MAX_BROKER_ID) for id in value):
        raise Invalid(f"{value!r:.60} is not a list of broker ids. Fix: for example [1001, 1002]")
    return tuple(_distinct(value))


def _is_integer(value: object, at_most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= at_most


def _brokers(value: Any) -> tuple[int, ...] | BrokerRule:
    if not isinstance(value, dict):
        return _ids(value)
    if not value or not value.keys() <= {"racks", "instance_types"}:
        raise Invalid(f'{value!r:.60} is not a rule. Fix: for example {{ racks = ["a"], instance_types = ["large"] }}')
    return BrokerRule(*(frozenset(_texts(value[key]) if key in value else ()) for key in ("racks", "instance_types")))


def _integer(at_most: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        if not _is_integer(value, at_most):
            raise Invalid(f"{value!r:.60} is out of range. Fix: an integer from 0 to {at_most}")
        return int(value)

    return parse


def _number(above: float, at_most: float, factor: float = 1.0) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not above < value <= at_most:
            least = f"above {above:g}" if above >= 0 else "from 0"
            raise Invalid(f"{value!r:.60} is out of range. Fix: a number {least}, at most {at_most:g}")
        return value * factor

    return parse


def _choice(kind: type[Strategy] | type[Optimization], *values: str) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        if value not in values:
            raise Invalid(f"{value!r:.60} is unknown. Fix: {' or '.join(map(repr, values))}")
        return kind(value)

    return parse


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Invalid(f"{value!r:.60} is not a text. Fix: put it into quotes")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Invalid(f"{value!r:.60} is neither true nor false. Fix: true or false, without quotes")
    return value


def _limits(value: Any) -> UsableShares:
    names = ("storage", "network_in", "network_out")
    if not isinstance(value, dict) or not value.keys() <= {*names}:
        raise Invalid(f"{value!r:.60} has other keys than {', '.join(names)}. Fix: {{ storage = 80 }}, in percent")
    shares: dict[str, Any] = {name: _number(0, 100, 0.01)(share) for name, share in value.items()}
    return UsableShares(**shares)


def _quantity(per_second: bool) -> Callable[[Any], float]:
    return lambda value: parse_quantity(_text(value), per_second)


_POOL: Mapping[str, _TableKey] = {
    "topics": _TableKey(_texts, _TEXTS, "Topic names, or regular expressions that match whole names", required=True),
    "topics_exclude": _TableKey(_texts, _TEXTS, "Topics to leave out"),
    "brokers": _TableKey(
        _brokers,
        {
            "oneOf": [
                {"type": "array", "items": _ID, "minItems": 1, "uniqueItems": True},
                {
                    "type": "object",
                    "properties": {"racks": _TEXTS, "instance_types": _TEXTS},
                    "minProperties": 1,
                    "additionalProperties": False,
                },
            ]
        },
        "Broker ids, or a rule on their racks and instance types",
        required=True,
    ),
    "replication": _TableKey(
        _integer(100), {"type": "integer", "minimum": 0, "maximum": 100}, "Replicas of each partition; 0: as they are"
    ),
    "placement": _TableKey(
        _choice(Strategy, "count", "storage"), {"enum": ["count", "storage"]}, "What the placement makes even"
    ),
    "optimize": _TableKey(
        _choice(Optimization, "distribution", "storage"),
        {"enum": ["distribution", "storage"]},
        "Prefer more pairs of brokers that share partitions, or more even storage",
    ),
    "min_rack_ids": _TableKey(
        _integer(100),
        {"type": "integer", "minimum": 0, "maximum": 100},
        "Distinct racks that suffice for each partition; 0: all its replicas must be in different racks",
    ),
    "limits": _TableKey(
        _limits,
        {
            "type": "object",
            "properties": {"storage": _PERCENT, "network_in": _PERCENT, "network_out": _PERCENT},
            "additionalProperties": False,
        },
        "Share of each resource that may be used, in percent; 80",
    ),
    "fan_out": _TableKey(
        _number(-1e-9, 10_000), {"type": "number", "minimum": 0}, "Bytes that consumers read for each byte produced; 1"
    ),
    "shared": _TableKey(_flag, {"type": "boolean"}, "Other pools may have the same brokers"),
    "owner": _TableKey(_text, {"type": "string"}, "Who is responsible for the topics"),
}

_INSTANCE: Mapping[str, _TableKey] = {
    "brokers": _TableKey(_ids, {"type": "array", "items": _ID, "minItems": 1}, "Brokers of this type", required=True),
    "storage": _TableKey(_quantity(False), {"type": "string"}, "Storage of a broker, such as 7.5TB", required=True),
    "network_in": _TableKey(
        _quantity(True), {"type": "string"}, "Inbound link of a broker, such as 10Gbit/s", required=True
    ),
    "network_out": _TableKey(_quantity(True), {"type": "string"}, "Outbound link of a broker", required=True),
}

_TABLES = {"pools": _POOL, "instances": _INSTANCE}


def read_pools(path: str) -> tuple[Pools, PoolsText]:
    """Return the pools of a file, and its text, which knows the line of each key.

    Raises:
        InvalidConfiguration: the file cannot be read, or values are invalid; it has one message for each problem.
    """
    try:
        content, text = read_toml(path)
    except OSError as error:
        raise InvalidConfiguration([f"{path} cannot be read: {error.strerror}. Fix: name a pools file"]) from None
    except ValueError as error:
        raise InvalidConfiguration([f"{path} is not TOML: {error}. Fix: correct it"]) from None
    source = PoolsText(path, text)
    problems = [
        source.problem((key,), "unknown. Fix: [pools.NAME] or [instances.NAME]")
        for key in content
        if key not in _TABLES
    ]
    values = {name: dict(_tables(content.get(name, {}), name, source, problems)) for name in _TABLES}
    if not values["pools"] and not problems:
        problems.append(f"{path} has no pool. Fix: add a table [pools.NAME] with topics and brokers")
    types: dict[int, str] = {}
    for name, instance in values["instances"].items():
        for id in instance.get("brokers", ()):
            if types.setdefault(id, name) != name:
                text = f"broker {id} is of the type {types[id]}, too. Fix: remove it from one"
                problems.append(source.problem(("instances", name, "brokers"), text))
    if problems:
        raise InvalidConfiguration(problems)
    instances = {
        name: InstanceType(
            name, values["storage"], values["network_in"], values["network_out"], disk=float("inf"), price=0.0
        )
        for name, values in values["instances"].items()
    }
    pools = tuple(Pool(name=name, **values) for name, values in values["pools"].items())
    return Pools(pools, instances, types), source


def _tables(tables: Any, kind: str, source: PoolsText, problems: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    if not isinstance(tables, dict):
        problems.append(source.problem((kind,), f"not a table. Fix: [{kind}.NAME]"))
        return
    fields = _TABLES[kind]
    for name, table in tables.items():
        if not isinstance(table, dict):
            problems.append(source.problem((kind, name), f"not a table. Fix: [{kind}.{name}]"))
            continue
        if not _NAME.fullmatch(name):
            problems.append(
                source.problem((kind, name), "not a name of letters, digits, `.`, `_` and `-`. Fix: rename it")
            )
        values = {}
        for key, value in table.items():
            if key not in fields:
                problems.append(source.problem((kind, name, key), f"unknown. Fix: one of {', '.join(fields)}"))
                continue
            try:
                values[key] = fields[key].parse(value)
            except Invalid as error:
                problems.append(source.problem((kind, name, key), str(error)))
        absent = [key for key, table_key in fields.items() if table_key.required and key not in table]
        problems += [source.problem((kind, name), f"{key} is absent. Fix: {fields[key].meaning}") for key in absent]
        yield name, values


@dataclass(frozen=True)
class PoolsText:
    """The text of a pools file: where its keys are. The class has no slots, so that `_lines` is computed once."""

    path: str
    text: str

    def fault(self, fault: Fault) -> str:
        """Return the message of a fault, with its line."""
        return self.problem(("pools", fault.pool, fault.key), fault.text)

    def problem(self, keys: Sequence[str], text: str) -> str:
        """Return a message about a key, with its line."""
        return escape_unprintable(f"{self.path}, line {self._line(keys)}, {'.'.join(keys)}: {text}")

    def _line(self, keys: Sequence[str]) -> int:
        """Return the first line of the longest prefix of the keys that the text has; 1: it has none."""
        prefixes = (tuple(keys[:length]) for length in range(len(keys), 0, -1))
        return next((self._lines[prefix] for prefix in prefixes if prefix in self._lines), 1)

    @cached_property
    def _lines(self) -> Mapping[tuple[str, ...], int]:
        """Keys, and each of their prefixes -> the first line with them."""
        table: list[str] = []
        lines: dict[tuple[str, ...], int] = {}
        for number, line in enumerate(self.text.splitlines(), 1):
            key, equals, _ = line.partition("=")
            if header := _HEADER.match(line):
                path = table = _dotted(header[1])
            elif equals and key.strip() and not {*"#[]"} & {*key}:
                path = [*table, *_dotted(key)]
            else:
                continue
            for length in range(1, len(path) + 1):
                lines.setdefault(tuple(path[:length]), number)
        return lines


_HEADER = re.compile(r"\s*\[\[?([^\[\]]+)\]")


def _dotted(text: str) -> list[str]:
    return [part.strip().strip("\"'") for part in re.findall(r"\"[^\"]*\"|'[^']*'|[^.]+", text)]


def members_of(pools: Pools, source: PoolsText, cluster: PlacementCluster) -> PoolMembers:
    """Return the topics and brokers of each pool in a cluster.

    Raises:
        InvalidConfiguration: the pools contradict each other or the cluster; it has one message for each fault.
    """
    members = membership(pools, {entry.topic for entry in cluster.partitions}, cluster.brokers, compile_pattern)
    if members.faults:
        raise InvalidConfiguration([source.fault(fault) for fault in members.faults])
    return members


class FollowedPools:
    """The pools of a file that may change while the process runs. Thread-safe.

    While the changed file is faulty, the last good one counts.
    """

    def __init__(self, path: str) -> None:
        """Read the file.

        Raises:
            Invalid: it is faulty.
        """
        self._files = ReloadedFiles((path,), lambda: _read_followed(path), Invalid)

    def follow(self, stop: threading.Event) -> None:
        """Let a thread read the file until `stop` is set, so that no cycle waits for a mount that hangs."""
        self._files.follow(stop)

    def read_again(self) -> None:
        """Let the thread read the file now."""
        self._files.request_check()

    def current(self) -> tuple[Pools, PoolsText]:
        """Return the pools, and the text of their file."""
        pools, source, _ = self._files.current()[0]
        return pools, source

    def broker_pools(self) -> Mapping[int, str]:
        """Return broker id -> the only pool that it is in, see `pool_of_brokers`."""
        return self._files.current()[0][2]

    @property
    def problem(self) -> str:
        """What is wrong with the file since its last change; "": nothing."""
        files = self._files
        if files.problem or files.age_seconds < OLD_SECONDS:
            return files.problem
        return f"it could not be read since {files.last_reading:%Y-%m-%dT%H:%M:%SZ}. Fix: check its disk or mount"

    def samples(self) -> Iterator[MetricSample]:
        """Return whether the current file is in use."""
        self._files.current()
        yield POOLS_FILE_OK.sample(not self.problem)


def _read_followed(path: str) -> tuple[Pools, PoolsText, Mapping[int, str]]:
    try:
        pools, source = read_pools(path)
    except InvalidConfiguration as error:
        raise Invalid(f"Pools file: {'; '.join(error.problems)}") from None
    return pools, source, pool_of_brokers(pools)


def schema() -> Mapping[str, Any]:
    """Return the JSON schema of the file, for editors."""
    tables = {
        kind: {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "properties": {name: {**key.schema, "description": key.meaning} for name, key in fields.items()},
                "required": [name for name, key in fields.items() if key.required],
                "additionalProperties": False,
            },
        }
        for kind, fields in _TABLES.items()
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Pools of topics and brokers",
        "type": "object",
        "properties": tables,
        "required": ["pools"],
        "additionalProperties": False,
    }


def format_pools(pools: Sequence[Pool], comments: Sequence[str] = ()) -> str:
    """Format pools as a file; values that are defaults are left out."""
    lines = [f"# {escape_unprintable(comment)}" for comment in comments]
    for pool in pools:
        if isinstance(pool.brokers, BrokerRule):
            raise TypeError("a pool with a rule has no list of brokers")
        lines += [
            "",
            f"[pools.{_key(pool.name)}]",
            f"topics = {_list(pool.topics)}",
            f"brokers = {_list(pool.brokers)}",
        ]
        for name in ("replication", "min_rack_ids", "shared"):
            if value := getattr(pool, name):
                lines.append(f"{name} = {json.dumps(value)}")
    return "\n".join(lines).lstrip("\n") + "\n"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _list(values: Sequence[Any]) -> str:
    """Return a list on one line, or on several if it is long."""
    items = [json.dumps(value) for value in values]
    line = f"[{', '.join(items)}]"
    return line if len(line) <= 100 else "[\n" + "".join(f"  {item},\n" for item in items) + "]"
