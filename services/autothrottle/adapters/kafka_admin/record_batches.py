"""Decodes the record batches of a fetch, within limits of memory and time. The type to know is `Batch`.

A batch of another program may be tiny and hold much: 300 MB of zeros, or millions of records. So nothing is
decompressed or decoded beyond `MAX_BYTES` and `MAX_RECORDS`. Codec and limits alone decide what is skipped, so that all
processes skip the same, whichever libraries they have.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from autothrottle.adapters.kafka_admin.connections import kafka
from autothrottle.adapters.kafka_state.topic import TopicRecord

MAX_BYTES = 4_000_000
"""Limit of the records of one batch, decompressed."""
MAX_RECORDS = 20_000
"""Limit of the number of records in one batch."""

_HEADER = struct.Struct(">qiibIhiqqqhii")
"""Offset of the first record, length after this field, leader epoch, magic, CRC of all that follows, attributes, delta
of the last offset, first and newest time, id, epoch and sequence of the producer, number of records."""
_OFFSET = struct.Struct(">q")
_BEFORE_LENGTH, _BEFORE_MAGIC, _BEFORE_ATTRIBUTES = 12, 16, 21
_MAGIC = 2
_CODECS = ("", "gzip", "snappy", "lz4", "zstd")
_CODEC_MASK, _LOG_APPEND_TIME = 0x07, 0x08
_GZIP_FORMAT = 31
"""Of zlib: a header of gzip, and the largest window."""

DAMAGED = "is damaged: its batch has another format or a wrong checksum"


@dataclass(frozen=True, slots=True)
class Batch:
    """A record batch, as its header says. The CRC covers all of it except for `base_offset`, its length and `epoch`."""

    base_offset: int
    last_offset: int
    epoch: int
    """Of the leader that appended it."""
    data: memoryview

    @property
    def is_intact(self) -> bool:
        """Whether it has the format of Kafka since 0.11, and its CRC is right."""
        magic, crc = struct.unpack_from(">bI", self.data, _BEFORE_MAGIC)
        return bool(magic == _MAGIC and crc == kafka.record.util.calc_crc32c(self.data[_BEFORE_ATTRIBUTES:]))

    def records(self, offset: int) -> tuple[list[TopicRecord], str]:
        """Return the records from an offset on, and why their values cannot be read; "": they can.

        Values that cannot be read are empty. Too many records are one, with the first offset.
        """
        records, reason = self._all_records()
        if reason:
            return empty_records(max(offset, self.base_offset), self.last_offset + 1, self.epoch), reason
        return [record for record in records if record.offset >= offset], ""

    def _all_records(self) -> tuple[list[TopicRecord], str]:
        header = _HEADER.unpack_from(self.data)
        attributes, first_time, newest_time, count = header[5], header[7], header[8], header[12]
        span = self.last_offset - self.base_offset + 1
        if count > MAX_RECORDS or span > MAX_RECORDS:
            return [], (f"is in a batch of {max(count, span)} records; the limit is {MAX_RECORDS}")
        codec = attributes & _CODEC_MASK
        if codec > 1:
            name = _CODECS[codec] if codec < len(_CODECS) else str(codec)
            return [], (f"is compressed by {name}, and not by gzip")
        try:
            content = self.data[_HEADER.size :].tobytes() if codec == 0 else _decompressed(self.data[_HEADER.size :])
            if len(content) > MAX_BYTES:
                return [], (f"is in a batch of more than {MAX_BYTES} bytes")
            fields = list(_fields(content, count, span))
        except (ValueError, IndexError, zlib.error):
            return [], ("has an unknown structure")
        first, epoch = self.base_offset, self.epoch
        if attributes & _LOG_APPEND_TIME:
            return [TopicRecord(first + delta, newest_time, value, epoch) for delta, _, value in fields], ""
        return [TopicRecord(first + delta, first_time + time, value, epoch) for delta, time, value in fields], ""


def empty_records(offset: int, end: int, epoch: int) -> list[TopicRecord]:
    """Return records without values for these offsets, or one with the first offset if they are too many."""
    offsets = range(offset, end) if offset < end <= offset + MAX_RECORDS else (offset,)
    return [TopicRecord(number, 0, b"", epoch) for number in offsets]


def split(data: bytes) -> Iterator[Batch]:
    """Yield the complete batches of a fetch; its last one may be cut off."""
    view, position = memoryview(data), 0
    while position + _HEADER.size <= len(view):
        base_offset, length, epoch, _, _, _, last_delta, *_ = _HEADER.unpack_from(view, position)
        end = position + _BEFORE_LENGTH + length
        if length < _HEADER.size - _BEFORE_LENGTH or end > len(view):
            return
        yield Batch(base_offset, base_offset + last_delta, epoch, view[position:end])
        position = end


def checked(data: bytes, offset: int, epoch: int, end: int) -> tuple[list[Batch], bool]:
    """Return the batches before the first broken one, and whether their headers are as expected.

    A header without a checksum is as expected if its batch follows the one before, in the same epoch. Other headers may
    be right, too: after a change of the leader, or in a topic that was compacted.

    Args:
        data: the records of a fetch.
        offset: where the fetch began.
        epoch: of the record before it; -1: not known.
        end: offset after the last record that may be read.
    """
    batches: list[Batch] = []
    is_expected, position = True, offset
    for batch in split(data):
        is_in_range = position <= batch.last_offset < end and (not batches or position <= batch.base_offset)
        if not is_in_range or not batch.is_intact:
            break
        is_expected = is_expected and batch.base_offset <= position and epoch in (-1, batch.epoch)
        batches.append(batch)
        position, epoch = batch.last_offset + 1, batch.epoch
    return batches, is_expected


def end_of_broken_batch(data: bytes, offset: int, end: int) -> int:
    """Return the offset after a broken batch at the beginning of `data`: by its header, or where the next one begins.

    Args:
        data: the records of a fetch.
        offset: where the fetch began.
        end: offset after the last record that may be read.
    """
    if len(data) < _HEADER.size:
        return end
    base_offset, length, _, _, _, _, last_delta, *_ = _HEADER.unpack_from(data)
    next_batch = data[_BEFORE_LENGTH + length :][: _OFFSET.size] if length >= 0 else b""
    next_offset = _OFFSET.unpack(next_batch)[0] if len(next_batch) == _OFFSET.size else None
    own_end = base_offset + last_delta + 1
    if offset < own_end <= end and next_offset in (None, own_end):
        return int(own_end)
    return next_offset if next_offset is not None and offset < next_offset <= end else end


def _decompressed(data: memoryview) -> bytes:
    """Return the content of gzip data; of larger content, a little more than the limit."""
    stream = zlib.decompressobj(_GZIP_FORMAT)
    content = stream.decompress(data, MAX_BYTES + 1)
    if not stream.eof and len(content) <= MAX_BYTES:
        raise ValueError("the data end early")
    return content


def _fields(content: bytes, count: int, span: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield the delta of the offset, the delta of the time and the value of each record.

    Raises:
        ValueError, IndexError: these are not so many records, with deltas of offsets below `span`.
    """
    number, position = kafka.record.util.decode_varint, 0
    for _ in range(count):
        length, position = number(content, position)
        end = position + length
        time, cursor = number(content, position + 1)  # after the attributes
        delta, cursor = number(content, cursor)
        key_length, cursor = number(content, cursor)
        cursor += max(0, key_length)
        value_length, cursor = number(content, cursor)
        value_end = cursor + max(0, value_length)
        if length <= 0 or not value_end < end <= len(content) or not 0 <= delta < span:
            raise ValueError("a length or an offset is wrong")
        yield delta, time, content[cursor:value_end]
        position = end
    if position != len(content):
        raise ValueError("bytes follow the last record")
