"""Converts the texts in znodes to values and back. Each parser's error says what is wrong with the text.

Kafka's formats are those of 0.10 to 3.9. The overrides' format is shared with the original program.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

import orjson

from autothrottle.core.cluster.configs import (
    BROKER_IDS,
    MAX_BROKER_ID,
    REPLICAS_KEYS,
    TOPIC_NAME,
    ConfigResource,
    LedgerEntry,
    ResourceType,
    broker_id_of,
    parse_replicas,
)
from autothrottle.core.cluster.snapshot import NO_LEADER
from autothrottle.core.codec import decode, encode, field_error, integer, text, time_of
from autothrottle.core.errors import FIELD_ERRORS, Invalid
from autothrottle.core.operators.audit import MAX_WHO, StoredAuditRecord
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.core.records import Pause, PauseMode
from autothrottle.core.traffic.broker_matching import host_of
from autothrottle.core.units import MAX_RATE, MEGABYTE

_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")
"""As Kafka writes it: ASCII digits without leading zeros."""

_TOPIC = re.compile(TOPIC_NAME)


def resource_of(kind: ResourceType, name: str) -> ConfigResource | None:
    """Parse a node's name as a config resource; None: a broker's node whose name is not a broker id."""
    if kind is ResourceType.BROKER:
        broker_id = broker_id_of(name)
        return None if broker_id is None else ConfigResource.broker(broker_id)
    return ConfigResource.topic(name)


def registered_hosts(data: bytes) -> tuple[str, ...]:
    """Return the hosts of a broker's listeners.

    Raises:
        Invalid: the registration is malformed.
    """
    what = "registration of a broker"
    node = _json_object(data, what)
    with _malformed(what, data, "restart the broker"):
        # Kafka 0.10 and later write endpoints, and a host only if a listener is PLAINTEXT.
        hosts = [host_of(text(endpoint).partition("://")[2]) for endpoint in node.get("endpoints", ())]
        return tuple(dict.fromkeys(host for host in [*hosts, optional_text(node.get("host"))] if host))


def registered_rack(data: bytes) -> str:
    """Return the rack of a broker; "": it has none.

    Raises:
        Invalid: the registration is malformed.
    """
    what = "registration of a broker"
    with _malformed(what, data, "restart the broker"):
        return optional_text(_json_object(data, what).get("rack")) or ""


@dataclass(frozen=True, slots=True)
class TopicNode:
    """A topic's assignment. The partitions of each map are ascending."""

    replicas: Mapping[int, tuple[int, ...]]
    """Partition -> broker ids."""
    adding_replicas: Mapping[int, tuple[int, ...]]
    removing_replicas: Mapping[int, tuple[int, ...]]


class StateNode(NamedTuple):
    """A partition's leader and ISR. A tuple, because a large reassignment creates 100,000 of them at once."""

    leader: int
    isr: tuple[int, ...]


_new_state = partial(tuple.__new__, StateNode)
"""Creates a state from a pair; `StateNode` itself takes three times as long."""

FORMAT_VERSION = 1
"""The format of autothrottle's own nodes, in their field `version`."""

_LEADERS = range(NO_LEADER, MAX_BROKER_ID + 1)

_broker_id = partial(integer, valid=BROKER_IDS)

_INTEGERS = frozenset({int})
_LISTS = frozenset({list})


def _json(data: bytes) -> Any:
    """Parse JSON. `json.loads` is five times slower, but also accepts NaN and other extensions of JSON."""
    try:
        return orjson.loads(data)
    except ValueError:
        return json.loads(data)


def _json_object(data: bytes, what: str) -> dict[str, Any]:
    try:
        value = _json(data)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"{what} is not valid JSON: {_excerpt(data)}; repair or remove the node") from error
    if not isinstance(value, dict):
        raise Invalid(f"{what} is not a JSON object: {_excerpt(data)}; repair or remove the node")
    return value


def own_object(data: bytes, what: str) -> dict[str, Any]:
    """Parse the JSON object of one of autothrottle's own nodes. Nodes without a format version have version 1.

    Raises:
        Invalid: the text is not a JSON object, or a later version of autothrottle wrote it in another format.
    """
    value = _json_object(data, what)
    version = value.get("version", FORMAT_VERSION)
    if type(version) is not int or version != FORMAT_VERSION:
        raise Invalid(
            f"{what} has the format version {_excerpt(repr(version).encode())}, and this program reads version "
            f"{FORMAT_VERSION}; update the program, or repair or remove the node"
        )
    return value


def _excerpt(data: bytes) -> str:
    return repr(data[:80].decode(errors="replace"))


@contextmanager
def _malformed(what: str, data: bytes, fix: str) -> Iterator[None]:
    """Turn the errors of a missing or wrong field into Invalid."""
    try:
        yield
    except (*FIELD_ERRORS, Invalid) as error:
        raise Invalid(f"{what}: {field_error(error)}, in {_excerpt(data)}; {fix}") from error


def _broker_ids(value: Any) -> tuple[int, ...]:
    if type(value) is not list:
        raise TypeError(f"{value!r} is not a list of broker ids")
    return tuple(map(_broker_id, value))


class SharedIds(dict[int, int]):
    """Cache: broker id -> the same broker id. It refuses what Kafka cannot read, when it first appears.

    Integers only: True equals 1 and would be taken for it.
    """

    def __missing__(self, broker_id: int) -> int:
        self[broker_id] = _broker_id(broker_id)
        return broker_id


class _Partitions(NamedTuple):
    """The partitions that a map of a topic's node names."""

    numbers: tuple[int, ...]
    """Ascending."""
    ascending: Callable[[Sequence[Any]], Sequence[Any]]
    """Sorts what is in the order of the names."""


@lru_cache(maxsize=32)  # most topics have the partitions 0 to n - 1, in the order of the same hash map
def _partitions(names: tuple[str, ...]) -> _Partitions:
    if not all(map(_PARTITION.fullmatch, names)):
        raise TypeError(f"{names[:20]!r} are not partitions")
    numbers = [integer(int(name), BROKER_IDS) for name in names]
    ranks = sorted(range(len(numbers)), key=numbers.__getitem__)
    if len(ranks) < 2 or ranks == list(range(len(numbers))):
        return _Partitions(tuple(numbers), tuple)
    return _Partitions(tuple(sorted(numbers)), itemgetter(*ranks))


def _replica_map(value: Any, data: bytes, shared: SharedIds) -> dict[int, tuple[int, ...]]:
    with _malformed("partitions of the topic are malformed", data, "repair the node"):
        lists = list(value.values())
        if not _LISTS.issuperset(map(type, lists)):
            raise TypeError(f"{value!r} does not map partitions to lists")
        partitions = _partitions(tuple(value))
        return dict(zip(partitions.numbers, partitions.ascending(_rows(lists, shared)), strict=True))


def _rows(lists: Sequence[Sequence[Any]], shared: SharedIds) -> list[tuple[int, ...]]:
    """Lists of broker ids as tuples whose ids are shared; works on all at once, because there may be 1,000,000."""
    ids, sizes = list(chain.from_iterable(lists)), set(map(len, lists))
    if not _INTEGERS.issuperset(map(type, ids)):
        raise TypeError("a broker id is not an integer")
    share = shared.__getitem__
    if len(sizes) == 1 and (size := sizes.pop()):
        return list(zip(*[map(share, ids)] * size, strict=True))
    return [tuple(map(share, replicas)) for replicas in lists]


def parse_topic(data: bytes, shared: SharedIds | None = None) -> TopicNode:
    """Parse a topic's assignment.

    Args:
        data: the node.
        shared: broker ids that all topics share; None: none.

    Raises:
        Invalid: a Kafka controller does not write such text.
    """
    value = _json_object(data, "the topic's assignment")
    shared = SharedIds() if shared is None else shared
    return TopicNode(
        _replica_map(value.get("partitions"), data, shared),
        _replica_map(value.get("adding_replicas") or {}, data, shared),
        _replica_map(value.get("removing_replicas") or {}, data, shared),
    )


def parse_state(data: bytes) -> StateNode:
    """Parse a partition's leader and ISR.

    Raises:
        Invalid: a Kafka controller does not write such text.
    """
    try:
        value = orjson.loads(data)
        leader, isr = value["leader"], value["isr"]
        if type(leader) is int and type(isr) is list and _INTEGERS.issuperset(map(type, isr)):
            first, last = (min(isr), max(isr)) if isr else (0, 0)
            if NO_LEADER <= leader <= MAX_BROKER_ID and first >= 0 and last <= MAX_BROKER_ID:
                return StateNode(leader, tuple(isr))
    except (ValueError, LookupError, TypeError):
        pass  # the slow path below finds out what is wrong
    value = _json_object(data, "the partition's state")
    with _malformed("the partition's state is malformed", data, "repair the node"):
        return StateNode(integer(value["leader"], _LEADERS), _broker_ids(value["isr"]))


_NUMBER = rb"(?:0|[1-9]\d{0,9})"
_KAFKA_STATE = re.compile(
    rb'^\{"controller_epoch":%b,"leader":(-1|\d+),"version":%b,"leader_epoch":%b,"isr":\[([\d,]+)\]\}$'
    % ((_NUMBER,) * 3),
    re.MULTILINE,
)
"""A partition's state as Kafka's controller writes it."""


def parse_states(data: Sequence[bytes]) -> list[StateNode] | None:
    """Parse the states of many partitions at once, twice as fast as one by one.

    Args:
        data: the nodes, at least one.

    Returns:
        The states in the same order; None: one differs from what Kafka writes, so each must be parsed by `parse_state`.
    """
    lines = b"\n".join(data)
    columns = _KAFKA_STATE.findall(lines)
    # One text per line and one match per line: a malformed text can neither hide nor take a part of its neighbour.
    if not len(columns) == len(data) == lines.count(b"\n") + 1:
        return None
    leaders, isr = zip(*columns, strict=True)
    commas = isr[0].count(b",")
    try:
        if b"]".join(isr).translate(None, b"0123456789") == b"]".join([b"," * commas] * len(isr)):
            ids = map(_id_in_state, b",".join(isr).split(b","))
            rows: Iterable[tuple[int, ...]] = zip(*[ids] * (commas + 1), strict=True)
        else:
            rows = (tuple(map(_id_in_state, row.split(b","))) for row in isr)
        return list(map(_new_state, zip(map(_id_in_state, leaders), rows, strict=True)))
    except ValueError:
        return None  # a number is not a broker id


class _IdsInStates(dict[bytes, int]):
    """Cache: text of a broker id, or of -1, in a state -> the number."""

    def __missing__(self, text: bytes) -> int:
        broker_id = NO_LEADER if text == b"-1" else broker_id_of(text.decode())
        if broker_id is None:
            raise ValueError(f"{text[:20]!r} is not a broker id")
        if len(self) >= _MAX_IDS:
            self.clear()
        self[text] = broker_id
        return broker_id


_MAX_IDS = 100_000
_id_in_state = _IdsInStates().__getitem__


def optional_text(value: Any) -> str | None:
    return None if value is None else text(value)


def parse_reassignments(data: bytes) -> dict[tuple[str, int], tuple[int, ...]]:
    """Parse the list of reassignments: (topic, partition) -> target replicas.

    Entries with an impossible topic name are omitted. Kafka ignores them too, as it ignores any missing topic.

    Raises:
        Invalid: Kafka's tools do not write such text.
    """
    value = _json_object(data, "the list of reassignments")
    with _malformed("the list of reassignments is malformed", data, "repair the node"):
        found = {
            (entry["topic"], integer(entry["partition"], BROKER_IDS)): _broker_ids(entry["replicas"])
            for entry in value["partitions"]
        }
        possible = {topic for topic, _ in found if _TOPIC.fullmatch(topic)}
    return {row: replicas for row, replicas in found.items() if row[0] in possible}


def parse_config(data: bytes) -> dict[str, str]:
    """Parse a resource's dynamic config, with all its keys.

    Raises:
        Invalid: Kafka does not write such text. The config must not be overwritten then.
    """
    value: Any = _json_object(data, "the config").get("config")
    with _malformed("the config is not a map of strings", data, "repair or remove the node"):
        return {text(key): text(setting) for key, setting in value.items()}


def format_config(config: Mapping[str, str]) -> bytes:
    """Format a resource's dynamic config."""
    return compact_json({"version": 1, "config": dict(config)})


def format_change_notification(entity_path: str) -> bytes:
    """Format a notification, which makes every broker read the config at this path again."""
    return compact_json({"version": 2, "entity_path": entity_path})


def parse_ledger_entry(data: bytes) -> LedgerEntry:
    """Parse a ledger entry.

    Raises:
        Invalid: autothrottle does not write such text.
    """
    value = own_object(data, "the ledger entry")
    with _malformed("the ledger entry is malformed", data, "repair or remove the node"):
        entry = decode(LedgerEntry, value)
        for name in REPLICAS_KEYS:
            # Without `owned`, all entries are ours, so that the values must be lists.
            if name in entry.keys and "owned" not in (record := value["keys"][name]):
                for field in ("before", "written", "intent", "late"):
                    parse_replicas(record.get(field) or "")
        return entry


def format_ledger_entry(entry: LedgerEntry) -> bytes:
    """Format a ledger entry."""
    value = encode(entry)
    for name, key in entry.keys.items():
        if key.is_released:
            intent, part = key.stored(name)
            value["keys"][name] |= {"intent": intent} | ({"owned": intent} if part else {})
    return compact_json({"version": FORMAT_VERSION, **value})


def parse_override(data: bytes, version: int) -> StoredOverride | None:
    """Parse an override; None: the node is empty because no override is set.

    The node has the rate twice: as `rate` in whole MB/s, which the original program reads, and as
    `rate_bytes_per_second`. If the original program wrote it, only `rate` exists. Without `beyond_capacity`, which the
    original and earlier versions do not write, the override applies also above the capacity of a link, as there.

    Raises:
        Invalid: the text is neither an override nor a plain number, the format of old versions.
    """
    if not data.strip():
        return None
    digits = data.strip()
    if digits.isdigit():
        # int() refuses thousands of digits, and 20 digits are already out of range.
        rate_bytes = int(digits.lstrip(b"0")[:20] or b"0") * MEGABYTE
        return StoredOverride(_rate_in_range(rate_bytes, data), version=version, beyond_capacity=True)
    value = _json_object(data, "the override")
    exact, rate = value.get("rate_bytes_per_second"), value.get("rate")
    if isinstance(exact, int) and not isinstance(exact, bool):
        rate_bytes = exact
    elif isinstance(rate, int) and not isinstance(rate, bool):
        rate_bytes = rate * MEGABYTE
    else:
        raise Invalid(f"the override has no integer rate: {_excerpt(data)}; set or remove the override")
    return StoredOverride(
        _rate_in_range(rate_bytes, data),
        value.get("autoremove") is True,
        version,
        _expire_time(value, data),
        # The original, and earlier versions, apply every rate as it is.
        value.get("beyond_capacity") is not False,
    )


def _expire_time(value: Mapping[str, Any], data: bytes) -> datetime | None:
    """When an override expires. An unreadable time is an error, so that no override stays forever by mistake."""
    if value.get("expire_time") is None:
        return None
    with _malformed("the override has no readable expire_time", data, "set or remove it"):
        return time_of(value["expire_time"])


def _rate_in_range(rate: int, data: bytes) -> int:
    if not 0 <= rate <= MAX_RATE:
        raise Invalid(f"the override's rate is negative or too large: {_excerpt(data)}; set it again")
    return rate


def format_override(override: StoredOverride) -> bytes:
    """Format an override. For the original program, its rate is also given rounded up to whole MB/s."""
    return compact_json(_override_fields(override))


def _override_fields(override: StoredOverride) -> dict[str, Any]:
    end = override.expire_time
    return {
        "rate": -(-override.rate // MEGABYTE),
        "autoremove": override.autoremove,
        "rate_bytes_per_second": override.rate,
        "beyond_capacity": override.beyond_capacity,
        **({} if end is None else {"expire_time": end.astimezone(UTC).isoformat()}),
    }


_COMPACT = json.JSONEncoder(separators=(",", ":"))


def compact_json(value: Mapping[str, Any]) -> bytes:
    """Format a value as JSON without spaces."""
    return _COMPACT.encode(value).encode()


def parse_pause(data: bytes, path: str) -> Pause:
    """Parse a pause.

    A node that cannot be parsed still counts as a pause, since its author meant to pause. It keeps the current
    throttles, and its reason names the problem.
    """
    try:
        return decode(Pause, own_object(data, path))
    except Invalid:
        return Pause(PauseMode.KEEP, reason=f"{path} cannot be parsed; pause again, or resume")


def format_pause(pause: Pause) -> bytes:
    """Format a pause."""
    return compact_json({"version": FORMAT_VERSION, **encode(pause)})


def parse_audit_record(data: bytes, number: int, time: datetime, version: int) -> StoredAuditRecord:
    """Parse an audit record.

    Args:
        data: the node's content.
        number: sequence number in the node's name.
        time: creation time of the node. An imported record has its own time.
        version: zxid of the transaction that created the node and made the recorded change.

    Raises:
        Invalid: autothrottle does not write such text.
    """
    value = own_object(data, "the audit record")
    with _malformed("the audit record is malformed", data, "remove the node"):
        before, after = value.get("before"), value.get("after")
        return decode(
            StoredAuditRecord,
            value,
            number=number,
            time=time_of(value["time"]) if "time" in value else time,
            before=None if before is None else parse_override(compact_json(before), integer(before["version"])),
            after=None if after is None else parse_override(compact_json(after), version),
        )


def format_audit_record(record: StoredAuditRecord) -> bytes:
    """Format an audit record. Its number, time and new version are not included: they come from the node itself."""
    before, after = record.before, record.after
    return compact_json(
        {
            "version": FORMAT_VERSION,
            **encode(replace(record, who=record.who[:MAX_WHO], result=record.result[:MAX_WHO])),
            "before": None if before is None else {**_override_fields(before), "version": before.version},
            "after": None if after is None else _override_fields(after),
        }
    )
