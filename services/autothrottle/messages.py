"""What the client package and `wire` share: dataclasses as generated messages, and errors as gRPC statuses.

Dataclasses are converted by the names and types of their fields. The type to know is `Conversion`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from types import MappingProxyType, UnionType
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.errors import (
    AutothrottleError,
    Conflict,
    Forbidden,
    Incomplete,
    Invalid,
    Missing,
    NotLeader,
    Unauthenticated,
    Unavailable,
)
from autothrottle.core.open_enum import OpenEnum
from autothrottle.core.records import Estimate, LinkSideEstimate
from autothrottle.v1 import types_pb2

CODES: Mapping[type[AutothrottleError], grpc.StatusCode] = MappingProxyType(
    {
        Invalid: grpc.StatusCode.INVALID_ARGUMENT,
        Missing: grpc.StatusCode.NOT_FOUND,
        Conflict: grpc.StatusCode.ABORTED,
        NotLeader: grpc.StatusCode.FAILED_PRECONDITION,
        Incomplete: grpc.StatusCode.DATA_LOSS,
        Unavailable: grpc.StatusCode.UNAVAILABLE,
        Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
        Forbidden: grpc.StatusCode.PERMISSION_DENIED,
        AutothrottleError: grpc.StatusCode.INTERNAL,
    }
)
"""Error -> its code; a subclass that is absent has the code of its nearest ancestor."""

LEADER_ADDRESS = "leader-address"
"""Key of the trailing metadata with the address of the leading planner, `host:port`; absent: unknown."""

TopicPartition = tuple[str, int]
"""(topic, partition number)."""

_T = TypeVar("_T")
_Message = TypeVar("_Message", bound=Message)


class Converter(NamedTuple):
    """The two directions of the conversion of one type."""

    encode: Callable[[Any], Any]
    """From the dataclass's value to the message's."""
    decode: Callable[[Any], Any]


class _Field(NamedTuple):
    """One field that a dataclass and a message share."""

    name: str
    """In the dataclass."""
    sent: str
    """In the message."""
    encode: Callable[[Any], Any]
    """From the dataclass's value to the message's."""
    decode: Callable[[Message], Any]
    """From the message to the dataclass's value."""


def _same(value: Any) -> Any:
    return value


RENAMED_FIELDS: Mapping[Any, Mapping[str, str]] = MappingProxyType(
    {Estimate: {"sides": "link_sides", "seconds": "duration"}, LinkSideEstimate: {"seconds": "duration"}}
)
"""Dataclass -> name of its field -> name in the message, where services and clients both need it."""

# The constructors of messages accept datetime and timedelta.
_TIME = Converter(_same, lambda message: message.ToDatetime(tzinfo=UTC))
_DURATION = Converter(_same, lambda message: message.ToTimedelta())
_SECONDS = Converter(lambda seconds: timedelta(seconds=seconds), lambda message: message.ToTimedelta().total_seconds())

_PARTITION = Converter(
    lambda row: types_pb2.TopicPartition(topic=row[0], partition=row[1]),
    lambda message: (message.topic, message.partition),
)


@dataclass(frozen=True, eq=False)
class Conversion:
    """Converts dataclasses whose fields are scalars, times, enums, dataclasses, or tuples and maps of these.

    None stands for an absent field. An enum's value `REASON_KEPT` in a message is the member `KEPT`.
    """

    names: Mapping[Any, Mapping[str, str]] = field(default_factory=lambda: RENAMED_FIELDS)
    """Dataclass -> name of its field -> name in the message, where they differ."""
    converters: Mapping[type, Converter] = field(default_factory=dict)
    """Type -> its own conversion."""
    has_newer_peers: bool = False
    """True: an enum's number without a member becomes `UNKNOWN`. False: the message is refused."""

    def to_message(self, kind: type[_Message], value: Any, /, **given: object) -> _Message:
        """Return a message with the fields of a dataclass, or of None; `given` are the others, or replace them."""
        dataclass: Any = type(value)
        fields = _fields(self, dataclass, kind.DESCRIPTOR)
        return kind(**given, **{f.sent: f.encode(getattr(value, f.name)) for f in fields if f.sent not in given})

    def to_messages(self, kind: type[_Message], values: Iterable[Any]) -> Iterator[_Message]:
        """Yield a message for each dataclass."""
        return (self.to_message(kind, value) for value in values)

    def from_message(self, kind: Callable[..., _T], message: Message, /, **given: object) -> _T:
        """Return a dataclass with the fields of a message; `given` are the others, or replace them.

        Raises:
            Invalid: an enum's number is unknown to this version.
        """
        fields = _fields(self, kind, message.DESCRIPTOR)
        return kind(**given, **{f.name: f.decode(message) for f in fields if f.name not in given})


@cache
def _fields(conversion: Conversion, kind: Any, message: Descriptor) -> list[_Field]:
    renamed = conversion.names.get(kind, {})
    sent = message.fields_by_name
    return [
        _field(conversion, name, sent[sent_name], kind_of_field)
        for name, kind_of_field in get_type_hints(kind).items()
        if (sent_name := renamed.get(name, name)) in sent
    ]


def _field(conversion: Conversion, name: str, described: FieldDescriptor, kind: Any) -> _Field:
    sent = described.name
    if get_origin(kind) not in (Union, UnionType):  # the former in hints with Annotated
        encode, decode = _converter(conversion, described, kind)
        return _Field(name, sent, encode, lambda message: decode(getattr(message, sent)))
    encode, decode = _converter(conversion, described, get_args(kind)[0])

    def read_optional(message: Message) -> Any:
        is_present = message.HasField(sent) if described.has_presence else getattr(message, sent)
        return decode(getattr(message, sent)) if is_present else None

    return _Field(name, sent, lambda value: None if value is None else encode(value), read_optional)


def _converter(conversion: Conversion, described: FieldDescriptor, kind: Any) -> Converter:
    """Return the conversion of one value of a field, if it is present."""
    origin = get_origin(kind)
    if kind == TopicPartition and described.message_type is types_pb2.TopicPartition.DESCRIPTOR:
        return _PARTITION
    if origin is tuple:
        encode, decode = _converter(conversion, described, get_args(kind)[0])
        return Converter(partial(map, encode), lambda values: tuple(map(decode, values)))
    if origin is frozenset:
        return Converter(sorted, frozenset)
    if origin is Mapping:
        is_refusal = described.message_type is types_pb2.PartitionRefusal.DESCRIPTOR
        return Converter(refusals_to_messages, refusals_from_messages) if is_refusal else Converter(_same, dict)
    return _value_converter(conversion, described, kind)


def _value_converter(conversion: Conversion, described: FieldDescriptor, kind: Any) -> Converter:
    converters: Mapping[Any, Converter] = {datetime: _TIME, timedelta: _DURATION, **conversion.converters}
    if kind in converters:
        return converters[kind]
    if kind is float and described.message_type is not None:
        return _SECONDS
    if described.message_type is not None and isinstance(kind, type) and is_dataclass(kind):
        message = GetMessageClass(described.message_type)
        return Converter(partial(conversion.to_message, message), partial(conversion.from_message, kind))
    if described.enum_type is not None:
        return _enum(described, kind, conversion.has_newer_peers)
    return Converter(_same, kind if kind is ConfigResource else _same)


def _enum(described: FieldDescriptor, kind: type[OpenEnum], has_newer_peers: bool) -> Converter:
    assert described.enum_type is not None
    unset, *values = described.enum_type.values
    prefix = unset.name.removesuffix("UNSPECIFIED")
    numbers = {value.name.removeprefix(prefix): value.number for value in values}
    members = {number: kind[name] for name, number in numbers.items() if name in kind.__members__}

    def read(number: int) -> OpenEnum:
        if number not in members and not has_newer_peers:
            raise Invalid(f"{described.full_name} {number} is unknown; update this program")
        return members.get(number, kind.UNKNOWN)

    return Converter(lambda member: numbers[member.name], read)


# Partitions.


def targets_to_messages(targets: Mapping[TopicPartition, Sequence[int]]) -> Iterator[types_pb2.PartitionTarget]:
    """Yield messages one by one, because a list of them takes five times the memory of the request.

    Raises:
        Invalid: a number does not fit its field.
    """
    for (topic, partition), replicas in targets.items():
        try:
            yield types_pb2.PartitionTarget(topic=topic, partition=partition, replicas=replicas)
        except (TypeError, ValueError) as error:
            raise Invalid(f"{topic}-{partition} to {replicas!r} is not a target: {error}; give integers") from None


def partitions_to_messages(partitions: Iterable[TopicPartition]) -> Iterator[types_pb2.TopicPartition]:
    """Yield partitions as messages.

    Raises:
        Invalid: a number does not fit its field.
    """
    for topic, partition in partitions:
        try:
            yield types_pb2.TopicPartition(topic=topic, partition=partition)
        except (TypeError, ValueError) as error:
            raise Invalid(f"{error}; give a topic name and a partition number") from None


def refusals_to_messages(refused: Mapping[TopicPartition, str]) -> list[types_pb2.PartitionRefusal]:
    """Return the partitions that Kafka refused as messages."""
    return [types_pb2.PartitionRefusal(topic=t, partition=p, reason=why) for (t, p), why in refused.items()]


def refusals_from_messages(messages: Iterable[types_pb2.PartitionRefusal]) -> dict[TopicPartition, str]:
    """Return refused partition -> reason."""
    return {(m.topic, m.partition): m.reason for m in messages}


# Validation that both sides do.

MAX_REASON = 1_000
"""Maximum length of a reason in characters; the log and every response with the cycle contain it."""


def validate_reason(reason: str) -> str:
    """Return the reason.

    Raises:
        Invalid: it is longer than 1,000 characters or not printable.
    """
    if len(reason) > MAX_REASON or not reason.isprintable():
        raise Invalid(
            f"reason {reason[:40]!r} has {len(reason)} characters; give at most {MAX_REASON} printable ones on one line"
        )
    return reason
