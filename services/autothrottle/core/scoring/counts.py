"""Packs cumulative counts of flows, brokers and topics, each predicted from the last ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from autothrottle.core.cluster.flows import CopiedMark, FlowProgress, GrowthMark, LogGrowth, TopicProgress
from autothrottle.core.errors import Incomplete
from autothrottle.core.scoring.columns import (
    EPOCH,
    MICROSECOND,
    NOTHING,
    Columns,
    ComparedCodec,
    Reader,
    Writer,
    read_difference,
    write_difference,
)


class _Counts(ComparedCodec):
    """Cumulative counts of a flow or a broker, with their earlier values: `FlowProgress` and `LogGrowth`.

    A new count is packed as its difference from the line through the last two.
    """

    def __init__(self, columns: Columns, name: str, counts: Sequence[str]) -> None:
        self.column, self._times = columns.add(name), columns.add(f"{name}.times")
        self._runs, self._since = columns.add(f"{name}.runs"), columns.add(f"{name}.since")
        self._counts = [columns.add(f"{name}.{count}") for count in counts]

    def _write_curve(self, writer: Writer, curve: Sequence[Any], earlier: Sequence[Any]) -> None:
        for number in write_difference(writer.integers[self._runs], curve, earlier):
            time, *counts = curve[number]
            last, second_last = self._last_two(curve[max(number - 2, 0) : number])
            writer.integers[self._times].append((time - last[0]) // MICROSECOND)
            surplus = 0  # a broker that leads more than before also receives more
            for column, count, predicted in zip(self._counts, counts, _line(second_last, last, time), strict=True):
                writer.integers[column].append(count - predicted - surplus)
                surplus = count - predicted

    def _last_two(self, curve: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return the last counts of a curve and those before them; 0 at the beginning."""
        last = curve[-1] if curve else (EPOCH, *[0] * len(self._counts))
        return last, curve[-2] if len(curve) > 1 else last

    def _read_curve(self, reader: Reader, earlier: Sequence[Any], kind: Callable[..., Any]) -> list[Any]:
        def read(curve: Sequence[Any]) -> Any:
            last, second_last = self._last_two(curve)
            time: datetime = last[0] + timedelta(microseconds=reader.integer(self._times))
            counts, surplus = [], 0
            for column, predicted in zip(self._counts, _line(second_last, last, time), strict=True):
                surplus += reader.integer(column)
                counts.append(predicted + surplus)
            return kind(time, *counts)

        curve = read_difference(reader, self._runs, earlier, read)
        if not curve:
            raise Incomplete("a packed cycle has counts without a time; it is damaged")
        return curve

    def _write_since(self, writer: Writer, since: datetime, at: datetime, earlier: Any) -> None:
        base = at if earlier is NOTHING else earlier.since
        writer.integers[self._since].append((since - base) // MICROSECOND)

    def _read_since(self, reader: Reader, at: datetime, earlier: Any) -> datetime:
        base: datetime = at if earlier is NOTHING else earlier.since
        return base + timedelta(microseconds=reader.integer(self._since))


def _line(second_last: Sequence[Any], last: Sequence[Any], time: datetime) -> list[int]:
    """Return the counts at a time on the line through two earlier points."""
    span, passed = (last[0] - second_last[0]) // MICROSECOND, (time - last[0]) // MICROSECOND
    if span <= 0 or passed < 0:
        return list(last[1:])
    return [new + (new - old) * passed // span for old, new in zip(second_last[1:], last[1:], strict=True)]


class FlowCountCodec(_Counts):
    def __init__(self, columns: Columns, name: str) -> None:
        super().__init__(columns, name, ("bytes_copied",))
        self._produced, self._left = columns.add(f"{name}.bytes_produced"), columns.add(f"{name}.bytes_left")

    def write_different(self, writer: Writer, value: Any, earlier: Any) -> None:
        curve = (*value.recent, CopiedMark(value.at, value.bytes_copied))
        self._write_curve(writer, curve, _flow_curve(earlier))
        self._write_since(writer, value.since, value.at, earlier)
        produced = _predicted_production(earlier, value.at)
        writer.integers[self._produced].append(value.bytes_produced - produced)
        bytes_left = _predicted_rest(earlier, value.bytes_copied, value.bytes_produced)
        writer.integers[self._left].append(value.bytes_left - bytes_left)

    def read_different(self, reader: Reader, earlier: Any) -> Any:
        *recent, (at, copied) = self._read_curve(reader, _flow_curve(earlier), CopiedMark)
        since = self._read_since(reader, at, earlier)
        produced = _predicted_production(earlier, at) + reader.integer(self._produced)
        bytes_left = _predicted_rest(earlier, copied, produced) + reader.integer(self._left)
        return FlowProgress(copied, produced, bytes_left, at, since, tuple(recent))


def _flow_curve(earlier: Any) -> Sequence[CopiedMark]:
    return () if earlier is NOTHING else (*earlier.recent, CopiedMark(earlier.at, earlier.bytes_copied))


def _predicted_production(earlier: Any, at: datetime) -> int:
    """Return the bytes produced up to a time at the mean rate so far."""
    if earlier is NOTHING or (span := earlier.at - earlier.since) <= timedelta(0):
        return 0 if earlier is NOTHING else int(earlier.bytes_produced)
    passed: int = (at - earlier.since) // MICROSECOND
    microseconds: int = span // MICROSECOND
    return int(earlier.bytes_produced) * passed // microseconds


def _predicted_rest(earlier: Any, copied: int, produced: int) -> int:
    """Return the bytes left: less what was copied, and more what was produced."""
    if earlier is NOTHING:
        return 0
    return int(earlier.bytes_left) - (copied - int(earlier.bytes_copied)) + produced - int(earlier.bytes_produced)


class LogCountCodec(_Counts):
    def __init__(self, columns: Columns, name: str) -> None:
        super().__init__(columns, name, ("led", "received"))

    def write_different(self, writer: Writer, value: Any, earlier: Any) -> None:
        self._write_curve(writer, value.curve, () if earlier is NOTHING else earlier.curve)
        self._write_since(writer, value.since, value.at, earlier)

    def read_different(self, reader: Reader, earlier: Any) -> Any:
        *recent, (at, led, received) = self._read_curve(reader, () if earlier is NOTHING else earlier.curve, GrowthMark)
        return LogGrowth(led, received, at, self._read_since(reader, at, earlier), tuple(recent))


class TopicCountCodec(ComparedCodec):
    """The progress of a topic: the bytes left follow from those copied, and the bounds of the ETA from the ETA."""

    def __init__(self, columns: Columns, name: str) -> None:
        self.column = columns.add(name)
        self._copied, self._left = columns.add(f"{name}.bytes_copied"), columns.add(f"{name}.bytes_left")
        self._etas = [(columns.add(f"{name}.{eta}?"), columns.add(f"{name}.{eta}")) for eta in _ETAS]

    def write_different(self, writer: Writer, value: Any, earlier: Any) -> None:
        old = TopicProgress(0, 0) if earlier is NOTHING else earlier
        writer.integers[self._copied].append(value.bytes_copied - old.bytes_copied)
        rest = old.bytes_left - (value.bytes_copied - old.bytes_copied)
        writer.integers[self._left].append(value.bytes_left - rest)
        shift = 0
        for eta, (is_known, column) in zip(_ETAS, self._etas, strict=True):
            time, base = getattr(value, eta), getattr(old, eta)
            writer.integers[is_known].append(time is not None)
            if time is not None:
                change = (time - (base or EPOCH)) // MICROSECOND
                writer.integers[column].append(change - shift * (base is not None))
                shift = change if base is not None else shift

    def read_different(self, reader: Reader, earlier: Any) -> Any:
        old = TopicProgress(0, 0) if earlier is NOTHING else earlier
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
            times.append((base or EPOCH) + change * MICROSECOND)
            shift = change if base is not None else shift
        return TopicProgress(copied, bytes_left, *times)


_ETAS = ("eta", "eta_low", "eta_high")
