"""The text in znodes <-> values; each parser says what is wrong with a text that it refuses.

Kafka's formats are those of 0.10 to 3.9; the overrides' format is shared with the original program.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Any, NamedTuple

import orjson

from autothrottle.core.audit import MAX_WHO, AuditAction, AuditRecord
from autothrottle.core.configs import REPLICAS_KEYS, ConfigResource, ResourceType, parse_replicas
from autothrottle.core.errors import Invalid
from autothrottle.core.ledger import LedgerEntry, LedgerKey
from autothrottle.core.loads import MEGABYTE
from autothrottle.core.overrides import MAX_RATE, Override
from autothrottle.core.pause import Pause, PauseMode
from autothrottle.core.topology import MAX_BROKER_ID, TOPIC_NAME

_BROKER_ID = re.compile(r"0|[1-9][0-9]{0,9}")
"""As Kafka writes it; other digits and leading zeros name no broker."""

_TOPIC = re.compile(TOPIC_NAME)


def broker_id_of(name: str) -> int | None:
    """Return the broker id that a node's name is; None: it is no broker id."""
    return int(name) if _BROKER_ID.fullmatch(name) and int(name) <= MAX_BROKER_ID else None


def resource_of(kind: ResourceType, name: str) -> ConfigResource | None:
    """Return the config resource that a node's name is; None for a broker's node whose name is no broker id."""
    if kind is ResourceType.BROKER:
        broker_id = broker_id_of(name)
        return None if broker_id is None else ConfigResource.broker(broker_id)
    return ConfigResource.topic(name)


@dataclass(frozen=True, slots=True)
class TopicNode:
    """A topic's assignment."""

    replicas: Mapping[int, tuple[int, ...]]
    """Partition -> broker ids."""
    adding_replicas: Mapping[int, tuple[int, ...]]
    removing_replicas: Mapping[int, tuple[int, ...]]


class StateNode(NamedTuple):
    """A partition's leader and ISR; a tuple, since 100,000 are made when a large reassignment starts."""

    leader: int
    isr: tuple[int, ...]


_INTEGERS = frozenset({int})
_LISTS = frozenset({list})


def _json(data: bytes) -> Any:
    """What a JSON text says; `json.loads` takes five times as long, and reads what is not quite JSON too."""
    try:
        return orjson.loads(data)
    except ValueError:
        return json.loads(data)


def _json_object(data: bytes, what: str) -> dict[str, Any]:
    try:
        value = _json(data)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"{what} is no JSON: {_excerpt(data)}; repair or remove the node") from error
    if not isinstance(value, dict):
        raise Invalid(f"{what} is no JSON object: {_excerpt(data)}; repair or remove the node")
    return value


def _excerpt(data: bytes) -> str:
    return repr(data[:80].decode(errors="replace"))


def _integer(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no integer")
    return value


def _broker_ids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list of broker ids")
    if _INTEGERS.issuperset(map(type, value)):
        return tuple(value)
    return tuple(_integer(b) for b in value)


def _replica_map(value: Any, data: bytes) -> dict[int, tuple[int, ...]]:
    try:
        lists = value.values()
        if _LISTS.issuperset(map(type, lists)) and _INTEGERS.issuperset(map(type, chain.from_iterable(lists))):
            return dict(zip(map(int, value), map(tuple, lists), strict=True))
        return {int(p): _broker_ids(replicas) for p, replicas in value.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise Invalid(f"partitions of the topic are malformed: {_excerpt(data)}; repair the node") from error


def parse_topic(data: bytes) -> TopicNode:
    """Return a topic's assignment.

    Raises:
        Invalid: when the text is not what a controller writes.
    """
    value = _json_object(data, "the topic's assignment")
    return TopicNode(
        _replica_map(value.get("partitions"), data),
        _replica_map(value.get("adding_replicas") or {}, data),
        _replica_map(value.get("removing_replicas") or {}, data),
    )


def parse_state(data: bytes) -> StateNode:
    """Return a partition's leader and ISR.

    Raises:
        Invalid: when the text is not what a controller writes.
    """
    try:
        value = orjson.loads(data)
        leader, isr = value["leader"], value["isr"]
        if type(leader) is int and type(isr) is list and _INTEGERS.issuperset(map(type, isr)):
            return StateNode(leader, tuple(isr))
    except (ValueError, LookupError, TypeError):
        pass  # what is wrong is found out by the long way
    value = _json_object(data, "the partition's state")
    try:
        return StateNode(_integer(value["leader"]), _broker_ids(value["isr"]))
    except (KeyError, TypeError, ValueError) as error:
        raise Invalid(f"the partition's state is malformed: {_excerpt(data)}; repair the node") from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def parse_reassignments(data: bytes) -> dict[tuple[str, int], tuple[int, ...]]:
    """Return (topic, partition) -> target replicas.

    What no topic can be called is left out: Kafka passes over it too, as over any topic that is not there.

    Raises:
        Invalid: when the text is not what Kafka's tools write.
    """
    value = _json_object(data, "the list of reassignments")
    try:
        found = {
            (_text(entry["topic"]), _integer(entry["partition"])): _broker_ids(entry["replicas"])
            for entry in value["partitions"]
        }
        _demand_int32(partition for _, partition in found)
        _demand_int32(chain.from_iterable(found.values()))
    except (KeyError, TypeError, ValueError) as error:
        raise Invalid(f"the list of reassignments is malformed: {_excerpt(data)}; repair the node") from error
    if impossible := {topic for topic, _ in found if not _TOPIC.fullmatch(topic)}:
        return {row: replicas for row, replicas in found.items() if row[0] not in impossible}
    return found


def _demand_int32(numbers: Iterable[int]) -> None:
    """Refuse numbers that Kafka cannot read: they would not fit into a snapshot's message either."""
    for number in numbers:
        if not 0 <= number <= MAX_BROKER_ID:
            raise ValueError(f"{number} is outside of 0..{MAX_BROKER_ID}")


def parse_config(data: bytes) -> dict[str, str]:
    """Return a resource's dynamic config, every key of it.

    Raises:
        Invalid: when the text is not what Kafka writes; it must not be written over then.
    """
    value = _json_object(data, "the config").get("config")
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise Invalid(f"the config holds no map of texts: {_excerpt(data)}; repair or remove the node")
    return value


def format_config(config: Mapping[str, str]) -> bytes:
    """Return the text of a resource's dynamic config."""
    return json.dumps({"version": 1, "config": dict(config)}, separators=(",", ":")).encode()


def format_change_notification(entity_path: str) -> bytes:
    """Return the text that makes every broker read a config again."""
    return json.dumps({"version": 2, "entity_path": entity_path}, separators=(",", ":")).encode()


def parse_ledger_entry(data: bytes) -> LedgerEntry:
    """Return a ledger entry.

    Raises:
        Invalid: when the text is not what we write.
    """
    value = _json_object(data, "the ledger entry")
    try:
        keys = {
            key: LedgerKey(
                None if known["before"] is None else _text(known["before"]),
                None if known["written"] is None and "intent" in known else _text(known["written"]),
                _part(key, known),
                _text(known["intent"]) if "intent" in known else None,
                _text(known["target"]) if "target" in known else None,
            )
            for key, known in value["keys"].items()
        }
        return LedgerEntry(keys, _integer(value["term"]), _integer(value["cycle"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Invalid(f"the ledger entry is malformed: {_excerpt(data)}; repair or remove the node") from error


def _part(key: str, known: Mapping[str, Any]) -> frozenset[str] | None:
    """The entries of a list that are ours; None: all, and then it must be a list."""
    if "owned" in known:
        return parse_replicas(known["owned"])
    if key in REPLICAS_KEYS:
        for text in (known["written"], known.get("intent")):
            parse_replicas(text or "")
    return None


def format_ledger_entry(entry: LedgerEntry) -> bytes:
    """Return the text of a ledger entry."""
    keys = {
        name: {
            "before": known.before,
            "written": known.written,
            **({"owned": ",".join(sorted(known.part))} if known.part else {}),
            **({"intent": known.intent} if known.intent is not None else {}),
            **({"target": known.target} if known.target is not None else {}),
        }
        for name, known in entry.keys.items()
    }
    value = {"version": 1, "keys": keys, "term": entry.term, "cycle": entry.cycle}
    return json.dumps(value, separators=(",", ":")).encode()


def parse_override(data: bytes, version: int) -> Override | None:
    """Return an override; None for the empty node that stands while none is set.

    The rate stands twice: `rate` in whole MB/s, which the original program reads, and `rate_bytes_per_second`.
    When the original wrote last, only the first stands.

    Raises:
        Invalid: when the text is neither the format of an override nor the plain number of old versions.
    """
    if not data.strip():
        return None
    text = data.strip()
    if text.isdigit():
        # A number of thousands of digits is more than int() takes; 20 are out of range already.
        return Override(_rate_in_range(int(text.lstrip(b"0")[:20] or b"0") * MEGABYTE, data), False, version)
    value = _json_object(data, "the override")
    exact, rate = value.get("rate_bytes_per_second"), value.get("rate")
    if isinstance(exact, int) and not isinstance(exact, bool):
        rate_bytes = exact
    elif isinstance(rate, int) and not isinstance(rate, bool):
        rate_bytes = rate * MEGABYTE
    else:
        raise Invalid(f"the override has no integer rate: {_excerpt(data)}; set or remove the override")
    return Override(
        _rate_in_range(rate_bytes, data), value.get("autoremove") is True, version, _expire_time(value, data)
    )


def _expire_time(value: Mapping[str, Any], data: bytes) -> datetime | None:
    """When an override ends; one that says it in a way that we cannot read must not stand for ever unseen."""
    if value.get("expire_time") is None:
        return None
    try:
        return _time(value["expire_time"])
    except (OverflowError, TypeError, ValueError) as error:
        raise Invalid(f"the override has no readable expire_time: {_excerpt(data)}; set or remove it") from error


def _time(value: Any) -> datetime:
    found = datetime.fromisoformat(_text(value))
    if found.tzinfo is None:
        raise ValueError(f"{value!r} has no zone")
    return found.astimezone(UTC)


def _rate_in_range(rate: int, data: bytes) -> int:
    if not 0 <= rate <= MAX_RATE:
        raise Invalid(f"the override's rate is negative or too large: {_excerpt(data)}; set it again")
    return rate


def format_override(override: Override) -> bytes:
    """Return the text of an override; readable for the original program, rounded up to its whole MB/s."""
    return _compact(_override_fields(override))


def _override_fields(override: Override) -> dict[str, Any]:
    end = override.expire_time
    return {
        "rate": -(-override.rate // MEGABYTE),
        "autoremove": override.autoremove,
        "rate_bytes_per_second": override.rate,
        **({} if end is None else {"expire_time": end.astimezone(UTC).isoformat()}),
    }


def _compact(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def parse_pause(data: bytes, path: str) -> Pause:
    """Return the pause that a node holds.

    Whoever made a node that cannot be parsed meant to pause: it counts as one that keeps what stands, and says so.
    """
    try:
        return _pause(json.loads(data))
    except (KeyError, OverflowError, RecursionError, TypeError, ValueError):
        return Pause(PauseMode.KEEP, reason=f"{path} cannot be read; pause again, or resume")


def _pause(value: Mapping[str, Any]) -> Pause:
    time = None if value["time"] is None else _time(value["time"])
    return Pause(PauseMode(value["mode"]), _text(value["author"]), time, _text(value["reason"]))


def format_pause(pause: Pause) -> bytes:
    """Return the text of a pause."""
    return _compact({"version": 1, **_pause_fields(pause)})


def _pause_fields(pause: Pause) -> dict[str, Any]:
    time = None if pause.time is None else pause.time.isoformat()
    return {"mode": pause.mode.value, "author": pause.author, "time": time, "reason": pause.reason}


def parse_audit_record(data: bytes, number: int, time: datetime, version: int) -> AuditRecord:
    """Return an audit record.

    Args:
        data: the node's content.
        number: the node's, by its name.
        time: when the node was made.
        version: the transaction that made it, and what it tells of.

    Raises:
        Invalid: when the text is not what we write.
    """
    value = _json_object(data, "the audit record")
    try:
        before, after, pause = value.get("before"), value.get("after"), value.get("pause")
        return AuditRecord(
            number,
            time,
            _text(value["who"]),
            AuditAction(value["action"]),
            None if value.get("broker_id") is None else _integer(value["broker_id"]),
            None if before is None else parse_override(_compact(before), _integer(before["version"])),
            None if after is None else parse_override(_compact(after), version),
            _text(value.get("reason", "")),
            None if pause is None else _pause(pause),
        )
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError, Invalid) as error:
        raise Invalid(f"the audit record is malformed: {_excerpt(data)}; remove the node") from error


def format_audit_record(record: AuditRecord) -> bytes:
    """Return the text of an audit record; its number, its time and the new version are the node's own."""
    before, after, pause = record.before, record.after, record.pause
    return _compact(
        {
            "version": 1,
            "who": record.who[:MAX_WHO],
            "action": record.action.value,
            "broker_id": record.broker_id,
            "before": None if before is None else {**_override_fields(before), "version": before.version},
            "after": None if after is None else _override_fields(after),
            "reason": record.reason,
            **({} if pause is None else {"pause": _pause_fields(pause)}),
        }
    )
