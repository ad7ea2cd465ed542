"""Packs values of core as columns, each value as the difference from an earlier one.

`ColumnPacking` derives the columns from the type hints of a dataclass: each field of each nested type has its own
column of integers, texts or floats. Equal parts of the two values take one byte. The counts of a flow or a broker are
predicted from its last counts, so that a steady rate takes about a byte for each sample.

A reader knows the columns of the writer by their names. It gives a field without a column its default, and ignores a
column without a field. So older and newer versions read the same values. The type to know is `ColumnPacking`.
"""

from __future__ import annotations

import struct
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from enum import Enum
from functools import cache
from itertools import repeat
from typing import Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints
from zoneinfo import ZoneInfo

from autothrottle.core import errors
from autothrottle.core.cluster.flows import FlowProgress, LogGrowth, TopicProgress
from autothrottle.core.cluster.snapshot import TopicReassignment
from autothrottle.core.errors import AutothrottleError, Incomplete
from autothrottle.core.operators.sources import StoredMap
from autothrottle.core.policy.interface import Policy
from autothrottle.core.policy.registry import policy_of, policy_text
from autothrottle.core.scoring.columns import (
    DIFFERENT,
    EPOCH,
    MICROSECOND,
    NOTHING,
    REORDERED,
    SAME,
    Codec,
    Columns,
    ComparedCodec,
    Reader,
    Writer,
    read_difference,
    write_difference,
)
from autothrottle.core.scoring.counts import FlowCountCodec, LogCountCodec, TopicCountCodec

_T = TypeVar("_T")

_LONG_TEXT = 40
"""From this length on, a text is packed as the difference from the earlier one, entry by entry."""


class _Integer(Codec):
    """Integers, and what is one: truth values, times and durations."""

    def __init__(self, column: int, encode: Callable[[Any], int] = int, decode: Callable[[int], Any] = int) -> None:
        self.column, self._encode, self._decode = column, encode, decode

    def write(self, writer: Writer, value: Any, earlier: Any) -> None:
        base = 0 if earlier is NOTHING or earlier is None else self._encode(earlier)
        writer.integers[self.column].append(self._encode(value) - base)

    def read(self, reader: Reader, earlier: Any) -> Any:
        base = 0 if earlier is NOTHING or earlier is None else self._encode(earlier)
        return self._decode(base + reader.integer(self.column))


def _microseconds(time: datetime) -> int:
    return (time - EPOCH) // MICROSECOND


def _time(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


_CONVERTED: Mapping[Any, tuple[Callable[[Any], int], Callable[[int], Any]]] = {
    int: (int, int),
    bool: (int, bool),
    datetime: (_microseconds, _time),
    timedelta: (lambda duration: duration // MICROSECOND, lambda number: timedelta(microseconds=number)),
}


class _Float(Codec):
    """Floats, and the integers that some fields of floats have: both keep their type."""

    def __init__(self, columns: Columns, name: str) -> None:
        self.column, self._values = columns.add(name), columns.add(f"{name}:value")

    def write(self, writer: Writer, value: Any, earlier: Any) -> None:
        if type(value) is type(earlier) and struct.pack("<d", value) == struct.pack("<d", earlier):
            writer.integers[self.column].append(SAME)
        elif isinstance(value, int):
            writer.integers[self.column] += [2, value]
        else:
            writer.integers[self.column].append(1)
            writer.texts[self._values].append(struct.pack("<d", value))

    def read(self, reader: Reader, earlier: Any) -> Any:
        kind = reader.integer(self.column)
        if kind == SAME:
            return earlier
        if kind == 2:
            return reader.integer(self.column)
        return struct.unpack("<d", reader.bytes(self._values, 8))[0]


class _Text(Codec):
    """Texts. A long one is packed entry by entry, as the lists of throttled replicas are texts."""

    def __init__(self, columns: Columns, name: str, kind: Callable[[str], Any] = str) -> None:
        self.column, self._texts, self._kind = columns.add(name), columns.add(f"{name}:text"), kind

    def write(self, writer: Writer, value: Any, earlier: Any) -> None:
        integers = writer.integers[self.column]
        text = str(value)
        if earlier is not NOTHING and earlier is not None and text == str(earlier):
            integers.append(SAME)
            return
        if isinstance(earlier, str) and len(text) > _LONG_TEXT < len(earlier):
            integers.append(2)
            entries = text.split(",")
            for number in write_difference(integers, entries, str(earlier).split(",")):
                self._write_text(writer, entries[number])
            return
        integers.append(1)
        self._write_text(writer, text)

    def _write_text(self, writer: Writer, text: str) -> None:
        encoded = text.encode("utf-8", "surrogatepass")
        writer.integers[self.column].append(len(encoded))
        writer.texts[self._texts].append(encoded)

    def read(self, reader: Reader, earlier: Any) -> Any:
        kind = reader.integer(self.column)
        if kind == SAME:
            return self._kind(earlier)
        if kind == 1:
            return self._kind(self._read_text(reader))
        entries = read_difference(reader, self.column, str(earlier).split(","), lambda _: self._read_text(reader))
        return self._kind(",".join(entries))

    def _read_text(self, reader: Reader) -> str:
        return reader.bytes(self._texts, reader.count(self.column)).decode("utf-8", "surrogatepass")


class _Sequence(ComparedCodec):
    """Tuples of any length, and sets, which are sorted."""

    def __init__(self, columns: Columns, name: str, item: Any, kind: Callable[[Iterable[Any]], Any]) -> None:
        self.column, self._kind = columns.add(name), kind
        self._item = _codec(columns, f"{name}[]", item)

    def _ordered(self, values: Collection[Any]) -> Sequence[Any]:
        return tuple(values) if self._kind is tuple else sorted(values, key=_order)

    def write_different(self, writer: Writer, value: Any, earlier: Any) -> None:
        self.write_values(writer, self._ordered(value), self._earlier(earlier))

    def write_values(self, writer: Writer, values: Sequence[Any], earlier: Sequence[Any]) -> None:
        integers = writer.integers[self.column]
        for number in write_difference(integers, values, earlier):
            self._item.write(writer, values[number], values[number - 1] if number else NOTHING)

    def read_different(self, reader: Reader, earlier: Any) -> Any:
        return self._kind(self.read_values(reader, self._earlier(earlier)))

    def read_values(self, reader: Reader, earlier: Sequence[Any]) -> list[Any]:
        return read_difference(
            reader, self.column, earlier, lambda values: self._item.read(reader, values[-1] if values else NOTHING)
        )

    def _earlier(self, earlier: Any) -> Sequence[Any]:
        return () if earlier is NOTHING or earlier is None else self._ordered(earlier)


def _order(value: Any) -> Any:
    if isinstance(value, int | str):
        return type(value) is not int, value if type(value) is int else 0, str(value)
    if isinstance(value, tuple):
        return tuple(map(_order, value))
    return True, 0, repr(value)


class _Map(Codec):
    """Maps, with the order of their keys. A stored map also has what cannot be read."""

    def __init__(self, columns: Columns, name: str, key: Any, value: Any) -> None:
        self.column = columns.add(name)
        self._keys = _Sequence(columns, f"{name}.keys", key, tuple)
        self._values = _codec(columns, f"{name}{{}}", value)
        self._stored = columns.add(f"{name}.stored")
        self._unreadable = _Sequence(columns, f"{name}.unreadable", tuple[str, str], tuple)

    def write(self, writer: Writer, value: Any, earlier: Any) -> None:
        integers = writer.integers[self.column]
        unreadable = _unreadable(value)
        if value is earlier or (
            isinstance(earlier, Mapping)
            and len(value) == len(earlier)
            and value == earlier
            and list(value) == list(earlier)
            and unreadable == _unreadable(earlier)
            and type(value) is type(earlier)
        ):
            integers.append(SAME)
            return
        base = earlier if isinstance(earlier, Mapping) else {}
        keys, base_keys = tuple(value), tuple(base)
        integers.append(DIFFERENT if keys == base_keys else REORDERED)
        if keys != base_keys:
            self._keys.write_values(writer, keys, base_keys)
        last = NOTHING
        for key, item in value.items():
            self._values.write(writer, item, base.get(key, last))
            last = item
        is_stored = isinstance(value, StoredMap)
        writer.integers[self._stored].append(is_stored)
        if is_stored:
            self._unreadable.write(writer, tuple(unreadable.items()), NOTHING)

    def read(self, reader: Reader, earlier: Any) -> Any:
        kind = reader.integer(self.column)
        if kind == SAME:
            return earlier
        base = earlier if isinstance(earlier, Mapping) else {}
        keys = tuple(base) if kind == DIFFERENT else self._keys.read_values(reader, tuple(base))
        values: dict[Any, Any] = {}
        last = NOTHING
        for key in keys:
            last = values[key] = self._values.read(reader, base.get(key, last))
        if not reader.integer(self._stored):
            return values
        return StoredMap(values, dict(self._unreadable.read(reader, NOTHING)))


def _unreadable(value: Any) -> Mapping[str, str]:
    return value.unreadable if isinstance(value, StoredMap) else {}


class _Parts(Codec):
    """Tuples of a fixed length and named tuples."""

    def __init__(self, columns: Columns, name: str, parts: Sequence[tuple[str, Any]], kind: Callable[..., Any]) -> None:
        self._parts = [_codec(columns, f"{name}.{part}", hint) for part, hint in parts]
        self._kind, self.column = kind, self._parts[0].column

    def write(self, writer: Writer, value: Any, earlier: Any) -> None:
        base = repeat(NOTHING) if earlier is NOTHING or earlier is None else earlier
        for codec, part, old in zip(self._parts, value, base, strict=False):
            codec.write(writer, part, old)

    def read(self, reader: Reader, earlier: Any) -> Any:
        base = repeat(NOTHING) if earlier is NOTHING or earlier is None else earlier
        return self._kind([codec.read(reader, old) for codec, old in zip(self._parts, base, strict=False)])


class _Fields(Codec):
    """Dataclasses."""

    def __init__(self, columns: Columns, name: str, kind: Any) -> None:
        self.column, self._kind = columns.add(name), kind
        hints = get_type_hints(kind)
        self._fields = [(field, _codec(columns, f"{name}.{field.name}", hints[field.name])) for field in fields(kind)]
        nested = columns.names[self.column :]
        self._has_maps = any(column.endswith(".keys") for column in nested)
        """Maps with another order of their keys are equal, so that such values are compared field by field."""

    def write(self, writer: Writer, value: Any, earlier: Any) -> None:
        if value is earlier or (not self._has_maps and earlier is not NOTHING and value == earlier):
            writer.integers[self.column].append(SAME)
            return
        writer.integers[self.column].append(DIFFERENT)
        for field, codec in self._fields:
            old = NOTHING if earlier is NOTHING or earlier is None else getattr(earlier, field.name)
            codec.write(writer, getattr(value, field.name), old)

    def read(self, reader: Reader, earlier: Any) -> Any:
        if reader.integer(self.column) == SAME:
            return earlier
        values = {}
        for field, codec in self._fields:
            if not reader.has(codec.column):
                if field.default is MISSING and field.default_factory is MISSING:
                    raise Incomplete(
                        f"the log lacks {self._kind.__name__}.{field.name}: it was written by another version"
                    )
                continue
            old = NOTHING if earlier is NOTHING or earlier is None else getattr(earlier, field.name)
            values[field.name] = codec.read(reader, old)
        return self._kind(**values)


class _Choice(Codec):
    """Values of one of several types."""

    def __init__(self, columns: Columns, name: str, kinds: Sequence[Any]) -> None:
        self.column = columns.add(name)
        self._kinds = [_runtime_type(kind) for kind in kinds]
        self._codecs = [
            None if kind is type(None) else _codec(columns, f"{name}|{number}" if len(kinds) > 2 else f"{name}?", kind)
            for number, kind in enumerate(kinds)
        ]

    def write(self, writer: Writer, value: Any, earlier: Any) -> None:
        number = next(number for number, kind in enumerate(self._kinds) if isinstance(value, kind))
        writer.integers[self.column].append(number)
        if (codec := self._codecs[number]) is not None:
            codec.write(writer, value, earlier if isinstance(earlier, self._kinds[number]) else NOTHING)

    def read(self, reader: Reader, earlier: Any) -> Any:
        number = reader.integer(self.column)
        if not 0 <= number < len(self._codecs):
            raise Incomplete(f"a packed cycle has a value of type {number}, which this version does not know")
        codec = self._codecs[number]
        if codec is None:
            return None
        return codec.read(reader, earlier if isinstance(earlier, self._kinds[number]) else NOTHING)


def _runtime_type(hint: Any) -> Any:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return tuple(map(_runtime_type, get_args(hint)))
    return (int, float) if hint is float else origin or hint


class _Error(Codec):
    """Errors with their message, and the address of a leader."""

    def __init__(self, columns: Columns, name: str) -> None:
        self._texts = [_Text(columns, f"{name}.{part}") for part in ("kind", "message", "leader_address")]
        self.column = self._texts[0].column

    def write(self, writer: Writer, value: Any, earlier: Any) -> None:
        texts = type(value).__name__, str(value), getattr(value, "leader_address", "")
        for codec, text in zip(self._texts, texts, strict=True):
            codec.write(writer, text, NOTHING)

    def read(self, reader: Reader, earlier: Any) -> Any:
        name, message, address = (codec.read(reader, NOTHING) for codec in self._texts)
        kind = getattr(errors, name, AutothrottleError)
        return kind(message, address) if kind is errors.NotLeader else kind(message)


class _Named(Codec):
    """Objects that a text describes, packed as this text."""

    def __init__(self, columns: Columns, name: str, encode: Callable[[Any], str], decode: Callable[[str], Any]) -> None:
        self._text, self._encode, self._decode = _Text(columns, name), encode, decode
        self.column = self._text.column

    def write(self, writer: Writer, value: Any, earlier: Any) -> None:
        self._text.write(writer, self._encode(value), NOTHING if earlier is NOTHING else self._encode(earlier))

    def read(self, reader: Reader, earlier: Any) -> Any:
        return self._decode(self._text.read(reader, NOTHING if earlier is NOTHING else self._encode(earlier)))


def _zone_text(zone: tzinfo) -> str:
    return zone.key if isinstance(zone, ZoneInfo) else ""


class _Reassignments(Codec):
    """The reassignments of a snapshot, ordered by topic; each as the difference from that of the same topic."""

    def __init__(self, columns: Columns, name: str) -> None:
        self._map = _Map(columns, name, str, TopicReassignment)
        self.column = self._map.column

    def write(self, writer: Writer, value: Any, earlier: Any) -> None:
        if value is earlier:
            writer.integers[self.column].append(SAME)
        else:
            self._map.write(writer, _by_topic(value), _by_topic(earlier))

    def read(self, reader: Reader, earlier: Any) -> Any:
        base = _by_topic(earlier)
        reassignments = self._map.read(reader, base)
        return earlier if reassignments is base and base else tuple(reassignments.values())


def _by_topic(reassignments: Any) -> Any:
    return {} if reassignments is NOTHING else {reassignment.topic: reassignment for reassignment in reassignments}


def _codec(columns: Columns, name: str, hint: Any) -> Codec:
    """Return the codec of a type hint at a place of the tree."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _CONVERTED:
        return _Integer(columns.add(name), *_CONVERTED[hint])
    if origin in (Union, types.UnionType):
        return _Choice(columns, name, arguments)
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            is_topics = arguments[0] is TopicReassignment
            return _Reassignments(columns, name) if is_topics else _Sequence(columns, name, arguments[0], tuple)
        return _Parts(columns, name, [(str(n), kind) for n, kind in enumerate(arguments)], tuple)
    if origin is frozenset or origin is Collection:
        return _Sequence(columns, name, arguments[0], frozenset)
    if origin is Mapping:
        return _Map(columns, name, *arguments)
    return _class_codec(columns, name, hint)


def _class_codec(columns: Columns, name: str, kind: Any) -> Codec:
    """Return the codec of a class without type arguments."""
    if kind is float:
        return _Float(columns, name)
    if kind is FlowProgress:
        return FlowCountCodec(columns, name)
    if kind is LogGrowth:
        return LogCountCodec(columns, name)
    if kind is TopicProgress:
        return TopicCountCodec(columns, name)
    if kind is Policy:
        return _Named(columns, name, policy_text, policy_of)
    if kind is tzinfo:
        return _Named(columns, name, _zone_text, lambda text: ZoneInfo(text) if text else UTC)
    if issubclass(kind, AutothrottleError):
        return _Error(columns, name)
    if issubclass(kind, Enum):
        return _Named(columns, name, lambda member: member.name, lambda text: kind[text])
    if issubclass(kind, tuple):
        hints = get_type_hints(kind)
        return _Parts(columns, name, list(hints.items()), lambda values: kind(*values))
    if is_dataclass(kind):
        return _Fields(columns, name, kind)
    return _Text(columns, name, kind)


class ColumnPacking(Generic[_T]):
    """Packs values of one dataclass, each as the difference from an earlier value."""

    def __init__(self, kind: type[_T]) -> None:
        columns = Columns()
        self._codec = _codec(columns, "", kind)
        self.layout = "\n".join(columns.names)
        """The names of the columns; the reader needs that of the writer."""
        self._columns = len(columns.names)
        self._numbers = {name: number for number, name in enumerate(columns.names)}
        self._order: Callable[[str], Sequence[int | None]] = cache(self._numbers_of)

    def pack(self, value: _T, earlier: _T | None = None) -> bytes:
        """Return a value as bytes; None: it is not the difference from another value."""
        writer = Writer(self._columns)
        self._codec.write(writer, value, NOTHING if earlier is None else earlier)
        return writer.packed()

    def unpack(self, packed: bytes, layout: str, earlier: _T | None = None) -> _T:
        """Return a packed value.

        Args:
            packed: result of `pack`, perhaps of another version.
            layout: the names of the writer's columns.
            earlier: the value from which it is the difference; None: from none.

        Raises:
            Incomplete: the bytes are damaged, or a field without a default has no column.
        """
        try:
            reader = Reader(packed, self._order(layout))
            value: _T = self._codec.read(reader, NOTHING if earlier is None else earlier)
        except errors.FIELD_ERRORS as error:
            raise Incomplete(f"a packed cycle is damaged: {type(error).__name__}: {error}") from None
        return value

    def _numbers_of(self, layout: str) -> Sequence[int | None]:
        return [self._numbers.get(name) for name in layout.split("\n")]
