"""Lies of a proxy between a client and Kafka or ZooKeeper: delayed, cut, incomplete, wrong and damaged answers.

`Liar` gets each request and its answer as frames, and returns what the client gets instead. Answers of Kafka are
decoded and encoded again by kafka-python's own classes. The type to know is `Lie`.
"""

from __future__ import annotations

import io
import random
import struct
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from kazoo import exceptions

from autothrottle.adapters.kafka_admin.connections import kafka
from autothrottle.adapters.kafka_admin.schemas import ConsumerGroupDescribeRequest
from tests.chaos.proxy import Answer, Framing

LATE_SECONDS = 20.0
API_VERSIONS, METADATA, FETCH, PRODUCE = 18, 3, 1, 0
DESCRIBE_CONFIGS = 32

_KAFKA_HEADER = struct.Struct(">hhi")
_ZOOKEEPER_REPLY = struct.Struct(">iqi")
"""xid, zxid, error."""
_LENGTH = struct.Struct(">i")

KAFKA_CODES = sorted(error.errno for error in kafka.errors.kafka_errors.values() if error.errno)
"""All error codes of Kafka's protocol."""
ZOOKEEPER_CODES = sorted(code for code in exceptions.EXCEPTIONS if code)
"""All error codes of ZooKeeper's protocol."""


class LieKind(Enum):
    """How an answer is changed."""

    THROTTLED = "a delay by a quota"
    """The answer has a throttle time; one to a fetch has no partition then."""
    EMPTY = "no entries"
    """All lists of the answer are empty, and it may have a throttle time."""
    PART = "a part of the entries"
    ERROR = "an error code"
    FLIPPED = "a flipped bit"
    LATE = "a delay of 20 s"
    CUT = "cut after the request"


@dataclass(frozen=True, slots=True)
class Lie:
    """A way to answer."""

    kind: LieKind
    apis: frozenset[int] = frozenset()
    """API keys of Kafka, or request types of ZooKeeper; empty: all but the one that opens a connection."""
    seed: int = 0
    """Chooses the entries, the error code and the bit."""
    codes: Sequence[int] = ()
    """Error codes; empty: all."""
    share: float = 1.0
    """Of the answers."""
    milliseconds: Sequence[int] = (1, 200, 2_000, 2**31 - 1)
    """Delays by a quota."""
    in_records: bool = False
    """Whether a bit is flipped in the records of a fetch, which have a checksum."""


class Liar:
    """Changes answers as long as it has a lie; thread-safe."""

    def __init__(self, framing: Framing) -> None:
        self.lie: Lie | None = None
        self.lies: Counter[str] = Counter()
        """Number of changed answers by kind and API."""
        self._framing = framing
        self._lock = threading.Lock()
        self._random = random.Random()

    def begin(self, lie: Lie) -> None:
        """Lie from now on."""
        with self._lock:
            self._random = random.Random(lie.seed)
            self.lie = lie

    def end(self) -> None:
        """Tell the truth from now on."""
        self.lie = None

    def answer(self, request: bytes, answer: bytes) -> Answer:
        """Return what the client gets.

        Args:
            request: its frame.
            answer: the frame of the server.
        """
        lie = self.lie
        with self._lock:
            is_lie = lie is not None and self._concerns(lie, request) and self._random.random() < lie.share
            choices = random.Random(self._random.random())
        if lie is None or not is_lie:
            return Answer(answer)
        changed = self._changed(lie, choices, request, answer)
        if changed != Answer(answer):
            self.lies[lie.kind.name] += 1
        return changed

    def _concerns(self, lie: Lie, request: bytes) -> bool:
        if self._framing is Framing.ZOOKEEPER:
            kind = _LENGTH.unpack_from(request, 4)[0]
            return kind in lie.apis if lie.apis else kind not in _PINGS
        api = _KAFKA_HEADER.unpack_from(request)[0]
        return api in lie.apis if lie.apis else api != API_VERSIONS

    def _changed(self, lie: Lie, choices: random.Random, request: bytes, answer: bytes) -> Answer:
        match lie.kind:
            case LieKind.LATE:
                return Answer(answer, LATE_SECONDS)
            case LieKind.CUT:
                return Answer(None)
            case LieKind.FLIPPED:
                return Answer(_flipped(answer, choices, lie.in_records))
        if self._framing is Framing.ZOOKEEPER:
            return _zookeeper_lie(lie, choices, answer)
        try:
            return Answer(kafka_lie(lie, choices, request, answer))
        except (ValueError, KeyError, AttributeError, struct.error):  # kafka-python cannot encode it
            return Answer(answer)


_PINGS = frozenset({-2, -11, 100, 102})
"""Ping, close, authentication and SASL."""


def _flipped(frame: bytes, choices: random.Random, in_records: bool) -> bytes:
    start = 4  # a wrong correlation id is noticed at once
    if in_records:
        position = frame.rfind(b"\x02", 0, len(frame) // 2)
        start = max(start, position)
    bit = choices.randrange(8 * start, 8 * len(frame)) if len(frame) > start else 0
    changed = bytearray(frame)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def _zookeeper_lie(lie: Lie, choices: random.Random, answer: bytes) -> Answer:
    """Answers of ZooKeeper have no lists of results that a request names; a part of one cannot be parsed."""
    if len(answer) < _ZOOKEEPER_REPLY.size:
        return Answer(answer)
    xid, zxid, code = _ZOOKEEPER_REPLY.unpack_from(answer)
    if xid < 0:  # a watch or a ping
        return Answer(answer)
    match lie.kind:
        case LieKind.ERROR:
            return Answer(_ZOOKEEPER_REPLY.pack(xid, zxid, choices.choice(lie.codes or ZOOKEEPER_CODES)))
        case LieKind.THROTTLED:
            return Answer(answer, choices.uniform(0.5, 3.0))
        case LieKind.EMPTY:
            return Answer(_ZOOKEEPER_REPLY.pack(xid, zxid, code))
        case _:
            return Answer(answer[: choices.randrange(_ZOOKEEPER_REPLY.size, len(answer) + 1)])


def kafka_lie(lie: Lie, choices: random.Random, request: bytes, answer: bytes) -> bytes:
    """Return an answer of Kafka with another content."""
    api, version, correlation = _KAFKA_HEADER.unpack_from(request)
    response = decoded_answer(api, version, answer)
    if "throttle_time_ms" in response.fields and (
        lie.kind is LieKind.THROTTLED or (lie.kind is LieKind.EMPTY and choices.random() < 0.5)
    ):
        response.throttle_time_ms = choices.choice(lie.milliseconds)
    lists = [name for name, field in response.fields.items() if field.is_struct_array() and getattr(response, name)]
    if lie.kind is LieKind.EMPTY or (lie.kind is LieKind.THROTTLED and api == FETCH):
        for name in lists:
            setattr(response, name, [])
    elif lie.kind is LieKind.PART and lists:
        entries = list(_lists(response))
        owner, name = choices.choice(entries)
        rest = list(getattr(owner, name))
        del rest[choices.randrange(len(rest))]
        setattr(owner, name, rest)
    elif lie.kind is LieKind.ERROR:
        code = choices.choice(lie.codes or KAFKA_CODES)
        owners = [part for part in _parts(response) if "error_code" in part.fields]
        for part in owners if choices.random() < 0.5 else choices.sample(owners, min(len(owners), 1)):
            part.error_code = code
    return encoded_answer(response, version, correlation)


def encoded_answer(response: Any, version: int, correlation: int) -> bytes:
    """Return the frame of an answer."""
    response._header = None
    response.API_VERSION = version
    response.with_header(correlation_id=correlation)
    return bytes(response.encode(header=True))


def _parts(part: Any) -> Iterator[Any]:
    """Yield a message and all its parts."""
    yield part
    for name, field in part.fields.items():
        if field.is_struct_array():
            for entry in getattr(part, name) or ():
                yield from _parts(entry)


def _lists(response: Any) -> Sequence[tuple[Any, str]]:
    """Return (owner, field) of the lists of parts that are not empty."""
    return [
        (part, name)
        for part in _parts(response)
        for name, field in part.fields.items()
        if field.is_struct_array() and getattr(part, name)
    ]


def response_type(api: int) -> Any:
    """Return kafka-python's class of an answer."""
    return kafka.protocol.api_header.ResponseClassRegistry._response_class_registry[api][None]


def decoded_answer(api: int, version: int, answer: bytes) -> Any:
    """Return the answer to a request as kafka-python's message."""
    kind, stream = response_type(api), io.BytesIO(answer)
    kind[version].parse_header(stream)
    return kind.decode(stream.read(), version=version)


REQUESTS: dict[int, Any] = {
    kind.API_KEY: kind
    for module in (
        kafka.protocol.admin,
        kafka.protocol.consumer,
        kafka.protocol.metadata,
        kafka.protocol.producer,
    )
    for name, kind in vars(module).items()
    if name.endswith("Request") and isinstance(getattr(kind, "API_KEY", None), int)
} | {ConsumerGroupDescribeRequest.API_KEY: ConsumerGroupDescribeRequest}
"""API key -> kafka-python's class of a request."""
