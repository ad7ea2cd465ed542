"""State in a topic: a reader of its log, and a replay that is independent of the product's.

Each record is an edit. It is void for every reader if its fence is not the newest term, or if it expects another
version of a path than the current one (0: absent).
"""

from __future__ import annotations

import json
import re
import threading
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from autothrottle.adapters.kafka_admin.connections import CLIENT, kafka
from autothrottle.adapters.zookeeper.codec import parse_ledger_entry
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from tests.chaos.on_kafka.state import Claim, FencedRecord, Heartbeat, LedgerWrite, StateHistory, StateLog, holder

_GZIP, _GZIP_FORMAT = b"\x1f\x8b\x08", 31
"""The begin of compressed records, and zlib's number of their format."""

_MAX_INFLATED_BYTES = 4_000_000
"""Longer contents of compressed records are not ours."""
_MAX_RECORD_BYTES = 1_048_576

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


@dataclass(slots=True)
class StateReplay:
    """The nodes after each record, and what the checker needs of their history."""

    claims: list[Claim] = field(default_factory=list)
    ledger: list[LedgerWrite] = field(default_factory=list)
    heartbeats: dict[str, list[str]] = field(default_factory=dict)
    """Candidate -> ids of its heartbeats."""
    leaders: dict[str, str] = field(default_factory=dict)
    """Candidate -> name of the process that led as this candidate."""
    fenced: list[tuple[int, str]] = field(default_factory=list)
    """(fence, id) of the records with a fence that took effect."""
    void: int = 0
    _versions: dict[str, int] = field(default_factory=dict)
    _audits: set[str] = field(default_factory=set)
    _last_version: int = 0

    def take(self, milliseconds: int, value: bytes) -> None:
        """Apply a record.

        Args:
            milliseconds: when its author appended it, since 1970.
            value: the record, which may be of another client.
        """
        edit = _parsed(value)
        if edit is None:
            self.void += 1
            return
        if "snapshot" in edit:
            return
        term = next((version for path, version in self._versions.items() if path.endswith("/term")), 0)
        fence: int = edit.get("fence", 0)
        expected: Mapping[str, int] = edit.get("versions", {})
        texts: Mapping[str, str | None] = edit.get("texts", {})
        is_outrun = any(self._versions.get(path, 0) != version for path, version in expected.items())
        if fence not in (0, term) or is_outrun or edit["id"] in self._audits:
            self.void += 1
            return
        if fence:
            self.fenced.append((fence, edit["id"]))
        if "audit" in edit:
            self._audits.add(edit["id"])
        if texts or "audit" in edit:
            self._last_version = self._last_version + 1 if self._last_version else milliseconds * 1000
        for path, text in texts.items():
            self._write(milliseconds / 1000, edit["id"], fence, path, text)

    def _write(self, at: float, record_id: str, fence: int, path: str, text: str | None) -> None:
        if text is None:
            self._versions.pop(path, None)
        else:
            self._versions[path] = self._last_version
        parent, _, name = path.rpartition("/")
        if parent.endswith("/election") and text is not None:
            self.heartbeats.setdefault(name, []).append(record_id)
        if path.endswith("/term") and text:
            self.claims.append(Claim(at, self._last_version, holder(text)))
            self.leaders[json.loads(text)["holder"]] = holder(text)
        _, marker, entity = path.partition("/ledger/")
        if marker and "/" in entity:
            entry = None if text is None else parse_ledger_entry(text.encode())
            self.ledger.append(LedgerWrite(at, entity, entry, fence))


def _parsed(value: bytes) -> Mapping[str, Any] | None:
    """Return the fields of a record; None: it is not one of ours."""
    try:
        content = json.loads(value)
    except ValueError:
        return None
    is_ours = isinstance(content, dict) and (("id" in content and content.get("v") == 1) or "snapshot" in content)
    return content if is_ours else None


class KafkaState(StateLog):
    """State in a topic of the cluster under test. A thread reads it, before anything in it is deleted."""

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

    def records(self) -> list[bytes]:
        """Return the values of the records that the services have sent, and that are in the log."""
        with self._lock:
            return list(self._own_records)

    def _take(self, milliseconds: int, value: bytes) -> None:
        if len(value) <= _MAX_RECORD_BYTES and any(record_id in self._sent for record_id in record_ids(value)):
            self._own_records.append(value)
        self._replay.take(milliseconds, value)

    def _follow(self) -> None:
        while not self._ending.is_set():
            with suppress(kafka.errors.KafkaError):
                if self.partition in self._cluster.partitions([self._topic]):
                    self._read()
            time.sleep(0.05)

    def _read(self) -> None:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self._cluster.bootstrap_servers.split(","),
            client_id=CLIENT_ID,
            enable_auto_commit=False,
            request_timeout_ms=_REQUEST_MILLISECONDS,
            metadata_max_age_ms=1000,
            fetch_max_wait_ms=100,
            metrics_enabled=False,
            **CLIENT,
        )
        partition = kafka.TopicPartition(*self.partition)
        try:
            consumer.assign([partition])
            consumer.seek(partition, self.end)
            # After an absence of all brokers, a new consumer connects at once, and an old one after some seconds.
            silence_ends = time.monotonic() + _SILENCE_SECONDS
            while not self._ending.is_set() and time.monotonic() < silence_ends:
                for record in consumer.poll(timeout_ms=100).get(partition, ()):
                    silence_ends = time.monotonic() + _SILENCE_SECONDS
                    with self._lock:
                        self.end = record.offset + 1
                        self._take(record.timestamp, record.value or b"")
        finally:
            consumer.close()
