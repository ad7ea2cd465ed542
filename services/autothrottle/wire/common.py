"""Conversions that several services share: errors, callers, pauses and reassignments, and request validation."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import wraps
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from autothrottle.core.cluster.flows import Progress, TopicProgress
from autothrottle.core.cluster.snapshot import Snapshot, TopicPartition, TopicReassignment
from autothrottle.core.errors import AutothrottleError, Invalid, NotLeader
from autothrottle.core.forecast.progress import remainder
from autothrottle.core.operators.submission import MAX_PARTITIONS, Targets, partitions, targets
from autothrottle.core.records import PauseMode, RunningMove
from autothrottle.messages import CODES, LEADER_ADDRESS, Conversion
from autothrottle.v1 import admin_pb2, discovery_pb2, quotas_pb2, types_pb2

_Servicer = TypeVar("_Servicer")

SAME_NAMES = Conversion()
"""Converts types whose fields have the names of the message's fields."""

# Times.


def expire_time_from_message(message: admin_pb2.Override | quotas_pb2.Quota) -> datetime | None:
    """Return the expire time of a request; None: it has none.

    Raises:
        Invalid: the seconds or the nanoseconds are out of range.
    """
    try:
        return message.expire_time.ToDatetime(tzinfo=UTC) if message.HasField("expire_time") else None
    except (ValueError, OverflowError) as error:
        raise Invalid(f"expire_time is not a valid time: {error}; give one in UTC, before the year 10000") from error


# Errors as gRPC statuses.

MAX_MESSAGE_BYTES = 4_000
"""Maximum length of an error message; gRPC sends it percent-encoded in a header and refuses headers above 8 kB."""


def code_of(error: AutothrottleError) -> grpc.StatusCode:
    """Return the code of the error's nearest ancestor in `CODES`."""
    return next(CODES[ancestor] for ancestor in type(error).__mro__ if ancestor in CODES)


def to_status(error: AutothrottleError) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]]:
    """Return the (code, message, trailing metadata) of an error."""
    metadata: tuple[tuple[str, str], ...] = ()
    # Metadata holds printable ASCII only.
    if isinstance(error, NotLeader) and _PRINTABLE.fullmatch(error.leader_address):
        metadata = ((LEADER_ADDRESS, error.leader_address),)
    return code_of(error), _truncated(str(error)), metadata


def abort(context: grpc.ServicerContext, error: AutothrottleError) -> NoReturn:
    """End a call with the status of an error."""
    code, message, metadata = to_status(error)
    context.set_trailing_metadata(metadata)
    context.abort(code, message)


def _truncated(message: str) -> str:
    """Cut a message to `MAX_MESSAGE_BYTES`; a byte that is not printable ASCII takes three in a header."""
    size = 0
    for position, character in enumerate(message):
        size += 1 if " " <= character <= "~" and character != "%" else 3 * len(character.encode(errors="replace"))
        if size > MAX_MESSAGE_BYTES:
            return message[:position] + " ... (cut)"
    return message


# Metadata of calls.

FORWARDED_FOR = "forwarded-for"
"""Key of the metadata with the address of the client on whose behalf a service calls."""

_TRACE_PARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_PRINTABLE = re.compile(r"[ -~]{1,512}")

Metadata = tuple[tuple[str, str], ...]


def forwarded_metadata(client: str, headers: Mapping[str, str]) -> Metadata:
    """Return the metadata of calls on behalf of an HTTP request.

    Args:
        client: address of the HTTP client, `host:port`.
        headers: lower-case name -> value. A valid W3C trace context (`traceparent`, `tracestate`) is forwarded.
    """
    client = _ascii(client)
    parent, state = headers.get("traceparent", ""), headers.get("tracestate", "")
    metadata: Metadata = ((FORWARDED_FOR, client),) if _PRINTABLE.fullmatch(client) else ()
    if not _TRACE_PARENT.fullmatch(parent):
        return metadata
    return (*metadata, ("traceparent", parent), *((("tracestate", state),) if _PRINTABLE.fullmatch(state) else ()))


def caller(peer: str, metadata: Iterable[tuple[str, str | bytes]], name: str = "") -> str:
    """Return the caller for the log: the peer and the client on whose behalf it says that it calls.

    Args:
        peer: the peer's address in gRPC's format.
        metadata: metadata of the call, if the peer is trusted to name its client.
        name: name in the certificate or of the token of the peer; "": unknown.

    >>> caller("ipv4:10.0.0.1:4711", [(FORWARDED_FOR, "10.0.0.9:5000")])
    '10.0.0.9:5000 through ipv4:10.0.0.1:4711'
    >>> caller("ipv4:10.0.0.9:5000", [], "anna")
    'anna at ipv4:10.0.0.9:5000'
    """
    if _PRINTABLE.fullmatch(name := _ascii(name)):
        peer = f"{name} at {peer}"
    clients = [value for key, value in metadata if key == FORWARDED_FOR and isinstance(value, str)]
    return f"{clients[-1]} through {peer}" if clients and _PRINTABLE.fullmatch(clients[-1]) else peer


def _ascii(name: str) -> str:
    """Escape non-ASCII characters, which metadata cannot hold; the audit record must not lose a caller named Jürgen."""
    return name.encode("ascii", "backslashreplace").decode()


# Validation of requests.


def validate_fields(message: Message) -> None:
    """Refuse a message with unknown fields, at any depth.

    A newer client gives them a meaning. If this version ignored them, it would do something else than requested.

    Raises:
        Invalid: the message has unknown fields; the error names the message and their numbers.
    """
    fields = UnknownFieldSet(message)
    unknown = sorted({fields[index].field_number for index in range(len(fields))})
    if unknown:
        numbers = ", ".join(map(str, unknown[:10]))
        raise Invalid(
            f"{message.DESCRIPTOR.full_name} has unknown fields (numbers {numbers}); "
            "omit them, or update the service to the client's version"
        )
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for part in value if field.is_repeated else (value,):
                validate_fields(part)


def with_known_fields(servicer: type[_Servicer]) -> type[_Servicer]:
    """Let each method of a servicer refuse requests with unknown fields, as `validate_fields` does."""
    for name, method in [*vars(servicer).items()]:
        if name[:1].isupper():
            setattr(servicer, name, _validating(method))
    return servicer


def _validating(method: Callable[[Any, Message, Any], Any]) -> Callable[[Any, Message, Any], Any]:
    @wraps(method)
    def validating(servicer: Any, request: Message, context: Any) -> Any:
        validate_fields(request)
        return method(servicer, request, context)

    return validating


def validate_count(count: int, at_most: int = MAX_PARTITIONS, kind: str = "partitions") -> None:
    """Refuse a request that names too many things of one kind."""
    if count > at_most:
        raise Invalid(f"{count} {kind} are named; name at most {at_most} at a time")


# Pauses.


def pause_mode_from_number(number: int) -> PauseMode:
    """Convert a mode's number in the proto.

    Raises:
        Invalid: it is not set, or unknown to this version.
    """
    for mode in PauseMode:
        if types_pb2.Pause.Mode.Value(f"MODE_{mode.name}") == number:
            return mode
    raise Invalid(
        f"pause mode {number} is neither MODE_KEEP (1: throttles stay as they are) nor MODE_CLEAR (2: the values from "
        "before autothrottle's writes are restored); give one of them"
    )


# Partitions and reassignments.

MAX_SNAPSHOT_PARTITIONS = 100_000
"""Largest number of partitions whose assignments a snapshot may contain."""


def targets_from_messages(messages: Collection[types_pb2.PartitionTarget]) -> Targets:
    """Convert messages to targets.

    Raises:
        Invalid: the targets are not valid in any cluster.
    """
    validate_count(len(messages))
    return targets((m.topic, m.partition, tuple(m.replicas)) for m in messages)


def partitions_from_messages(messages: Collection[types_pb2.TopicPartition]) -> tuple[TopicPartition, ...]:
    """Convert messages to partitions.

    Raises:
        Invalid: `messages` is empty, a partition is named twice, or a number is out of range.
    """
    validate_count(len(messages))
    return partitions((m.topic, m.partition) for m in messages)


def partitions_to_topics(rows: Iterable[TopicPartition]) -> Iterator[discovery_pb2.TopicPartitions]:
    """Group partitions by topic."""
    for topic, group in groupby(sorted(rows), itemgetter(0)):
        yield discovery_pb2.TopicPartitions(topic=topic, partitions=[partition for _, partition in group])


def partitions_from_topics(messages: Collection[discovery_pb2.TopicPartitions]) -> tuple[TopicPartition, ...]:
    """Convert messages to partitions; there may be none.

    Raises:
        Invalid: a partition is named twice, or a number is out of range.
    """
    validate_count(sum(len(m.partitions) for m in messages), MAX_SNAPSHOT_PARTITIONS)
    named = [(m.topic, partition) for m in messages for partition in m.partitions]
    return partitions(named, MAX_SNAPSHOT_PARTITIONS) if named else ()


def reassignments_to_list(
    snapshot: Snapshot, with_paths: bool = False, moves: Iterable[RunningMove] = ()
) -> admin_pb2.ListReassignmentsResponse:
    """Return the reassignments of a snapshot and their progress as a message."""
    progress = snapshot.progress or Progress()
    return SAME_NAMES.to_message(
        admin_pb2.ListReassignmentsResponse,
        remainder(snapshot),
        topics=[
            _topic_to_message(reassignment, progress.topics.get(reassignment.topic))
            for reassignment in snapshot.reassignments
        ],
        paths=_paths_to_messages(snapshot, progress) if with_paths else (),
        moves=SAME_NAMES.to_messages(admin_pb2.RunningMove, moves),
    )


def _paths_to_messages(snapshot: Snapshot, progress: Progress) -> list[admin_pb2.ReassignmentPath]:
    paths = []
    for flow, count in sorted(snapshot.flows.items()):
        flow_progress = progress.flows.get(flow)
        paths.append(
            admin_pb2.ReassignmentPath(
                leader=flow[0],
                follower=flow[1],
                partitions=count,
                bytes_left=flow_progress.bytes_left if flow_progress else None,
                copied_bytes_per_second=flow_progress.copied_per_second if flow_progress else None,
                produced_bytes_per_second=flow_progress.produced_per_second if flow_progress else None,
            )
        )
    return paths


def _topic_to_message(reassignment: TopicReassignment, progress: TopicProgress | None) -> admin_pb2.ReassigningTopic:
    return SAME_NAMES.to_message(
        admin_pb2.ReassigningTopic,
        progress,
        topic=reassignment.topic,
        partitions=reassignment.partitions,
        adding_replicas=sorted(set(chain.from_iterable(reassignment.adding_replicas))),
        removing_replicas=sorted(set(chain.from_iterable(reassignment.removing_replicas))),
        partitions_to_copy=sum(bool(pending) for _, _, _, pending in reassignment.rows()),
    )
