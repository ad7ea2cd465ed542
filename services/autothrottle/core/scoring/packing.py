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
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from enum import Enum
from functools import cache
from itertools import repeat
from typing import Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints
from zoneinfo import ZoneInfo

from autothrottle.core import errors
from autothrottle.core.cluster.flows import CopiedMark, FlowProgress, GrowthMark, LogGrowth, TopicProgress
from autothrottle.core.cluster.snapshot import TopicReassignment
from autothrottle.core.errors import AutothrottleError, Incomplete
from autothrottle.core.operators.sources import StoredMap
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.headroom import HeadroomPolicy, StaticPolicy
from autothrottle.core.policy.interface import Policy

_T = TypeVar("_T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_NOTHING: Any = object()
"""The earlier value of a record that is packed as a whole."""

_LONG_TEXT = 40
"""From this length on, a text is packed as the difference from the earlier one, entry by entry."""

_MOST_BITS = 350
"""Longest number; only damaged ones are longer, and reading those would take time without end."""

_SAME, _DIFFERENT, _REORDERED = 0, 1, 2
"""How a value differs from the earlier one; `_REORDERED` is a map with other keys, or with another order of them."""


class _Writer:
    """The columns of one value."""

    def __init__(self, columns: int) -> None:
        self.integers: list[list[int]] = [[] for _ in range(columns)]
        self.texts: list[list[bytes]] = [[] for _ in range(columns)]

    def packed(self) -> bytes:
        """The columns that are not empty: the number of empty ones before each, its length, its content."""
        parts, empty = [], 0
        for integers, texts in zip(self.integers, self.texts, strict=True):
            if column := _varints(integers) + b"".join(texts):
                parts += [_varints([empty, len(column)]), column]
                empty = -1
            empty += 1
        return b"".join(parts)


class _Reader:
    """The columns of one value while they are read."""

    def __init__(self, packed: bytes, columns: Sequence[int | None]) -> None:
        """Read the columns; `columns` has for each column of the writer its number here, None: no such column."""
        self._packed = packed
        self._ends = {number: 0 for number in columns if number is not None}
        self._at = dict(self._ends)
        position = index = 0
        while position < len(packed):
            empty, position = _varint(packed, position, len(packed))
            length, position = _varint(packed, position, len(packed))
            index, end = index + (empty >> 1), position + (length >> 1)
            if index >= len(columns) or end > len(packed):
                raise Incomplete("a packed cycle is damaged: a column is too long")
            if (number := columns[index]) is not None:
                self._at[number], self._ends[number] = position, end
            position, index = end, index + 1

    def has(self, column: int) -> bool:
        return column in self._ends

    def integer(self, column: int) -> int:
        number, self._at[column] = _varint(self._packed, self._at[column], self._ends[column])
        return -(number >> 1) - 1 if number & 1 else number >> 1

    def count(self, column: int) -> int:
        """Read a number of values that follow, so at most as many as there are bytes."""
        number = self.integer(column)
        if number < 0:
            raise Incomplete("a packed cycle has a number of values below 0; it is damaged")
        return number

    def bytes(self, column: int, length: int) -> bytes:
        start = self._at[column]
        if length < 0 or start + length > self._ends[column]:
            raise Incomplete("a column of a packed cycle ends too early; it is damaged")
        self._at[column] = start + length
        return self._packed[start : start + length]


def _varints(numbers: Iterable[int]) -> bytes:
    packed = bytearray()
    for signed in numbers:
        number = signed << 1 if signed >= 0 else ~(signed << 1)
        while number > 0x7F:
            packed.append(number & 0x7F | 0x80)
            number >>= 7
        packed.append(number)
    return bytes(packed)


def _varint(packed: bytes, position: int, end: int) -> tuple[int, int]:
    number = shift = 0
    while position < end and shift < _MOST_BITS:
        byte = packed[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
    raise Incomplete("a number of a packed cycle does not end; it is damaged")


class _Columns:
    """Numbers the columns while the codecs are built."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def add(self, name: str) -> int:
        self.names.append(name)
        return len(self.names) - 1


class _Codec:
    """Packs values of one type at one place of the tree."""

    column: int
    """A column that every value of the type has."""

    def write(self, writer: _Writer, value: Any, earlier: Any) -> None:
        raise NotImplementedError

    def read(self, reader: _Reader, earlier: Any) -> Any:
        raise NotImplementedError


class _Integer(_Codec):
    """Integers, and what is one: truth values, times and durations."""

    def __init__(self, column: int, encode: Callable[[Any], int] = int, decode: Callable[[int], Any] = int) -> None:
        self.column, self._encode, self._decode = column, encode, decode

    def write(self, writer: _Writer, value: Any, earlier: Any) -> None:
        base = 0 if earlier is _NOTHING or earlier is None else self._encode(earlier)
        writer.integers[self.column].append(self._encode(value) - base)

    def read(self, reader: _Reader, earlier: Any) -> Any:
        base = 0 if earlier is _NOTHING or earlier is None else self._encode(earlier)
        return self._decode(base + reader.integer(self.column))


def _microseconds(time: datetime) -> int:
    return (time - _EPOCH) // _MICROSECOND


def _time(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


_CONVERTED: Mapping[Any, tuple[Callable[[Any], int], Callable[[int], Any]]] = {
    int: (int, int),
    bool: (int, bool),
    datetime: (_microseconds, _time),
    timedelta: (lambda duration: duration // _MICROSECOND, lambda number: timedelta(microseconds=number)),
}


class _Float(_Codec):
    """Floats, and the integers that some fields of floats have: both keep their type."""

    def __init__(self, columns: _Columns, name: str) -> None:
        self.column, self._values = columns.add(name), columns.add(f"{name}:value")

    def write(self, writer: _Writer, value: Any, earlier: Any) -> None:
        if type(value) is type(earlier) and struct.pack("<d", value) == struct.pack("<d", earlier):
            writer.integers[self.column].append(_SAME)
        elif isinstance(value, int):
            writer.integers[self.column] += [2, value]
        else:
            writer.integers[self.column].append(1)
            writer.texts[self._values].append(struct.pack("<d", value))

    def read(self, reader: _Reader, earlier: Any) -> Any:
        kind = reader.integer(self.column)
        if kind == _SAME:
            return earlier
        if kind == 2:
            return reader.integer(self.column)
        return struct.unpack("<d", reader.bytes(self._values, 8))[0]


class _Text(_Codec):
    """Texts. A long one is packed entry by entry, as the lists of throttled replicas are texts."""

    def __init__(self, columns: _Columns, name: str, kind: Callable[[str], Any] = str) -> None:
        self.column, self._texts, self._kind = columns.add(name), columns.add(f"{name}:text"), kind

    def write(self, writer: _Writer, value: Any, earlier: Any) -> None:
        integers = writer.integers[self.column]
        text = str(value)
        if earlier is not _NOTHING and earlier is not None and text == str(earlier):
            integers.append(_SAME)
            return
        if isinstance(earlier, str) and len(text) > _LONG_TEXT < len(earlier):
            integers.append(2)
            entries = text.split(",")
            for number in _write_difference(integers, entries, str(earlier).split(",")):
                self._write_text(writer, entries[number])
            return
        integers.append(1)
        self._write_text(writer, text)

    def _write_text(self, writer: _Writer, text: str) -> None:
        encoded = text.encode("utf-8", "surrogatepass")
        writer.integers[self.column].append(len(encoded))
        writer.texts[self._texts].append(encoded)

    def read(self, reader: _Reader, earlier: Any) -> Any:
        kind = reader.integer(self.column)
        if kind == _SAME:
            return self._kind(earlier)
        if kind == 1:
            return self._kind(self._read_text(reader))
        entries = _read_difference(reader, self.column, str(earlier).split(","), lambda _: self._read_text(reader))
        return self._kind(",".join(entries))

    def _read_text(self, reader: _Reader) -> str:
        return reader.bytes(self._texts, reader.count(self.column)).decode("utf-8", "surrogatepass")


def _write_difference(integers: list[int], values: Sequence[Any], earlier: Sequence[Any]) -> list[int]:
    """Write which runs of the earlier values stay, and how many new ones follow each; return the indices of new values.

    It writes the number of runs, and for each run: earlier values to skip, values that stay, and new ones.
    """
    runs: list[int] = []
    new: list[int] = []
    places = _Places(values, earlier)
    index = position = 0
    while index < len(values):
        start = position
        place = places.of(index, position)
        if place is not None:
            position = place
        unchanged = index
        while index < len(values) and position < len(earlier) and values[index] == earlier[position]:
            index, position = index + 1, position + 1
        added = index
        while index < len(values) and places.of(index, position) is None:
            index += 1
        new += range(added, index)
        runs += position - (added - unchanged) - start, added - unchanged, index - added
    integers += (len(runs) // 3, *runs)
    return new


class _Places:
    """Finds values among the earlier ones."""

    def __init__(self, values: Sequence[Any], earlier: Sequence[Any]) -> None:
        self._values, self._earlier = values, earlier
        self._places: dict[Any, list[int]] | None = None

    def of(self, index: int, position: int) -> int | None:
        """Return the place of a value in the rest of the earlier values; None: it is new there."""
        values, earlier = self._values, self._earlier
        if position < len(earlier) and values[index] == earlier[position]:
            return position
        following = self._of_value(values[index])
        number = bisect_left(following, position)
        if number == len(following):
            return None
        place = following[number]
        # A value that replaces another one may also occur later; skipping to there would lose all values between.
        is_replaced = self._follows(index, position) and not self._follows(index, place)
        return None if is_replaced else place

    def _follows(self, index: int, place: int) -> bool:
        """Whether the value after this one is the same at both places."""
        following = self._values[index + 1 : index + 2]
        return bool(following) and following == self._earlier[place + 1 : place + 2]

    def _of_value(self, value: Any) -> Sequence[int]:
        with suppress(TypeError):  # of values that contain a map: those count as new
            if self._places is None:
                self._places = {}
                for place, old in enumerate(self._earlier):
                    self._places.setdefault(old, []).append(place)
            return self._places.get(value, ())
        return ()


def _read_difference(
    reader: _Reader, column: int, earlier: Sequence[Any], read: Callable[[Sequence[Any]], Any]
) -> list[Any]:
    """Read what `_write_difference` has written; `read` reads a new value, given the values before it."""
    values: list[Any] = []
    position = 0
    # All runs precede the new values, which may be in the same column.
    runs = [(reader.count(column), reader.count(column), reader.count(column)) for _ in range(reader.count(column))]
    for skipped, unchanged, added in runs:
        position += skipped
        if position + unchanged > len(earlier):
            raise Incomplete("a packed cycle keeps values that the earlier one lacks; it is damaged")
        values += earlier[position : position + unchanged]
        position += unchanged
        for _ in range(added):
            values.append(read(values))
    return values


class _Sequence(_Codec):
    """Tuples of any length, and sets, which are sorted."""

    def __init__(self, columns: _Columns, name: str, item: Any, kind: Callable[[Iterable[Any]], Any]) -> None:
        self.column, self._kind = columns.add(name), kind
        self._item = _codec(columns, f"{name}[]", item)

    def _ordered(self, values: Collection[Any]) -> Sequence[Any]:
        return tuple(values) if self._kind is tuple else sorted(values, key=_order)

    def write(self, writer: _Writer, value: Any, earlier: Any) -> None:
        integers = writer.integers[self.column]
        if value is earlier or (earlier is not _NOTHING and value == earlier):
            integers.append(_SAME)
            return
        integers.append(_DIFFERENT)
        self.write_values(writer, self._ordered(value), self._earlier(earlier))

    def write_values(self, writer: _Writer, values: Sequence[Any], earlier: Sequence[Any]) -> None:
        integers = writer.integers[self.column]
        for number in _write_difference(integers, values, earlier):
            self._item.write(writer, values[number], values[number - 1] if number else _NOTHING)

    def read(self, reader: _Reader, earlier: Any) -> Any:
        if reader.integer(self.column) == _SAME:
            return earlier
        return self._kind(self.read_values(reader, self._earlier(earlier)))

    def read_values(self, reader: _Reader, earlier: Sequence[Any]) -> list[Any]:
        return _read_difference(
            reader, self.column, earlier, lambda values: self._item.read(reader, values[-1] if values else _NOTHING)
        )

    def _earlier(self, earlier: Any) -> Sequence[Any]:
        return () if earlier is _NOTHING or earlier is None else self._ordered(earlier)


def _order(value: Any) -> Any:
    if isinstance(value, int | str):
        return type(value) is not int, value if type(value) is int else 0, str(value)
    if isinstance(value, tuple):
        return tuple(map(_order, value))
    return True, 0, repr(value)


class _Map(_Codec):
    """Maps, with the order of their keys. A stored map also has what cannot be read."""

    def __init__(self, columns: _Columns, name: str, key: Any, value: Any) -> None:
        self.column = columns.add(name)
        self._keys = _Sequence(columns, f"{name}.keys", key, tuple)
        self._values = _codec(columns, f"{name}{{}}", value)
        self._stored = columns.add(f"{name}.stored")
        self._unreadable = _Sequence(columns, f"{name}.unreadable", tuple[str, str], tuple)

    def write(self, writer: _Writer, value: Any, earlier: Any) -> None:
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
            integers.append(_SAME)
            return
        base = earlier if isinstance(earlier, Mapping) else {}
        keys, base_keys = tuple(value), tuple(base)
        integers.append(_DIFFERENT if keys == base_keys else _REORDERED)
        if keys != base_keys:
            self._keys.write_values(writer, keys, base_keys)
        last = _NOTHING
        for key, item in value.items():
            self._values.write(writer, item, base.get(key, last))
            last = item
        is_stored = isinstance(value, StoredMap)
        writer.integers[self._stored].append(is_stored)
        if is_stored:
            self._unreadable.write(writer, tuple(unreadable.items()), _NOTHING)

    def read(self, reader: _Reader, earlier: Any) -> Any:
        kind = reader.integer(self.column)
        if kind == _SAME:
            return earlier
        base = earlier if isinstance(earlier, Mapping) else {}
        keys = tuple(base) if kind == _DIFFERENT else self._keys.read_values(reader, tuple(base))
        values: dict[Any, Any] = {}
        last = _NOTHING
        for key in keys:
            last = values[key] = self._values.read(reader, base.get(key, last))
        if not reader.integer(self._stored):
            return values
        return StoredMap(values, dict(self._unreadable.read(reader, _NOTHING)))


def _unreadable(value: Any) -> Mapping[str, str]:
    return value.unreadable if isinstance(value, StoredMap) else {}


class _Parts(_Codec):
    """Tuples of a fixed length and named tuples."""

    def __init__(
        self, columns: _Columns, name: str, parts: Sequence[tuple[str, Any]], kind: Callable[..., Any]
    ) -> None:
        self._parts = [_codec(columns, f"{name}.{part}", hint) for part, hint in parts]
        self._kind, self.column = kind, self._parts[0].column

    def write(self, writer: _Writer, value: Any, earlier: Any) -> None:
        base = repeat(_NOTHING) if earlier is _NOTHING or earlier is None else earlier
        for codec, part, old in zip(self._parts, value, base, strict=False):
            codec.write(writer, part, old)

    def read(self, reader: _Reader, earlier: Any) -> Any:
        base = repeat(_NOTHING) if earlier is _NOTHING or earlier is None else earlier
        return self._kind([codec.read(reader, old) for codec, old in zip(self._parts, base, strict=False)])


class _Fields(_Codec):
    """Dataclasses."""

    def __init__(self, columns: _Columns, name: str, kind: Any) -> None:
        self.column, self._kind = columns.add(name), kind
        hints = get_type_hints(kind)
        self._fields = [(field, _codec(columns, f"{name}.{field.name}", hints[field.name])) for field in fields(kind)]
        nested = columns.names[self.column :]
        self._has_maps = any(column.endswith(".keys") for column in nested)
        """Maps with another order of their keys are equal, so that such values are compared field by field."""

    def write(self, writer: _Writer, value: Any, earlier: Any) -> None:
        if value is earlier or (not self._has_maps and earlier is not _NOTHING and value == earlier):
            writer.integers[self.column].append(_SAME)
            return
        writer.integers[self.column].append(_DIFFERENT)
        for field, codec in self._fields:
            old = _NOTHING if earlier is _NOTHING or earlier is None else getattr(earlier, field.name)
            codec.write(writer, getattr(value, field.name), old)

    def read(self, reader: _Reader, earlier: Any) -> Any:
        if reader.integer(self.column) == _SAME:
            return earlier
        values = {}
        for field, codec in self._fields:
            if not reader.has(codec.column):
                if field.default is MISSING and field.default_factory is MISSING:
                    raise Incomplete(
                        f"the log lacks {self._kind.__name__}.{field.name}: it was written by another version"
                    )
                continue
            old = _NOTHING if earlier is _NOTHING or earlier is None else getattr(earlier, field.name)
            values[field.name] = codec.read(reader, old)
        return self._kind(**values)


class _Choice(_Codec):
    """Values of one of several types."""

    def __init__(self, columns: _Columns, name: str, kinds: Sequence[Any]) -> None:
        self.column = columns.add(name)
        self._kinds = [_runtime_type(kind) for kind in kinds]
        self._codecs = [
            None if kind is type(None) else _codec(columns, f"{name}|{number}" if len(kinds) > 2 else f"{name}?", kind)
            for number, kind in enumerate(kinds)
        ]

    def write(self, writer: _Writer, value: Any, earlier: Any) -> None:
        number = next(number for number, kind in enumerate(self._kinds) if isinstance(value, kind))
        writer.integers[self.column].append(number)
        if (codec := self._codecs[number]) is not None:
            codec.write(writer, value, earlier if isinstance(earlier, self._kinds[number]) else _NOTHING)

    def read(self, reader: _Reader, earlier: Any) -> Any:
        number = reader.integer(self.column)
        if not 0 <= number < len(self._codecs):
            raise Incomplete(f"a packed cycle has a value of type {number}, which this version does not know")
        codec = self._codecs[number]
        if codec is None:
            return None
        return codec.read(reader, earlier if isinstance(earlier, self._kinds[number]) else _NOTHING)


def _runtime_type(hint: Any) -> Any:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return tuple(map(_runtime_type, get_args(hint)))
    return (int, float) if hint is float else origin or hint


class _Error(_Codec):
    """Errors with their message, and the address of a leader."""

    def __init__(self, columns: _Columns, name: str) -> None:
        self._texts = [_Text(columns, f"{name}.{part}") for part in ("kind", "message", "leader_address")]
        self.column = self._texts[0].column

    def write(self, writer: _Writer, value: Any, earlier: Any) -> None:
        texts = type(value).__name__, str(value), getattr(value, "leader_address", "")
        for codec, text in zip(self._texts, texts, strict=True):
            codec.write(writer, text, _NOTHING)

    def read(self, reader: _Reader, earlier: Any) -> Any:
        name, message, address = (codec.read(reader, _NOTHING) for codec in self._texts)
        kind = getattr(errors, name, AutothrottleError)
        return kind(message, address) if kind is errors.NotLeader else kind(message)


class _Named(_Codec):
    """Objects that a text describes, packed as this text."""

    def __init__(
        self, columns: _Columns, name: str, encode: Callable[[Any], str], decode: Callable[[str], Any]
    ) -> None:
        self._text, self._encode, self._decode = _Text(columns, name), encode, decode
        self.column = self._text.column

    def write(self, writer: _Writer, value: Any, earlier: Any) -> None:
        self._text.write(writer, self._encode(value), _NOTHING if earlier is _NOTHING else self._encode(earlier))

    def read(self, reader: _Reader, earlier: Any) -> Any:
        return self._decode(self._text.read(reader, _NOTHING if earlier is _NOTHING else self._encode(earlier)))


def _policy_text(policy: Policy) -> str:
    return policy.name if policy.fixed_rate is None else f"{policy.name} {policy.fixed_rate}"


def policy_of(text: str) -> Policy:
    """Return the policy of a name, without anything learned; `static` is followed by its rate in bytes/s.

    Raises:
        Incomplete: this version has no such policy.
    """
    match text.split():
        case ["adaptive"]:
            return AdaptivePolicy()
        case ["headroom"]:
            return HeadroomPolicy()
        case ["static", rate]:
            return StaticPolicy(int(rate))
    raise Incomplete(f"the policy {text[:40]!r} is unknown to this version")


def _zone_text(zone: tzinfo) -> str:
    return zone.key if isinstance(zone, ZoneInfo) else ""


class _Reassignments(_Codec):
    """The reassignments of a snapshot, ordered by topic; each as the difference from that of the same topic."""

    def __init__(self, columns: _Columns, name: str) -> None:
        self._map = _Map(columns, name, str, TopicReassignment)
        self.column = self._map.column

    def write(self, writer: _Writer, value: Any, earlier: Any) -> None:
        if value is earlier:
            writer.integers[self.column].append(_SAME)
        else:
            self._map.write(writer, _by_topic(value), _by_topic(earlier))

    def read(self, reader: _Reader, earlier: Any) -> Any:
        base = _by_topic(earlier)
        reassignments = self._map.read(reader, base)
        return earlier if reassignments is base and base else tuple(reassignments.values())


def _by_topic(reassignments: Any) -> Any:
    return {} if reassignments is _NOTHING else {reassignment.topic: reassignment for reassignment in reassignments}


class _Counts(_Codec):
    """Cumulative counts of a flow or a broker, with their earlier values: `FlowProgress` and `LogGrowth`.

    A new count is packed as its difference from the line through the last two.
    """

    def __init__(self, columns: _Columns, name: str, counts: Sequence[str]) -> None:
        self.column, self._times = columns.add(name), columns.add(f"{name}.times")
        self._runs, self._since = columns.add(f"{name}.runs"), columns.add(f"{name}.since")
        self._counts = [columns.add(f"{name}.{count}") for count in counts]

    def _write_curve(self, writer: _Writer, curve: Sequence[Any], earlier: Sequence[Any]) -> None:
        for number in _write_difference(writer.integers[self._runs], curve, earlier):
            time, *counts = curve[number]
            last, second_last = self._last_two(curve[max(number - 2, 0) : number])
            writer.integers[self._times].append((time - last[0]) // _MICROSECOND)
            surplus = 0  # a broker that leads more than before also receives more
            for column, count, predicted in zip(self._counts, counts, _line(second_last, last, time), strict=True):
                writer.integers[column].append(count - predicted - surplus)
                surplus = count - predicted

    def _last_two(self, curve: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return the last counts of a curve and those before them; 0 at the beginning."""
        last = curve[-1] if curve else (_EPOCH, *[0] * len(self._counts))
        return last, curve[-2] if len(curve) > 1 else last

    def _read_curve(self, reader: _Reader, earlier: Sequence[Any], kind: Callable[..., Any]) -> list[Any]:
        def read(curve: Sequence[Any]) -> Any:
            last, second_last = self._last_two(curve)
            time: datetime = last[0] + timedelta(microseconds=reader.integer(self._times))
            counts, surplus = [], 0
            for column, predicted in zip(self._counts, _line(second_last, last, time), strict=True):
                surplus += reader.integer(column)
                counts.append(predicted + surplus)
            return kind(time, *counts)

        curve = _read_difference(reader, self._runs, earlier, read)
        if not curve:
            raise Incomplete("a packed cycle has counts without a time; it is damaged")
        return curve

    def _write_since(self, writer: _Writer, since: datetime, at: datetime, earlier: Any) -> None:
        base = at if earlier is _NOTHING else earlier.since
        writer.integers[self._since].append((since - base) // _MICROSECOND)

    def _read_since(self, reader: _Reader, at: datetime, earlier: Any) -> datetime:
        base: datetime = at if earlier is _NOTHING else earlier.since
        return base + timedelta(microseconds=reader.integer(self._since))


def _line(second_last: Sequence[Any], last: Sequence[Any], time: datetime) -> list[int]:
    """Return the counts at a time on the line through two earlier points."""
    span, passed = (last[0] - second_last[0]) // _MICROSECOND, (time - last[0]) // _MICROSECOND
    if span <= 0 or passed < 0:
        return list(last[1:])
    return [new + (new - old) * passed // span for old, new in zip(second_last[1:], last[1:], strict=True)]


class _FlowCounts(_Counts):
    def __init__(self, columns: _Columns, name: str) -> None:
        super().__init__(columns, name, ("bytes_copied",))
        self._produced, self._left = columns.add(f"{name}.bytes_produced"), columns.add(f"{name}.bytes_left")

    def write(self, writer: _Writer, value: Any, earlier: Any) -> None:
        if value is earlier or value == earlier:
            writer.integers[self.column].append(_SAME)
            return
        writer.integers[self.column].append(_DIFFERENT)
        curve = (*value.recent, CopiedMark(value.at, value.bytes_copied))
        self._write_curve(writer, curve, _flow_curve(earlier))
        self._write_since(writer, value.since, value.at, earlier)
        produced = _predicted_production(earlier, value.at)
        writer.integers[self._produced].append(value.bytes_produced - produced)
        bytes_left = _predicted_rest(earlier, value.bytes_copied, value.bytes_produced)
        writer.integers[self._left].append(value.bytes_left - bytes_left)

    def read(self, reader: _Reader, earlier: Any) -> Any:
        if reader.integer(self.column) == _SAME:
            return earlier
        *recent, (at, copied) = self._read_curve(reader, _flow_curve(earlier), CopiedMark)
        since = self._read_since(reader, at, earlier)
        produced = _predicted_production(earlier, at) + reader.integer(self._produced)
        bytes_left = _predicted_rest(earlier, copied, produced) + reader.integer(self._left)
        return FlowProgress(copied, produced, bytes_left, at, since, tuple(recent))


def _flow_curve(earlier: Any) -> Sequence[CopiedMark]:
    return () if earlier is _NOTHING else (*earlier.recent, CopiedMark(earlier.at, earlier.bytes_copied))


def _predicted_production(earlier: Any, at: datetime) -> int:
    """Return the bytes produced up to a time at the mean rate so far."""
    if earlier is _NOTHING or (span := earlier.at - earlier.since) <= timedelta(0):
        return 0 if earlier is _NOTHING else int(earlier.bytes_produced)
    passed: int = (at - earlier.since) // _MICROSECOND
    microseconds: int = span // _MICROSECOND
    return int(earlier.bytes_produced) * passed // microseconds


def _predicted_rest(earlier: Any, copied: int, produced: int) -> int:
    """Return the bytes left: less what was copied, and more what was produced."""
    if earlier is _NOTHING:
        return 0
    return int(earlier.bytes_left) - (copied - int(earlier.bytes_copied)) + produced - int(earlier.bytes_produced)


class _LogCounts(_Counts):
    def __init__(self, columns: _Columns, name: str) -> None:
        super().__init__(columns, name, ("led", "received"))

    def write(self, writer: _Writer, value: Any, earlier: Any) -> None:
        if value is earlier or value == earlier:
            writer.integers[self.column].append(_SAME)
            return
        writer.integers[self.column].append(_DIFFERENT)
        self._write_curve(writer, value.curve, () if earlier is _NOTHING else earlier.curve)
        self._write_since(writer, value.since, value.at, earlier)

    def read(self, reader: _Reader, earlier: Any) -> Any:
        if reader.integer(self.column) == _SAME:
            return earlier
        *recent, (at, led, received) = self._read_curve(
            reader, () if earlier is _NOTHING else earlier.curve, GrowthMark
        )
        return LogGrowth(led, received, at, self._read_since(reader, at, earlier), tuple(recent))


class _TopicCounts(_Codec):
    """The progress of a topic: the bytes left follow from those copied, and the bounds of the ETA from the ETA."""

    def __init__(self, columns: _Columns, name: str) -> None:
        self.column = columns.add(name)
        self._copied, self._left = columns.add(f"{name}.bytes_copied"), columns.add(f"{name}.bytes_left")
        self._etas = [(columns.add(f"{name}.{eta}?"), columns.add(f"{name}.{eta}")) for eta in _ETAS]

    def write(self, writer: _Writer, value: Any, earlier: Any) -> None:
        if value is earlier or (earlier is not _NOTHING and value == earlier):
            writer.integers[self.column].append(_SAME)
            return
        writer.integers[self.column].append(_DIFFERENT)
        old = TopicProgress(0, 0) if earlier is _NOTHING else earlier
        writer.integers[self._copied].append(value.bytes_copied - old.bytes_copied)
        rest = old.bytes_left - (value.bytes_copied - old.bytes_copied)
        writer.integers[self._left].append(value.bytes_left - rest)
        shift = 0
        for eta, (is_known, column) in zip(_ETAS, self._etas, strict=True):
            time, base = getattr(value, eta), getattr(old, eta)
            writer.integers[is_known].append(time is not None)
            if time is not None:
                change = (time - (base or _EPOCH)) // _MICROSECOND
                writer.integers[column].append(change - shift * (base is not None))
                shift = change if base is not None else shift

    def read(self, reader: _Reader, earlier: Any) -> Any:
        if reader.integer(self.column) == _SAME:
            return earlier
        old = TopicProgress(0, 0) if earlier is _NOTHING else earlier
        copied = old.bytes_copied + reader.integer(self._copied)
        bytes_left = old.bytes_left - (copied - old.bytes_copied) + reader.integer(self._left)
        times: list[datetime | None] = []
        shift = 0
        for eta, (is_known, column) in zip(_ETAS, self._etas, strict=True):
            base = getattr(old, eta)
            if not reader.integer(is_known):
                times.append(None)
                continue
            change = reader.integer(column) + shift * (base is not None)
            times.append((base or _EPOCH) + change * _MICROSECOND)
            shift = change if base is not None else shift
        return TopicProgress(copied, bytes_left, *times)


_ETAS = ("eta", "eta_low", "eta_high")


def _codec(columns: _Columns, name: str, hint: Any) -> _Codec:
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


def _class_codec(columns: _Columns, name: str, kind: Any) -> _Codec:
    """Return the codec of a class without type arguments."""
    if kind is float:
        return _Float(columns, name)
    if kind is FlowProgress:
        return _FlowCounts(columns, name)
    if kind is LogGrowth:
        return _LogCounts(columns, name)
    if kind is TopicProgress:
        return _TopicCounts(columns, name)
    if kind is Policy:
        return _Named(columns, name, _policy_text, policy_of)
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
        columns = _Columns()
        self._codec = _codec(columns, "", kind)
        self.layout = "\n".join(columns.names)
        """The names of the columns; the reader needs that of the writer."""
        self._columns = len(columns.names)
        self._numbers = {name: number for number, name in enumerate(columns.names)}
        self._order: Callable[[str], Sequence[int | None]] = cache(self._numbers_of)

    def pack(self, value: _T, earlier: _T | None = None) -> bytes:
        """Return a value as bytes; None: it is not the difference from another value."""
        writer = _Writer(self._columns)
        self._codec.write(writer, value, _NOTHING if earlier is None else earlier)
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
            reader = _Reader(packed, self._order(layout))
            value: _T = self._codec.read(reader, _NOTHING if earlier is None else earlier)
        except errors.FIELD_ERRORS as error:
            raise Incomplete(f"a packed cycle is damaged: {type(error).__name__}: {error}") from None
        return value

    def _numbers_of(self, layout: str) -> Sequence[int | None]:
        return [self._numbers.get(name) for name in layout.split("\n")]


def column_sizes(packing: ColumnPacking[Any], packed: bytes) -> Iterator[tuple[str, int]]:
    """Yield the name and the size in bytes of each column of a packed value."""
    names, position, index = packing.layout.split("\n"), 0, 0
    while position < len(packed):
        empty, position = _varint(packed, position, len(packed))
        length, position = _varint(packed, position, len(packed))
        index += empty >> 1
        yield names[index], length >> 1
        position, index = position + (length >> 1), index + 1
