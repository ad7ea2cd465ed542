"""Reassignments: the files of Kafka's own tool, and what the admin service says of what moves.

The type to know is `Targets`, which a file holds and `AdminClient.submit_reassignment` takes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from autothrottle.v1 import admin_pb2, types_pb2
from autothrottle_client.errors import Invalid
from autothrottle_client.model import MAX_BROKER_ID

_T = TypeVar("_T")

Partition = tuple[str, int]
"""Topic and partition number."""

Targets = Mapping[Partition, tuple[int, ...]]
"""Partition -> the broker ids that it shall be on, the preferred leader first."""

MAX_PARTITIONS = 100_000
"""Of one reassignment."""

ANY_LOG_DIR = "any"
"""The broker chooses the directory."""

_MAX_INT = 2**31 - 1

_SHAPE = 'give {"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1001,1002]}]}'


@dataclass(frozen=True, slots=True)
class Submission:
    """What became of a reassignment that was submitted."""

    submitted: int
    """Partitions that Kafka has taken; or would be given, when it was only validated."""
    already_moving: int = 0
    """On their way to these replicas before."""
    already_there: int = 0
    """They had these replicas before."""
    refused: Mapping[Partition, str] = field(default_factory=dict)
    """What Kafka did not take, and why."""


@dataclass(frozen=True, slots=True)
class ReassigningTopic:
    """The partitions of one topic in reassignment."""

    topic: str
    partitions: tuple[int, ...]
    """Ascending."""
    adding_replicas: tuple[int, ...]
    """Ids of the brokers that partitions move to."""
    removing_replicas: tuple[int, ...]
    """Ids of the brokers that partitions will leave."""
    partitions_to_copy: int
    """How many are still to be copied somewhere."""
    bytes_landed: int | None = None
    """What arrived since the topic was first seen to move; None: unknown."""
    bytes_left: int | None = None
    """What is left to be copied, some seconds old; None: unknown."""
    eta: datetime | None = None
    """When its last byte lands at the rate of the last minutes, UTC; None: unknown."""
    eta_low: datetime | None = None
    """Not before this, as far as the rates of the last minutes tell; None: unknown."""
    eta_high: datetime | None = None
    """Not after this, likewise."""


@dataclass(frozen=True, slots=True)
class Reassignments:
    """What is being reassigned."""

    topics: tuple[ReassigningTopic, ...] = ()
    """By name."""
    eta: datetime | None = None
    """When the last byte of all of them lands, UTC; None: unknown."""
    eta_low: datetime | None = None
    """Not before this, as far as the rates of the last minutes tell; None: unknown."""
    eta_high: datetime | None = None
    """Not after this, likewise."""

    def partitions(self) -> frozenset[Partition]:
        """All partitions in reassignment."""
        return frozenset((one.topic, partition) for one in self.topics for partition in one.partitions)


def parse_reassignment(text: str) -> Targets:
    """Return the targets that a file of Kafka's own tool holds; keys that are unknown are ignored, as it does.

    >>> parse_reassignment('{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2]}]}')
    {('t', 0): (1, 2)}

    Raises:
        Invalid: when it is no such file; the message names the line or the entry.
    """
    try:
        value = json.loads(text, object_pairs_hook=_once, parse_constant=_refuse_constant)
    except RecursionError:
        raise Invalid(f"the file is nested too deeply; {_SHAPE}") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise Invalid(f"the file is no JSON: {error.msg} at {where}; {_SHAPE}") from None
    except ValueError:  # Python's limit, by which nobody makes it work for minutes
        raise Invalid(f"the file holds a number of thousands of digits; {_SHAPE}") from None
    if not isinstance(value, dict):
        raise Invalid(f"the file holds {_kind(value)}, no object; {_SHAPE}")
    version = value.get("version", 1)  # without one it is the first, to Kafka's tool too
    if version != 1 or isinstance(version, bool):
        raise Invalid(f"version is {_shown(version)}; it must be 1: {_SHAPE}")
    rows = value.get("partitions")
    if not isinstance(rows, list) or not rows:
        raise Invalid(f"partitions is {_shown(rows)}; it must be a list of at least one: {_SHAPE}")
    if len(rows) > MAX_PARTITIONS:
        raise Invalid(f"partitions has {len(rows)} entries; at most {MAX_PARTITIONS} go at a time: divide the file")
    return _targets(rows)


def _targets(rows: Sequence[Any]) -> dict[Partition, tuple[int, ...]]:
    found: dict[Partition, tuple[int, ...]] = {}
    for number, row in enumerate(rows):
        where = f"partitions[{number}]"
        if not isinstance(row, dict):
            raise Invalid(f"{where} is {_shown(row)}, no object; {_SHAPE}")
        partition = _partition(where, row)
        if partition in found:
            raise Invalid(f"{where} is {partition[0]}-{partition[1]} for the second time; name it once")
        found[partition] = _replicas(where, row)
        _demand_any_log_dir(where, row, found[partition])
    return found


def _partition(where: str, row: Mapping[str, Any]) -> Partition:
    topic = row.get("topic")
    if not isinstance(topic, str) or not topic:
        raise Invalid(f"{where}.topic is {_shown(topic)}; it must be the name of a topic")
    return topic, _integer(f"{where}.partition", row.get("partition"), _MAX_INT)


def _replicas(where: str, row: Mapping[str, Any]) -> tuple[int, ...]:
    replicas = row.get("replicas")
    if not isinstance(replicas, list) or not replicas:
        raise Invalid(f"{where}.replicas is {_shown(replicas)}; it must be a list of at least one broker id")
    found = tuple(_integer(f"{where}.replicas[{n}]", b, MAX_BROKER_ID) for n, b in enumerate(replicas))
    if len(set(found)) < len(found):
        raise Invalid(
            f"{where}.replicas names broker {_repeated(found)} twice: {_shown(replicas)}; name every broker once"
        )
    return found


def _demand_any_log_dir(where: str, row: Mapping[str, Any], replicas: Sequence[int]) -> None:
    directories = row.get("log_dirs", [ANY_LOG_DIR] * len(replicas))
    if not isinstance(directories, list) or len(directories) != len(replicas):
        raise Invalid(f"{where}.log_dirs is {_shown(directories)}; leave it out, or give one {ANY_LOG_DIR!r} a replica")
    for number, directory in enumerate(directories):
        if directory != ANY_LOG_DIR:
            raise Invalid(
                f"{where}.log_dirs[{number}] is {_shown(directory)}: a move to a certain directory of a broker is not "
                f"throttled here and not submitted; give {ANY_LOG_DIR!r}, or use kafka-reassign-partitions.sh"
            )


def _integer(where: str, value: Any, largest: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= largest:
        raise Invalid(f"{where} is {_shown(value)}; it must be an integer, 0 to {largest}")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = _repeated(name for name, _ in pairs)
        raise Invalid(f"an object of the file has {_shown(twice)} twice; name it once")
    return found


def _repeated(values: Iterable[_T]) -> _T:
    """The first of those that are there more than once, found in one pass: there may be 100,000."""
    return next(value for value, count in Counter(values).items() if count > 1)


def _refuse_constant(name: str) -> Any:
    raise Invalid(f"the file holds {name}, which is no JSON; {_SHAPE}")


def _kind(value: Any) -> str:
    return "a list" if isinstance(value, list) else _shown(value)


def _shown(value: Any) -> str:
    text = "missing" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:60]}..."


def targets_to_messages(targets: Mapping[Partition, Sequence[int]]) -> list[types_pb2.PartitionTarget]:
    """Return targets as messages.

    Raises:
        Invalid: when a number does not fit.
    """
    return [_target(topic, partition, replicas) for (topic, partition), replicas in targets.items()]


def _target(topic: str, partition: int, replicas: Sequence[int]) -> types_pb2.PartitionTarget:
    try:
        return types_pb2.PartitionTarget(topic=topic, partition=partition, replicas=replicas)
    except (TypeError, ValueError) as error:
        raise Invalid(f"{topic}-{partition} to {replicas!r} is no target: {error}; give integers") from None


def partitions_to_messages(partitions: Iterable[Partition]) -> list[types_pb2.TopicPartition]:
    """Return partitions as messages.

    Raises:
        Invalid: when a number does not fit.
    """
    try:
        return [types_pb2.TopicPartition(topic=topic, partition=partition) for topic, partition in partitions]
    except (TypeError, ValueError) as error:
        raise Invalid(f"{error}; give a topic's name and a partition's number") from None


def submission_from_message(message: admin_pb2.SubmitReassignmentResponse) -> Submission:
    """Return what became of a reassignment."""
    return Submission(
        message.submitted, message.already_moving, message.already_there, refused_from_messages(message.refused)
    )


def refused_from_messages(messages: Iterable[types_pb2.PartitionRefusal]) -> dict[Partition, str]:
    """Return what Kafka refused, and why."""
    return {(m.topic, m.partition): m.reason for m in messages}


def reassignments_from_message(message: admin_pb2.ListReassignmentsResponse) -> Reassignments:
    """Return what is being reassigned."""
    return Reassignments(tuple(map(_topic, message.topics)), *_etas(message))


def _etas(
    message: admin_pb2.ListReassignmentsResponse | admin_pb2.ReassigningTopic,
) -> tuple[datetime | None, datetime | None, datetime | None]:
    """The ETA, and the interval of it."""
    return (
        message.eta.ToDatetime(tzinfo=UTC) if message.HasField("eta") else None,
        message.eta_low.ToDatetime(tzinfo=UTC) if message.HasField("eta_low") else None,
        message.eta_high.ToDatetime(tzinfo=UTC) if message.HasField("eta_high") else None,
    )


def _topic(message: admin_pb2.ReassigningTopic) -> ReassigningTopic:
    eta, low, high = _etas(message)
    return ReassigningTopic(
        topic=message.topic,
        partitions=tuple(message.partitions),
        adding_replicas=tuple(message.adding_replicas),
        removing_replicas=tuple(message.removing_replicas),
        partitions_to_copy=message.partitions_to_copy,
        bytes_landed=message.bytes_landed if message.HasField("bytes_landed") else None,
        bytes_left=message.bytes_left if message.HasField("bytes_left") else None,
        eta=eta,
        eta_low=low,
        eta_high=high,
    )
