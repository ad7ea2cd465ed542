"""The door of gRPC: every request of every service, over real connections to services on in-memory twins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

import grpc
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from autothrottle.v1 import (
    admin_pb2,
    applier_pb2,
    discovery_pb2,
    metrics_pb2,
    placement_pb2,
    planner_pb2,
    quotas_pb2,
)
from tests.fuzz import hostile
from tests.fuzz.hostile import Choices
from tests.fuzz.series import require
from tests.fuzz.twins import EXAMPLES, RESET_INPUTS, reset, twins

SERVERS = {
    "admin": (admin_pb2, placement_pb2, quotas_pb2),
    "applier": (applier_pb2,),
    "discovery": (discovery_pb2,),
    "metrics": (metrics_pb2,),
    "planner-1": (planner_pb2,),
}
"""Server of the twins -> the modules of its services."""

SECONDS = 0.9
"""Deadline of a call: without it, a hang would last forever."""

MOST_ANSWERS = 3
"""Answers of a stream that are read; a watch has no end."""

Code = grpc.StatusCode
EXPECTED = {
    *(Code.OK, Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.ABORTED, Code.FAILED_PRECONDITION, Code.UNAVAILABLE),
    Code.RESOURCE_EXHAUSTED,
}
SLOW = {"SubmitReassignment", "SubmitReassignments", "CancelReassignment", "CheckCancellation", "EstimateReassignment"}
"""Methods that wait for the cluster, so that their deadline may end them."""
SLOW_SECONDS = 0.05


class Attack(NamedTuple):
    """One call."""

    server: str
    method: str
    """`/package.Service/Method`."""
    request: bytes
    is_stream: bool


class GrpcMessages:
    """Calls with hostile requests."""

    name = "gRPC messages"

    def __init__(self) -> None:
        self.services = twins()
        self._methods = [
            (server, method)
            for server, modules in SERVERS.items()
            for module in modules
            for service in module.DESCRIPTOR.services_by_name.values()
            for method in service.methods
        ]
        options = [("grpc.max_send_message_length", -1)]
        self._channels = {server: grpc.insecure_channel(self.services.address(server), options) for server in SERVERS}
        self._inputs = 0

    def make(self, choices: Choices) -> Attack:
        server, method = choices.of(self._methods)
        message = request_of(method, choices)
        data = message.SerializeToString()
        if choices.one_in(10):
            data = hostile.damaged(data, choices)
        return Attack(server, f"/{method.containing_service.full_name}/{method.name}", data, method.server_streaming)

    def check(self, attack: Attack) -> None:
        self._inputs += 1
        if self._inputs % RESET_INPUTS == 0:
            reset(self.services)
        code, details = self._call(attack)
        for entity in self.services.request_quotas.read():  # it would delay our next requests
            self.services.request_quotas.remove(entity)
        name = attack.method.rpartition("/")[2]
        is_late = code is Code.DEADLINE_EXCEEDED and name in SLOW
        require(code in EXPECTED or is_late, f"{name} answers {code.name}{_cause(details)}")
        require(code is Code.OK or is_late or details, f"{name} answers {code.name} without a message")

    def _call(self, attack: Attack) -> tuple[Code, str]:
        channel: Any = self._channels[attack.server]
        name = attack.method.rpartition("/")[2]
        seconds = SLOW_SECONDS if name in SLOW else SECONDS
        try:
            if attack.is_stream:
                call = channel.unary_stream(attack.method)(attack.request, timeout=seconds)
                for _ in islice(call, 1 if "Watch" in name else MOST_ANSWERS):
                    pass
                call.cancel()
            else:
                channel.unary_unary(attack.method)(attack.request, timeout=seconds)
        except grpc.RpcError as error:
            failed: Any = error
            return failed.code(), failed.details() or ""
        return Code.OK, ""

    def close(self) -> None:
        """Stop the services."""
        for channel in self._channels.values():
            channel.close()
        self.services.__exit__(None, None, None)


def _cause(details: str) -> str:
    return f" ({details.partition('unexpected ')[2].partition('.')[0]})" if "unexpected " in details else ""


# Requests.

VALID_TEXTS = (
    *(
        "t",
        "t",
        "users/a",
        "brokers/1001",
        "topics/t",
        "clients/<default>",
        "producer_byte_rate",
        "anna",
        "a",
        "b1",
        "10.0.0.7",
    ),
    *("leader.replication.throttled.rate", "leader.replication.throttled.replicas", "0:1001", "50000000", ".*", "1-1"),
)
VALID_INTEGERS = (0, 1, 1, 2, 3, 7, 100, 1001, 1001, 1002, 1003, 1004, 50_000_000)
DOUBLES = (0.0, 0.5, 1.0, 1.2, *hostile.FLOATS)
SENDABLE = tuple(text for text in hostile.TEXTS if not any("\ud800" <= letter <= "\udfff" for letter in text))
"""Texts that a message can contain."""

_LIMITS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
MOST_DEPTH = 4
MOST_BYTES = 500_000
"""Bytes of a repeated message; a request beyond the limit of its size tests nothing else."""
MOST_REPEATED = 100
"""Characters of a text that a field repeats."""


def request_of(method: MethodDescriptor, choices: Choices) -> Message:
    """Return a request with a few hostile fields: a valid one, or one whose fields are mostly valid alone."""
    message: Message = GetMessageClass(method.input_type)()
    if choices.one_in(4):
        fields = list(_fields(method.input_type))
        places = {choices.below(len(fields)) for _ in range(choices.below(3)) if fields}
        _fill(message, choices, frozenset(fields[place] for place in places))
        return message
    json_format.ParseDict(dict(EXAMPLES.get(method.name, {})), message)
    for _ in range(1 + choices.below(3) // 2):
        _attack_field(message, choices)
    return message


def _attack_field(message: Any, choices: Choices, depth: int = 0) -> None:
    """Set or remove one field, at any depth; mostly one that is set."""
    fields = [field for field, _ in message.ListFields()]
    if not fields or choices.one_in(4):
        fields = list(message.DESCRIPTOR.fields)
    if not fields:
        return
    field = choices.of(fields)
    if field.message_type is None or depth > MOST_DEPTH:
        message.ClearField(field.name)
        if not choices.one_in(8):
            _fill_field(message, field, choices, frozenset((field.full_name,)), depth)
    elif field.is_repeated:
        parts = getattr(message, field.name)
        inner = list(parts.values()) if hasattr(parts, "values") else list(parts)
        if inner and isinstance(inner[0], Message):
            _attack_field(choices.of(inner), choices, depth + 1)
        else:
            _fill_repeated(message, field, choices, frozenset((field.full_name,)), depth)
    else:
        part = getattr(message, field.name)
        part.SetInParent()
        _attack_field(part, choices, depth + 1)


@cache
def _fields(described: Descriptor, depth: int = 0) -> Sequence[str]:
    return list(_field_names(described, depth))


def _field_names(described: Descriptor, depth: int) -> Iterator[str]:
    for field in described.fields:
        yield field.full_name
        if field.message_type is not None and depth < MOST_DEPTH:
            yield from _fields(field.message_type, depth + 1)


def _fill(message: Any, choices: Choices, attacked: frozenset[str], depth: int = 0) -> None:
    for field in message.DESCRIPTOR.fields:
        is_hostile = field.full_name in attacked
        if not is_hostile and (choices.one_in(3) or depth > MOST_DEPTH):
            continue
        _fill_field(message, field, choices, attacked, depth)


def _fill_field(message: Any, field: FieldDescriptor, choices: Choices, attacked: frozenset[str], depth: int) -> None:
    if field.is_repeated:
        _fill_repeated(message, field, choices, attacked, depth)
    elif field.message_type is not None:
        part = getattr(message, field.name)
        part.SetInParent()
        _fill(part, choices, attacked, depth + 1)
    else:
        setattr(message, field.name, _scalar(field, choices, field.full_name in attacked))


def _fill_repeated(
    message: Any, field: FieldDescriptor, choices: Choices, attacked: frozenset[str], depth: int
) -> None:
    values, is_hostile = getattr(message, field.name), field.full_name in attacked
    count = choices.of((0, 2, 50, 2_000 if depth == 0 else 50)) if is_hostile and choices.one_in(4) else 1
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        key, value = (entry.fields_by_name[name] for name in ("key", "value"))
        name = _scalar(key, choices, is_hostile)
        if value.message_type is None:
            values[name] = _scalar(value, choices, is_hostile)
        else:
            _fill(values[name], choices, attacked, depth + 1)
    elif entry is not None:
        part = values.add()
        _fill(part, choices, attacked, depth + 1)
        for _ in range(1, min(count, MOST_BYTES // (part.ByteSize() + 1))):
            values.add().CopyFrom(part)
    else:
        scalar = _scalar(field, choices, is_hostile)
        values.extend([scalar[:MOST_REPEATED] if isinstance(scalar, str | bytes) and count > 1 else scalar] * count)


def _scalar(field: FieldDescriptor, choices: Choices, is_hostile: bool) -> Any:
    if field.cpp_type in _LIMITS:
        least, most = _LIMITS[field.cpp_type]
        number = hostile.integer(choices) if is_hostile else choices.of(VALID_INTEGERS)
        return min(max(number, least), most)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return bool(choices.below(2))
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return choices.of((-1, 7, 2**31 - 1)) if is_hostile else choices.below(4)
    if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return choices.of(DOUBLES if is_hostile else DOUBLES[:4])
    text = choices.of(SENDABLE if is_hostile else VALID_TEXTS)
    return text if field.type == FieldDescriptor.TYPE_STRING else text.encode()
