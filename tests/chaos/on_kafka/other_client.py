"""Another client of the cluster: it appends records to the state topic, deletes its records, and sets client quotas.

Its connections have a client id of their own, so that its quotas do not throttle it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.connections import CLIENT, kafka
from autothrottle.adapters.kafka_admin.values import KafkaSettings
from autothrottle.adapters.zookeeper.codec import format_ledger_entry
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.core.cluster.configs import FOLLOWER_RATE, ConfigResource, LedgerEntry, LedgerKey
from autothrottle.core.quotas.keys import DEFAULT, ClientQuotaEntity, QuotaKey
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from tests.chaos.on_kafka.cluster import BROKERS
from tests.chaos.on_kafka.schedule import ClientQuota, TopicFault
from tests.chaos.on_kafka.state_topic import CLIENT_ID

_CALL_SECONDS = 30.0
_BOMB_BYTES = 40_000_000
_MAX_COPIES = 12
_LOW, _HIGH = 1024.0, 1e9
"""Bytes/s of the default quota, and of that of the harness."""
_RATES = (QuotaKey("consumer_byte_rate"), QuotaKey("producer_byte_rate"))
_ENTITIES = {
    ClientQuota.USERS: (ClientQuotaEntity(DEFAULT), ClientQuotaEntity(DEFAULT, CLIENT_ID)),
    ClientQuota.CLIENT_IDS: (ClientQuotaEntity(client_id=DEFAULT), ClientQuotaEntity(client_id=CLIENT_ID)),
}
"""(The default, the harness)."""


class OtherClient:
    """A client with the permissions to write and to delete records, and to alter quotas."""

    def __init__(self, cluster: KraftCluster, topic: str) -> None:
        """Prepare; this sends nothing."""
        self._servers, self._topic = cluster.bootstrap_servers.split(","), topic

    def append(self, records: Sequence[tuple[bytes | None, str]]) -> None:
        """Append (value, compression) each; a record without a value has a key.

        Raises:
            KafkaError: it is unknown whether all were appended.
        """
        for compression in dict.fromkeys(compression for _, compression in records):
            producer = kafka.KafkaProducer(
                bootstrap_servers=self._servers,
                client_id=CLIENT_ID,
                acks="all",
                compression_type=compression or None,
                max_request_size=2 * _BOMB_BYTES,
                allow_auto_create_topics=False,
                metrics_enabled=False,
                **CLIENT,
            )
            try:
                pending = [
                    producer.send(self._topic, value, key=b"key" if value is None else None, partition=0)
                    for value, other in records
                    if other == compression
                ]
                for future in pending:
                    future.get(_CALL_SECONDS)
            finally:
                producer.close(timeout=_CALL_SECONDS)

    def delete_before(self, offset: int) -> None:
        """Delete the records before an offset.

        Raises:
            KafkaError: it is unknown whether they were deleted.
        """
        admin = kafka.KafkaAdminClient(bootstrap_servers=self._servers, client_id=CLIENT_ID, **CLIENT)
        try:
            admin.delete_records({kafka.TopicPartition(self._topic, 0): offset})
        finally:
            admin.close()

    def set_quota(self, quota: ClientQuota, is_set: bool) -> None:
        """Set a default quota that everybody exceeds but the harness, or remove it.

        Raises:
            Unavailable: it is unknown whether it was set.
        """
        admin = KafkaAdmin(KafkaSettings(tuple(self._servers), request_timeout=timedelta(seconds=_CALL_SECONDS)))
        try:
            default, harness = _ENTITIES[quota]
            for entity, rate in ((harness, _HIGH), (default, _LOW)):
                admin.alter_client_quotas(entity, dict.fromkeys(_RATES, rate if is_set else None))
        finally:
            admin.close()


def foreign_records(
    fault: TopicFault, records: Sequence[bytes], end: int, term: int, chance: random.Random
) -> Sequence[tuple[bytes | None, str]]:
    """Return (value, compression) of the records that a fault appends.

    Args:
        fault: a fault that appends records.
        records: the values of the topic's records so far, without foreign ones.
        end: offset of the next record.
        term: number of the newest term.
        chance: chooses records.
    """
    match fault:
        case TopicFault.GARBAGE:
            values = (None, b"", b"\x00\xff\xfe", b"[]", b"17", b'{"v":1}', b'{"v":2,"id":"x"}', b'{"snapshot":[1]}')
            return [(value, "") for value in values]
        case TopicFault.OLD_SNAPSHOT:
            return [(old_snapshot(end), "")]
        case TopicFault.COPIES:
            return [(record, "") for record in _chosen(records, chance)]
        case TopicFault.BOMB:
            return [(bytes(_BOMB_BYTES), "gzip")]
        case TopicFault.UNFENCED_EDIT:
            return [(record, "") for record in _ledger_edits(records, term)]
    raise ValueError(f"{fault} appends nothing")


def old_snapshot(end: int) -> bytes:
    """Return a record that looks like a snapshot of an empty tree by an older version."""
    part = {"v": 1, "id": "x", "base": end, "lost_before": None, "parts": 1, "last_version": 0, "part": 0, "rows": []}
    return json.dumps({"snapshot": part}, separators=(",", ":")).encode()


def _chosen(records: Sequence[bytes], chance: random.Random) -> list[bytes]:
    """Return some records: of the terms, the ledger and the heartbeats, and all parts of copies of the tree."""
    marks = (b"/term", b"/ledger/", b"/election/", b'"audit"')
    of_marks = [[record for record in records if mark in record and b'"rows"' not in record] for mark in marks]
    chosen = [record for group in of_marks if group for record in (group[0], chance.choice(group))]
    return [*chosen, *(record for record in records if b'"rows"' in record or b'"commit"' in record)][-_MAX_COPIES:]


def _ledger_edits(records: Sequence[bytes], term: int) -> list[bytes]:
    """Return edits of the ledger: one without a term in the oldest format, and one of an ended term in the newest."""
    path = OwnPaths().ledger_entry(ConfigResource.broker(BROKERS[0]))
    entry = LedgerEntry({FOLLOWER_RATE: LedgerKey(None, "7777777")}, term)
    edit = {"v": 1, "id": "foreign-1", "texts": {path: format_ledger_entry(entry).decode()}}
    return [
        json.dumps(edit).encode(),
        json.dumps({**edit, **_topic_fields(records), "id": "foreign-2", "fence": 1}).encode(),
    ]


def _topic_fields(records: Sequence[bytes]) -> Mapping[str, Any]:
    """Return the field that names the topic; none: the records have none."""
    for record in records:
        content = json.loads(record)
        if "topic" in content:
            return {"topic": content["topic"]}
    return {}
