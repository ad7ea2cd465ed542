"""State in a topic: a reader of its log, which replays it with `state_replay`."""

from __future__ import annotations

import re
import threading
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from autothrottle.adapters.kafka_admin.connections import CLIENT, kafka
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from tests.chaos.on_kafka.state import FencedRecord, Heartbeat, StateHistory, StateLog
from tests.chaos.on_kafka.state_replay import MAX_RECORD_BYTES, StateReplay

_GZIP, _GZIP_FORMAT = b"\x1f\x8b\x08", 31
"""The begin of compressed records, and zlib's number of their format."""

_MAX_INFLATED_BYTES = 4_000_000
"""Longer contents of compressed records are not ours."""

_RECORD_ID = re.compile(rb'"id": ?"([^"]+)"')

CLIENT_ID = "chaos"
"""Of the clients of the harness that read or append. Quotas of other clients do not throttle it."""
_SILENCE_SECONDS = 3.0
"""Longest time without a record; services send heartbeats several times a second."""
_REQUEST_MILLISECONDS = 3000
"""Timeout of a read, so that a broker that is away does not hold up the reader."""


@dataclass(frozen=True, slots=True)
class SentRecord:
    """A record of the state topic, when a proxy saw it for the first time."""

    process: str
    at: float
    """Seconds since the epoch."""


def texts_of_records(frame: bytes) -> bytes:
    """Return what may be records in a request or response: its bytes, and what is compressed in them."""
    pieces, start = [frame], frame.find(_GZIP)
    while start >= 0:
        with suppress(zlib.error):
            pieces.append(zlib.decompressobj(_GZIP_FORMAT).decompress(frame[start:], _MAX_INFLATED_BYTES))
        start = frame.find(_GZIP, start + 1)
    return b" ".join(pieces)


def record_ids(frame: bytes) -> list[str]:
    """Return the ids of the records in a request or response."""
    return [record_id.decode() for record_id in _RECORD_ID.findall(texts_of_records(frame))]


class KafkaState(StateLog):
    """State in a topic of the cluster under test. A thread reads all of its records."""

    def __init__(
        self,
        cluster: KraftCluster,
        topic: str,
        session_seconds: float,
        sent: Mapping[str, SentRecord],
        read_back: Mapping[tuple[str, str], float],
    ) -> None:
        """Prepare to read a topic.

        Args:
            cluster: has the topic, once the services have created it.
            topic: its name.
            session_seconds: session time-out of the services.
            sent: id of a record -> who sent it when.
            read_back: (process, id of a record) -> when the process got the record, seconds since the epoch.
        """
        self.partition = topic, 0
        self._sent, self._read_back = sent, read_back
        self._cluster, self._topic, self._session_seconds = cluster, topic, session_seconds
        self._replay, self._lock = StateReplay(), threading.Lock()
        self.end = 0
        """Offset of the next record to read."""
        self.missed: list[str] = []
        """A sentence for each gap in what was read. The replay is wrong after it."""
        self._own_records: list[bytes] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="state topic", daemon=True)

    @property
    def options(self) -> Mapping[str, str]:
        return {
            "state-store": "kafka",
            "state-topic": self._topic,
            "session-timeout": str(self._session_seconds),
        }

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ending.set()
        self._thread.join()

    def history(self) -> StateHistory:
        with self._lock:
            replay, heartbeats = self._replay, dict[str, list[Heartbeat]]()
            for candidate, process in replay.leaders.items():
                for record_id in replay.heartbeats.get(candidate, ()):
                    read_at, sent = self._read_back.get((process, record_id)), self._sent.get(record_id)
                    if read_at and sent:
                        heartbeats.setdefault(process, []).append(Heartbeat(sent.at, read_at))
            fenced = [
                FencedRecord(fence, sent.process if (sent := self._sent.get(record_id)) else "")
                for fence, record_id in replay.fenced
            ]
            return StateHistory(list(replay.claims), list(replay.ledger), heartbeats, fenced, replay.void)

    @property
    def is_strict(self) -> bool:
        """Whether foreign records are void. In a new topic, the leader appends the marker after some seconds."""
        return self._replay.is_strict

    def records(self) -> list[bytes]:
        """Return the values of the records that the services have sent, and that are in the log."""
        with self._lock:
            return list(self._own_records)

    def _take(self, record: Any, epoch: int) -> None:
        value = record.value or b""
        with self._lock:
            if record.offset != self.end:
                self.missed.append(f"the records {self.end} to {record.offset - 1} were not read")
            self.end = record.offset + 1
            if len(value) <= MAX_RECORD_BYTES and any(record_id in self._sent for record_id in record_ids(value)):
                self._own_records.append(value)
            self._replay.take(record.offset, record.timestamp, epoch, value)

    def _follow(self) -> None:
        while not self._ending.is_set():
            with suppress(kafka.errors.KafkaError):
                if self.partition in self._cluster.partitions([self._topic]):
                    self._read()
            time.sleep(0.05)

    def _fetch_topic_id(self) -> str:
        admin = kafka.KafkaAdminClient(
            bootstrap_servers=self._cluster.bootstrap_servers.split(","),
            request_timeout_ms=_REQUEST_MILLISECONDS,
            bootstrap_timeout_ms=_REQUEST_MILLISECONDS,
            **CLIENT,
        )
        try:
            topic = admin.describe_topics([self._topic])[0]
            if topic["error_code"]:  # the broker does not know it yet
                raise kafka.errors.for_code(topic["error_code"])
            return str(topic["topic_id"])
        finally:
            admin.close()

    def _take_deleted(self, start: int) -> None:
        """Take the records before an offset that were deleted before they were read. The leader's files have them."""
        if self.end >= start:
            return
        leader = self._cluster.partitions([self._topic])[self.partition].leader
        for path in sorted((self._cluster.brokers[leader].logs / f"{self._topic}-0").glob("*.log")):
            for batch in kafka.record.MemoryRecords(path.read_bytes()):
                for record in batch:
                    if self.end <= record.offset < start:
                        self._take(record, batch.leader_epoch)

    def _read(self) -> None:
        if not self._replay.topic_id:
            self._replay.topic_id = self._fetch_topic_id()
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self._cluster.bootstrap_servers.split(","),
            client_id=CLIENT_ID,
            enable_auto_commit=False,
            auto_offset_reset="none",
            request_timeout_ms=_REQUEST_MILLISECONDS,
            metadata_max_age_ms=1000,
            fetch_max_wait_ms=100,
            reconnect_backoff_max_ms=200,
            bootstrap_timeout_ms=_REQUEST_MILLISECONDS,
            metrics_enabled=False,
            **CLIENT,
        )
        partition = kafka.TopicPartition(*self.partition)
        try:
            consumer.assign([partition])
            self._take_deleted(consumer.beginning_offsets([partition])[partition])
            consumer.seek(partition, self.end)
            # After an absence of all brokers, a new consumer connects at once, and an old one after some seconds.
            silence_ends = time.monotonic() + _SILENCE_SECONDS
            while not self._ending.is_set() and time.monotonic() < silence_ends:
                for record in consumer.poll(timeout_ms=100).get(partition, ()):
                    silence_ends = time.monotonic() + _SILENCE_SECONDS
                    self._take(record, record.leader_epoch)
        finally:
            consumer.close()
