"""Paced consumers and producers of kafka-python, which the extra `kafka` installs.

    pacer = Pacer({"record.rate.limit": 1_000})
    consumer = PacedConsumer(KafkaConsumer("orders", bootstrap_servers="kafka1:9092"), pacer)
    for records in consumer.poll(timeout_ms=1_000).values():
        ...

Attributes that are not defined here are those of the wrapped client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from autothrottle.rate_limiters import RecordBatch
from autothrottle_client.pacing import Pacer


class _PacedClient:
    """A client of kafka-python and the pacer of its task."""

    def __init__(self, client: Any, pacer: Pacer) -> None:
        """Wrap a client. Neither it nor the pacer is closed by this class."""
        self._client, self._pacer = client, pacer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


class PacedConsumer(_PacedClient):
    """A KafkaConsumer whose polls are paced. A poll with records is one batch; so is a poll that fails.

    Pauses take part of `max_poll_interval_ms`: one batch at the lowest limit must take less than that.
    """

    def poll(self, *arguments: Any, **options: Any) -> Mapping[Any, Sequence[Any]]:
        """Pause as long as the limits need, then poll. Arguments and result are KafkaConsumer's."""
        self._pacer.pause()
        try:
            records: Mapping[Any, Sequence[Any]] = self._client.poll(*arguments, **options)
        except Exception:
            self._pacer.accumulate(RecordBatch())
            raise
        if records:
            self._pacer.accumulate(RecordBatch(list(chain.from_iterable(records.values())), size_of=_consumed_bytes))
        return records


class PacedProducer(_PacedClient):
    """A KafkaProducer whose sends are paced. Each send is one batch of one record, also if it fails."""

    def send(self, *arguments: Any, **options: Any) -> Any:
        """Pause as long as the limits need, then send. Arguments and result are KafkaProducer's."""
        self._pacer.pause()
        try:
            future = self._client.send(*arguments, **options)
        except Exception:
            self._pacer.accumulate(RecordBatch())
            raise
        self._pacer.accumulate(RecordBatch((future,), size_of=_produced_bytes))
        return future


def _consumed_bytes(record: Any) -> int:
    """Bytes of key, value and headers; kafka-python has -1 for an absent one."""
    key, value, header = record.serialized_key_size, record.serialized_value_size, record.serialized_header_size
    size: int = max(key, 0) + max(value, 0) + max(header, 0)
    return size


def _produced_bytes(future: Any) -> int:
    """Bytes of key, value and headers, the last three arguments of a FutureRecordMetadata of kafka-python 3.0."""
    return sum(max(size or 0, 0) for size in future.args[-3:])
