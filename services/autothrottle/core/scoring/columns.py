"""The columns of a packed value, and differences between sequences. The types to know are `Writer` and `Reader`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from autothrottle.core.errors import Incomplete

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

NOTHING: Any = object()
"""The earlier value of a record that is packed as a whole."""

_MOST_BITS = 350
"""Longest number; only damaged ones are longer, and reading those would take time without end."""

SAME, DIFFERENT, REORDERED = 0, 1, 2
"""How a value differs from the earlier one; `REORDERED` is a map with other keys, or with another order of them."""


class Writer:
    """The columns of one value."""

    def __init__(self, columns: int) -> None:
        self.integers: list[list[int]] = [[] for _ in range(columns)]
        self.texts: list[list[bytes]] = [[] for _ in range(columns)]

    def packed(self) -> bytes:
        """The columns that are not empty: the number of empty ones before each, its length, its content."""
        parts, empty = [], 0
        for integers, texts in zip(self.integers, self.texts, strict=True):
            if column := varints(integers) + b"".join(texts):
                parts += [varints([empty, len(column)]), column]
                empty = -1
            empty += 1
        return b"".join(parts)


class Reader:
    """The columns of one value while they are read."""

    def __init__(self, packed: bytes, columns: Sequence[int | None]) -> None:
        """Read the columns; `columns` has for each column of the writer its number here, None: no such column."""
        self._packed = packed
        self._ends = {number: 0 for number in columns if number is not None}
        self._at = dict(self._ends)
        position = index = 0
        while position < len(packed):
            empty, position = varint(packed, position, len(packed))
            length, position = varint(packed, position, len(packed))
            index, end = index + (empty >> 1), position + (length >> 1)
            if index >= len(columns) or end > len(packed):
                raise Incomplete("a packed cycle is damaged: a column is too long")
            if (number := columns[index]) is not None:
                self._at[number], self._ends[number] = position, end
            position, index = end, index + 1

    def has(self, column: int) -> bool:
        return column in self._ends

    def integer(self, column: int) -> int:
        number, self._at[column] = varint(self._packed, self._at[column], self._ends[column])
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


def varints(numbers: Iterable[int]) -> bytes:
    packed = bytearray()
    for signed in numbers:
        number = signed << 1 if signed >= 0 else ~(signed << 1)
        while number > 0x7F:
            packed.append(number & 0x7F | 0x80)
            number >>= 7
        packed.append(number)
    return bytes(packed)


def varint(packed: bytes, position: int, end: int) -> tuple[int, int]:
    number = shift = 0
    while position < end and shift < _MOST_BITS:
        byte = packed[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
    raise Incomplete("a number of a packed cycle does not end; it is damaged")


class Columns:
    """Numbers the columns while the codecs are built."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def add(self, name: str) -> int:
        self.names.append(name)
        return len(self.names) - 1


class Codec:
    """Packs values of one type at one place of the tree."""

    column: int
    """A column that every value of the type has."""

    def write(self, writer: Writer, value: Any, earlier: Any) -> None:
        raise NotImplementedError

    def read(self, reader: Reader, earlier: Any) -> Any:
        raise NotImplementedError


class ComparedCodec(Codec):
    """Packs a value that equals the earlier one in one byte."""

    def write(self, writer: Writer, value: Any, earlier: Any) -> None:
        if value is earlier or (earlier is not NOTHING and value == earlier):
            writer.integers[self.column].append(SAME)
        else:
            writer.integers[self.column].append(DIFFERENT)
            self.write_different(writer, value, earlier)

    def read(self, reader: Reader, earlier: Any) -> Any:
        return earlier if reader.integer(self.column) == SAME else self.read_different(reader, earlier)

    def write_different(self, writer: Writer, value: Any, earlier: Any) -> None:
        raise NotImplementedError

    def read_different(self, reader: Reader, earlier: Any) -> Any:
        raise NotImplementedError


def write_difference(integers: list[int], values: Sequence[Any], earlier: Sequence[Any]) -> list[int]:
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


def read_difference(
    reader: Reader, column: int, earlier: Sequence[Any], read: Callable[[Sequence[Any]], Any]
) -> list[Any]:
    """Read what `write_difference` has written; `read` reads a new value, given the values before it."""
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
