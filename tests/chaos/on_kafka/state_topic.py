"""State in a topic: a reader of its log, and a replay that is independent of the product's.

Each record is an edit. It is void for every reader if its fence is not the newest term, or if one of its checks does
not match the current version of a path (0: absent).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from autothrottle.adapters.kafka_admin.connections import CLIENT, kafka
from autothrottle.adapters.zookeeper.codec import parse_ledger_entry
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from tests.chaos.on_kafka.state import Claim, FencedRecord, Heartbeat, LedgerWrite, StateHistory, StateLog, holder

_REQUEST_MILLISECONDS = 3000
"""Timeout of a read, so that a broker that is away does not hold up the reader."""


@dataclass(slots=True)
class StateReplay:
    """The nodes after each record, and what the checker needs of their history."""

    claims: list[Claim] = field(default_factory=list)
    ledger: list[LedgerWrite] = field(default_factory=list)
    heartbeats: dict[str, list[tuple[float, str]]] = field(default_factory=dict)
    """Session -> (time at which it sent a heartbeat, id of the record)."""
    leaders: dict[str, str] = field(default_factory=dict)
    """Session -> name of the process that led with it."""
    fenced: list[tuple[int, str]] = field(default_factory=list)
    """(fence, id) of the records with a fence that took effect."""
    void: int = 0
    _versions: dict[str, int] = field(default_factory=dict)
    _owners: dict[str, str] = field(default_factory=dict)
    _counter: int = 0

    def take(self, at: float, edit: Mapping[str, Any]) -> None:
        """Apply a record, sent at a time in seconds since the epoch."""
        self._counter = self._counter or int(at * 1000) * 1000
        term = next((version for path, version in self._versions.items() if path.endswith("/term")), 0)
        checks: Mapping[str, int] = edit.get("checks") or {}
        is_fenced = edit.get("fence") is not None and edit["fence"] != term
        if is_fenced or any(self._versions.get(path, 0) != version for path, version in checks.items()):
            self.void += 1
            return
        self._counter += 1
        fence = edit.get("fence") or 0
        if fence:
            self.fenced.append((fence, edit["id"]))
        for path, text in (edit.get("writes") or {}).items():
            self._write(at, fence, path, text, edit.get("owner") or "")
            _, marker, session = path.rpartition("/sessions/")
            if marker and text is not None:
                self.heartbeats.setdefault(session, []).append((at, edit["id"]))
        if session := edit.get("ends"):
            for path in [path for path, owner in self._owners.items() if owner == session]:
                self._write(at, fence, path, None, "")

    def _write(self, at: float, fence: int, path: str, text: str | None, owner: str) -> None:
        if text is None:
            self._versions.pop(path, None)
            self._owners.pop(path, None)
        else:
            self._versions[path] = self._counter
            if owner:
                self._owners[path] = owner
        if path.endswith("/term") and text:
            self.claims.append(Claim(at, self._counter, holder(text)))
            if owner:
                self.leaders[owner] = holder(text)
        _, marker, entity = path.partition("/ledger/")
        if marker and "/" in entity:
            entry = None if text is None else parse_ledger_entry(text.encode())
            self.ledger.append(LedgerWrite(at, entity, entry, fence))


class KafkaState(StateLog):
    """State in a topic of the cluster under test. A thread reads it, before anything in it is deleted."""

    def __init__(
        self,
        cluster: KraftCluster,
        topic: str,
        session_seconds: float,
        writers: Mapping[str, str],
        read_back: Mapping[tuple[str, str], float],
    ) -> None:
        """Prepare to read a topic.

        Args:
            cluster: has the topic, once the services have created it.
            topic: its name.
            session_seconds: session time-out of the services.
            writers: id of a record -> the process that wrote it.
            read_back: (process, id of a record) -> when the process got the record, seconds since the epoch.
        """
        self.partition = topic, 0
        self._writers, self._read_back = writers, read_back
        self._cluster, self._topic, self._session_seconds = cluster, topic, session_seconds
        self._replay, self._lock = StateReplay(), threading.Lock()
        self._next_offset = 0
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
            for session, process in replay.leaders.items():
                for sent_at, record_id in replay.heartbeats.get(session, ()):
                    if read_at := self._read_back.get((process, record_id)):
                        heartbeats.setdefault(process, []).append(Heartbeat(sent_at, read_at))
            fenced = [FencedRecord(fence, self._writers.get(record_id, "")) for fence, record_id in replay.fenced]
            return StateHistory(list(replay.claims), list(replay.ledger), heartbeats, fenced, replay.void)

    def _follow(self) -> None:
        while not self._ending.is_set():
            with suppress(kafka.errors.KafkaError):
                if self.partition in self._cluster.partitions([self._topic]):
                    self._read()
            time.sleep(0.05)

    def _read(self) -> None:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self._cluster.bootstrap_servers.split(","),
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
            consumer.seek(partition, self._next_offset)
            while not self._ending.is_set():
                for record in consumer.poll(timeout_ms=100).get(partition, ()):
                    with self._lock:
                        self._next_offset = record.offset + 1
                        self._replay.take(record.timestamp / 1000, json.loads(record.value))
        finally:
            consumer.close()
