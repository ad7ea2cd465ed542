"""Reassignments: the files of kafka-reassign-partitions.sh, and the admin service's view of ongoing reassignments.

The type to know is `Targets`: the replicas in a file, and the argument of `AdminClient.submit_reassignment`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from autothrottle.core.cluster.configs import validate_topic
from autothrottle.core.records import RunningMove
from autothrottle.core.units import MAX_INT32
from autothrottle_client.errors import Invalid

_T = TypeVar("_T")

Partition = tuple[str, int]
"""Topic and partition number."""

Targets = Mapping[Partition, tuple[int, ...]]
"""Partition -> target broker ids, the preferred leader first."""

MAX_PARTITIONS = 100_000
"""Largest number of partitions of one reassignment."""

PARTITIONS_PER_REQUEST = 10_000
"""Largest number of partitions in one request: a KRaft controller refuses to alter more reassignments at a time."""

ANY_LOG_DIR = "any"
"""Lets the broker choose the log directory."""

_HEADINGS = {
    "Current partition replica assignment": "the replicas before the reassignment, for a rollback",
    "Proposed partition reassignment configuration": "the new replicas",
}
"""Headings that kafka-reassign-partitions.sh prints above each assignment -> what the assignment is."""

_SHOWN_PARTS = 3

_OBJECT = re.compile(r"^[ \t]*(\{)", re.MULTILINE)

_SHAPE = 'give {"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1001,1002]}]}'


@dataclass(frozen=True, slots=True)
class ReassignmentFile:
    """The content of a file of kafka-reassign-partitions.sh."""

    targets: Targets
    log_dirs: Mapping[Partition, tuple[str, ...]] = field(default_factory=dict)
    """Partition -> its log directories, one per replica; absent: the brokers choose all of them."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """The part of the file that a submission ignores; empty if it ignores nothing."""
        if not self.log_dirs:
            return ()
        (topic, partition), directories = next(iter(self.log_dirs.items()))
        return (
            f"{len(self.log_dirs)} of {len(self.targets)} partitions name log directories, the first one is "
            f"{topic}-{partition}: {_shown(directories)}. autothrottle does not move replicas between directories: "
            f"it submits {ANY_LOG_DIR!r}, so that each broker chooses; kafka-reassign-partitions.sh moves them later",
        )


@dataclass(frozen=True, slots=True)
class ReassigningTopic:
    """The partitions of one topic in reassignment."""

    topic: str
    partitions: tuple[int, ...]
    """Ascending."""
    adding_replicas: tuple[int, ...]
    """Ids of the brokers that receive replicas."""
    removing_replicas: tuple[int, ...]
    """Ids of the brokers that lose replicas."""
    partitions_to_copy: int
    """Partitions with at least one new replica that is not in sync yet."""
    bytes_copied: int | None = None
    """Bytes copied since the topic's reassignment was first seen; None: unknown."""
    bytes_left: int | None = None
    """Bytes still to copy, some seconds old; None: unknown."""
    eta: datetime | None = None
    """Expected end at the rate of the last minutes, UTC; None: unknown."""
    eta_low: datetime | None = None
    """Earliest expected end, from the variation of the last minutes' rates; None: unknown."""
    eta_high: datetime | None = None
    """Latest expected end, likewise."""


@dataclass(frozen=True, slots=True)
class ReassignmentPath:
    """The data that one leader sends to one follower."""

    leader: int
    """Id of the broker that leads the partitions."""
    follower: int
    """Id of the broker that copies them."""
    partitions: int
    """Partitions still to copy."""
    bytes_left: int | None = None
    """Bytes still to copy, some seconds old; None: unknown."""
    copied_bytes_per_second: int | None = None
    """Recent copy rate; None: unknown."""
    produced_bytes_per_second: int | None = None
    """Mean produce rate of these partitions; None: unknown."""


@dataclass(frozen=True, slots=True)
class Reassignments:
    """All ongoing reassignments."""

    topics: tuple[ReassigningTopic, ...] = ()
    """Sorted by name."""
    eta: datetime | None = None
    """Expected end of the last reassignment, UTC; None: unknown."""
    eta_low: datetime | None = None
    """Earliest expected end, from the variation of the last minutes' rates; None: unknown."""
    eta_high: datetime | None = None
    """Latest expected end, likewise."""
    paths: tuple[ReassignmentPath, ...] = ()
    """By leader and follower; empty unless the call asked for them."""
    moves: tuple[RunningMove, ...] = ()
    """By topic and first partition; empty unless the call asked for them."""

    def partitions(self) -> frozenset[Partition]:
        """Return all partitions in reassignment."""
        return frozenset((topic.topic, partition) for topic in self.topics for partition in topic.partitions)


def parse_reassignment(text: str) -> Targets:
    """Return the targets in a file of kafka-reassign-partitions.sh. Like that tool, ignore unknown keys.

    Log directories are ignored, too: the brokers choose them. `parse_reassignment_file` returns them.

    >>> parse_reassignment('{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2]}]}')
    {('t', 0): (1, 2)}

    Raises:
        Invalid: the file is malformed; the message names the line or the entry.
    """
    return parse_reassignment_file(text).targets


def parse_reassignment_file(text: str) -> ReassignmentFile:
    """Return the targets and the log directories in a file of kafka-reassign-partitions.sh.

    Raises:
        Invalid: the file is malformed; the message names the line or the entry.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
    except RecursionError:
        raise Invalid(f"the file is nested too deeply; {_SHAPE}") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        fix = _part_to_keep(text) or f"{error.msg} at {where}; {_SHAPE}"
        raise Invalid(f"the file is not JSON: {fix}") from None
    except ValueError:  # Python's limit on digits, which bounds the time of a conversion
        raise Invalid(f"the file contains a number with thousands of digits; {_SHAPE}") from None
    if not isinstance(value, dict):
        raise Invalid(f"the file contains {_kind(value)} instead of an object; {_SHAPE}")
    version = value.get("version", 1)  # the default of Kafka's tool
    if version != 1 or isinstance(version, bool):
        raise Invalid(f"version is {_shown(version)}; it must be 1: {_SHAPE}")
    rows = value.get("partitions")
    if not isinstance(rows, list) or not rows:
        raise Invalid(f"partitions is {_shown(rows)}; it must be a list of at least one: {_SHAPE}")
    if len(rows) > MAX_PARTITIONS:
        raise Invalid(f"partitions has {len(rows)} entries; the limit is {MAX_PARTITIONS}: divide the file")
    return _content(rows)


def _part_to_keep(text: str) -> str:
    """Say which lines of the output of Kafka's tool are an assignment; "" if none is."""
    parts, end = [], 0
    for match in _OBJECT.finditer(text):
        if match.start() < end:
            continue
        try:
            value, end = json.JSONDecoder().raw_decode(text, match.start(1))
        except (ValueError, RecursionError):
            break
        if "partitions" in value:
            parts.append(_lines_of_part(text, match.start(1), end))
            if len(parts) == _SHOWN_PARTS:
                break
    if not parts:
        return ""
    return f"it has other text of kafka-reassign-partitions.sh around the JSON; keep only {', or only '.join(parts)}"


def _lines_of_part(text: str, start: int, end: int) -> str:
    first = text.count("\n", 0, start) + 1
    last = first + text.count("\n", start, end)
    heading = text[:start].rstrip().rpartition("\n")[2].strip()
    meaning = f", {_HEADINGS[heading]} ({heading!r})" if heading in _HEADINGS else ""
    return (f"line {first}" if first == last else f"lines {first} to {last}") + meaning


def _content(rows: Sequence[Any]) -> ReassignmentFile:
    targets: dict[Partition, tuple[int, ...]] = {}
    log_dirs: dict[Partition, tuple[str, ...]] = {}
    for number, row in enumerate(rows):
        where = f"partitions[{number}]"
        if not isinstance(row, dict):
            raise Invalid(f"{where} is {_shown(row)} instead of an object; {_SHAPE}")
        partition = _partition(where, row)
        if partition in targets:
            raise Invalid(f"{where} repeats {partition[0]}-{partition[1]}; name each partition once")
        targets[partition] = _replicas(where, row)
        directories = _log_dirs(where, row, len(targets[partition]))
        if any(directory != ANY_LOG_DIR for directory in directories):
            log_dirs[partition] = directories
    return ReassignmentFile(targets, log_dirs)


def _partition(where: str, row: Mapping[str, Any]) -> Partition:
    topic = row.get("topic")
    if not isinstance(topic, str) or not topic:
        raise Invalid(f"{where}.topic is {_shown(topic)}; it must be the name of a topic")
    try:
        validate_topic(topic)
    except Invalid as error:
        raise Invalid(f"{where}.topic: {error}") from None
    return topic, _integer(f"{where}.partition", row.get("partition"), MAX_INT32)


def _replicas(where: str, row: Mapping[str, Any]) -> tuple[int, ...]:
    replicas = row.get("replicas")
    if not isinstance(replicas, list) or not replicas:
        raise Invalid(f"{where}.replicas is {_shown(replicas)}; it must be a list of at least one broker id")
    broker_ids = tuple(_integer(f"{where}.replicas[{n}]", b, MAX_INT32) for n, b in enumerate(replicas))
    if len(set(broker_ids)) < len(broker_ids):
        raise Invalid(
            f"{where}.replicas names broker {_repeated(broker_ids)} twice: {_shown(replicas)}; name every broker once"
        )
    return broker_ids


def _log_dirs(where: str, row: Mapping[str, Any], replicas: int) -> tuple[str, ...]:
    directories = row.get("log_dirs")
    if directories is None:
        return (ANY_LOG_DIR,) * replicas
    is_list = isinstance(directories, list) and all(isinstance(directory, str) for directory in directories)
    if not is_list or len(directories) != replicas:
        raise Invalid(
            f"{where}.log_dirs is {_shown(directories)}; leave it out, or give {ANY_LOG_DIR!r} for each replica"
        )
    return tuple(directories)


def _integer(where: str, value: Any, largest: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= largest:
        raise Invalid(f"{where} is {_shown(value)}; it must be an integer, 0 to {largest}")
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = _repeated(name for name, _ in pairs)
        raise Invalid(f"an object of the file has the key {_shown(twice)} twice; name it once")
    return values


def _repeated(values: Iterable[_T]) -> _T:
    """The first value that occurs more than once. One pass, since there may be 100,000 values."""
    return next(value for value, count in Counter(values).items() if count > 1)


def _refuse_constant(name: str) -> Any:
    raise Invalid(f"the file contains {name}, which is not JSON; {_SHAPE}")


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    return "a list" if isinstance(value, list) else _shown(value)


def _shown(value: Any) -> str:
    text = "missing" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:60]}..."


def format_targets(targets: Mapping[Partition, tuple[int, ...]]) -> str:
    """Return targets as a file of kafka-reassign-partitions.sh."""
    rows = [{"topic": topic, "partition": number, "replicas": list(to)} for (topic, number), to in targets.items()]
    return json.dumps({"version": 1, "partitions": rows}, separators=(",", ":")) + "\n"
