from __future__ import annotations

import time
import tracemalloc
import zlib
from collections.abc import Sequence

import pytest

from autothrottle.adapters.kafka_admin import record_batches
from autothrottle.adapters.kafka_admin.connections import kafka
from autothrottle.adapters.kafka_admin.record_batches import Batch, checked, end_of_broken_batch, split
from autothrottle.adapters.kafka_state.topic import TopicRecord

GZIP, SNAPPY, ZSTD = 1, 2, 4
MB = 1_000_000


def encoded(
    values: Sequence[bytes], offset: int = 0, epoch: int = 3, codec: int = 0, time: int = 1_000, content: bytes = b""
) -> bytes:
    """Return a record batch, as a broker stores it.

    Args:
        values: of its records.
        offset: of the first record.
        epoch: of the leader.
        codec: 0: none.
        time: of the first record; each one is a millisecond later.
        content: what stands in place of the compressed records; b"": these records.
    """
    builder = kafka.record.MemoryRecordsBuilder(2, codec if codec <= GZIP else 0, 64 * MB)
    for number, value in enumerate(values):
        builder.append(time + number, None, value)
    builder.close()
    data = bytearray(builder.buffer())
    if content:
        data[61:] = content
    if content or codec > GZIP:  # kafka-python leaves small batches as they are
        data[22] |= codec
    return stored(data, offset, epoch)


def stored(data: bytearray, offset: int, epoch: int) -> bytes:
    """Set the header's fields as a broker does."""
    data[0:8] = offset.to_bytes(8, "big")
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[12:16] = epoch.to_bytes(4, "big")
    data[17:21] = kafka.record.util.calc_crc32c(memoryview(data)[21:]).to_bytes(4, "big")
    return bytes(data)


def only(data: bytes) -> Batch:
    (batch,) = split(data)
    assert batch.is_intact
    return batch


@pytest.mark.parametrize("codec", [0, GZIP])
def test_records_have_the_offsets_the_times_and_the_epoch_of_their_batch(codec: int) -> None:
    batch = only(encoded([b"a", b"", b"c" * 1000], 40, 7, codec))
    records = [
        TopicRecord(40, 1_000, b"a", 7),
        TopicRecord(41, 1_001, b"", 7),
        TopicRecord(42, 1_002, b"c" * 1000, 7),
    ]
    assert batch.records(40) == (records, "")
    assert batch.records(42) == (records[2:], "")


def test_with_log_append_time_all_records_have_the_time_of_the_broker() -> None:
    data = bytearray(encoded([b"a", b"b"]))
    data[22] |= 8
    data[35:43] = (9_000).to_bytes(8, "big")
    assert [record.time for record in only(stored(data, 0, 0)).records(0)[0]] == [9_000, 9_000]


def test_every_flipped_bit_is_noticed_or_has_no_effect() -> None:
    """The offset, the length, the epoch and the format have no checksum. One bit stopped all reads for good."""
    data = encoded([b"first", b"second"], 5, 3) + encoded([b"third"], 7, 3, GZIP)
    batches, is_expected = checked(data, 5, 3, 8)
    assert is_expected and [batch.last_offset for batch in batches] == [6, 7]
    expected = [batch.records(5) for batch in batches]
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        read, is_expected = checked(bytes(flipped), 5, 3, 8)
        assert not is_expected or [batch.records(5) for batch in read] == expected[: len(read)], bit


def test_gap_of_compaction_and_another_epoch_are_unexpected_and_not_broken() -> None:
    data = encoded([b"a"], 5, 3) + encoded([b"b"], 9, 4)
    batches, is_expected = checked(data, 5, 3, 10)
    assert [batch.base_offset for batch in batches] == [5, 9] and not is_expected
    assert checked(data, 5, 3, 9)[0] == batches[:1], "records at or beyond the end of the log"
    assert checked(encoded([b"a"], 5, 3), 5, -1, 10)[1], "the epoch before is not known"
    assert not checked(encoded([b"a"], 5, 3), 4, 3, 10)[1]


def test_batch_that_is_cut_off_is_not_returned() -> None:
    first = encoded([b"a"], 0)
    assert [batch.base_offset for batch in split(first + encoded([b"b"], 1)[:-1])] == [0]
    assert not [*split(first[:30])]


@pytest.mark.parametrize(
    ("following", "delta", "end"),
    [
        (encoded([b"x"], 7), 1, 7),
        (encoded([b"x"], 7), 90, 7),
        (encoded([b"x"], 1), 1, 100),
        (b"", 1, 7),
        (b"", 900, 100),
    ],
    ids=["both agree", "header is wrong", "both are wrong", "last batch", "last batch with a wrong header"],
)
def test_broken_batch_ends_where_its_header_and_the_next_batch_say(following: bytes, delta: int, end: int) -> None:
    data = bytearray(encoded([b"a", b"b"], 5))
    data[23:27] = delta.to_bytes(4, "big")
    assert end_of_broken_batch(bytes(data) + following, 5, 100) == end


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (encoded([b"a", b"b"], 5, codec=SNAPPY), "is compressed by snappy, and not by gzip"),
        (encoded([b"a", b"b"], 5, codec=ZSTD), "is compressed by zstd, and not by gzip"),
        (encoded([b"a", b"b"], 5, codec=6), "is compressed by 6, and not by gzip"),
        (encoded([b"a", b"b"], 5, codec=GZIP, content=b"no gzip"), "has an unknown structure"),
        (encoded([b"a", b"b"], 5, codec=GZIP, content=zlib.compress(b"ab")[:-3]), "has an unknown structure"),
        (encoded([b"a", b"b"], 5, content=b"\xff" * 30), "has an unknown structure"),
        (encoded([b"a", b"b"], 5, content=b"\x02"), "has an unknown structure"),
        (encoded([b"a" * 5 * MB, b"b"], 5), "is in a batch of more than 4000000 bytes"),
    ],
    ids=["snappy", "zstd", "unknown codec", "no gzip", "cut gzip", "wrong lengths", "too short", "too large"],
)
def test_batch_that_cannot_be_read_has_empty_records_and_a_reason(data: bytes, reason: str) -> None:
    records, why = only(data).records(5)
    assert why == reason and records == [TopicRecord(5, 0, b"", 3), TopicRecord(6, 0, b"", 3)]


def test_batch_of_the_old_format_counts_as_broken() -> None:
    builder = kafka.record.MemoryRecordsBuilder(1, 0, MB)
    builder.append(1_000, None, b"a" * 100)
    builder.close()
    assert checked(builder.buffer(), 0, -1, 1) == ([], True)


def zeros(megabytes: int) -> bytes:
    """Return a gzip stream of zeros: one MB, many times. After a full flush nothing refers to what precedes."""
    stream = zlib.compressobj(wbits=31)
    first = stream.compress(bytes(MB)) + stream.flush(zlib.Z_FULL_FLUSH)
    next_one = stream.compress(bytes(MB)) + stream.flush(zlib.Z_FULL_FLUSH)
    return first + next_one * (megabytes - 1) + stream.flush()


def tiny_records(count: int) -> bytes:
    """Return a batch with so many records of the least size. The content repeats 100 of them, so it is not right."""
    data = bytearray(encoded([b""] * 100, codec=GZIP))
    data[23:27] = (count - 1).to_bytes(4, "big")
    data[57:61] = count.to_bytes(4, "big")
    return stored(data, 0, 3)


@pytest.mark.measures
@pytest.mark.parametrize("kind", ["zeros", "records"])
def test_small_batch_that_holds_much_takes_little_memory_and_time(kind: str) -> None:
    """A record of 0.3 MB with 300 MB of zeros made every process grow to 1.5 GB, and its leader lost its term.

    A batch of a million tiny records took seconds.
    """
    data = encoded([b"a"], codec=GZIP, content=zeros(300)) if kind == "zeros" else tiny_records(1_000_000)
    assert len(data) < 0.4 * MB
    tracemalloc.start()
    try:
        began = time.process_time()
        records, reason = only(data).records(0)
        seconds, (_, peak) = time.process_time() - began, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert records == [TopicRecord(0, 0, b"", 3)]
    limit = record_batches.MAX_BYTES if kind == "zeros" else record_batches.MAX_RECORDS
    assert str(limit) in reason
    print(f"\n{kind}: {peak / MB:.1f} MB, {seconds * 1000:.0f} ms")
    assert peak < 15 * MB and seconds < 0.2
