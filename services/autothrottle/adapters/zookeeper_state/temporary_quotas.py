"""Client quotas that end by themselves: one node in ZooKeeper for all of them, changed by compare-and-set."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from kazoo.client import KazooClient

from autothrottle.adapters.zookeeper.codec import compact_json
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper_state.audit import NO_TIME
from autothrottle.adapters.zookeeper_state.audited_node import AuditedNode
from autothrottle.core.control.audit import AuditAction, AuditRecord
from autothrottle.core.errors import Invalid
from autothrottle.core.quotas.entities import QuotaEntity, entity_of_path
from autothrottle.core.quotas.keys import format_value, parse_key, parse_value
from autothrottle.core.quotas.temporary import TemporaryQuota, TemporaryQuotas, quota_sentence
from autothrottle.ports.kafka import Watch


class ZooKeeperTemporaryQuotas:
    """A `TemporaryQuotaStore`. Thread-safe."""

    def __init__(self, client: KazooClient, own: OwnPaths, timeout: timedelta = timedelta(seconds=5)) -> None:
        path = own.temporary_quotas
        self._node = AuditedNode(client, own, path, "temporary quotas", parse_quotas, format_quotas, timeout)

    def close(self) -> None:
        """Stop following the node."""
        self._node.close()

    def read_temporary_quotas(self) -> TemporaryQuotas:
        return self._node.read()

    def set_temporary_quota(self, wanted: TemporaryQuota) -> None:
        """Add a temporary quota, or replace the entity's current one."""
        record = AuditRecord(0, NO_TIME, wanted.author, AuditAction.SET_QUOTA, result=quota_sentence(wanted))
        self._node.edit(lambda current: {**current, wanted.entity: wanted}, record)

    def remove_temporary_quota(self, entity: QuotaEntity, who: str = "") -> bool:
        """Remove the temporary quota of an entity; return whether there was one."""
        record = AuditRecord(0, NO_TIME, who, AuditAction.REMOVE_QUOTA, result=f"Temporary quota of {entity} ended")
        return self._node.edit(lambda current: {e: one for e, one in current.items() if e != entity}, record)

    def purge_temporary_quota(self, fence: int, ended: TemporaryQuota, reason: str) -> bool:
        """Remove this temporary quota, fenced by the term. A later one of the same entity stays."""
        who, result = f"planner, term {fence}", f"Temporary quota of {ended.entity} ended"
        record = AuditRecord(0, NO_TIME, who, AuditAction.REMOVE_QUOTA, result=result, reason=reason)
        return self._node.edit(lambda current: {e: one for e, one in current.items() if one != ended}, record, fence)

    def watch_temporary_quotas(self, notify: Callable[[], None]) -> Watch:
        return self._node.watch(notify)


def parse_quotas(data: bytes, path: str) -> TemporaryQuotas:
    """Parse the node: entity -> its temporary quota.

    Raises:
        Invalid: the text cannot be parsed.
    """
    try:
        found = [_parse(name, value) for name, value in json.loads(data)["quotas"].items()]
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError, Invalid):
        raise Invalid(f"{path} cannot be parsed; delete the node, then set the temporary quotas again") from None
    return {one.entity: one for one in found}


def _parse(name: str, value: Any) -> TemporaryQuota:
    entity = entity_of_path(name)
    if entity is None:
        raise ValueError(name)
    keys = {parse_key(key): text for key, text in value["values"].items()}
    expire_time = value["expire_time"]
    return TemporaryQuota(
        entity=entity,
        values={key: parse_value(key, text) for key, text in keys.items()},
        author=str(value["author"]),
        time=datetime.fromisoformat(value["time"]).astimezone(UTC),
        expire_time=None if expire_time is None else datetime.fromisoformat(expire_time).astimezone(UTC),
        until_recovered=bool(value["until_recovered"]),
    )


def format_quotas(quotas: TemporaryQuotas) -> bytes:
    """Format temporary quotas as the node's text."""
    found = {
        entity.path: {
            "values": {str(key): format_value(key, value) for key, value in one.values.items()},
            "author": one.author,
            "time": one.time.isoformat(),
            "expire_time": None if one.expire_time is None else one.expire_time.isoformat(),
            "until_recovered": one.until_recovered,
        }
        for entity, one in sorted(quotas.items(), key=lambda item: item[0].order)
    }
    return compact_json({"version": 1, "quotas": found})
