"""Client quotas that end by themselves: one node in ZooKeeper for all of them, changed by compare-and-set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from kazoo.client import KazooClient

from autothrottle.adapters.zookeeper.codec import optional_time, text, time_of
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper_state.audit import NO_TIME
from autothrottle.adapters.zookeeper_state.audited_node import AuditedNode, MapCodec
from autothrottle.core.control.audit import StoredAuditRecord
from autothrottle.core.errors import Invalid
from autothrottle.core.quotas.entities import ClientQuotaEntity, entity_of_path, validate_entity
from autothrottle.core.quotas.keys import format_value, parse_key, parse_value
from autothrottle.core.quotas.temporary import TemporaryQuota, TemporaryQuotas, quota_sentence
from autothrottle.core.records import AuditAction
from autothrottle.ports.kafka import Watch


class ZooKeeperTemporaryQuotas:
    """A `TemporaryQuotaStore`. Thread-safe."""

    def __init__(self, client: KazooClient, own: OwnPaths, timeout: timedelta = timedelta(seconds=5)) -> None:
        path = own.temporary_quotas
        self._node = AuditedNode(client, own, path, "temporary quotas", TEMPORARY_QUOTAS, timeout)

    def close(self) -> None:
        """Stop following the node."""
        self._node.close()

    def read_temporary_quotas(self) -> TemporaryQuotas:
        return self._node.read()

    def set_temporary_quota(self, wanted: TemporaryQuota) -> None:
        """Add a temporary quota, or replace the entity's current one."""
        record = StoredAuditRecord(0, NO_TIME, wanted.author, AuditAction.SET_QUOTA, result=quota_sentence(wanted))
        self._node.edit(lambda current: {**current, wanted.entity: wanted}, record)

    def remove_temporary_quota(self, entity: ClientQuotaEntity, who: str = "") -> bool:
        """Remove the temporary quota of an entity; return whether there was one."""
        record = StoredAuditRecord(
            0, NO_TIME, who, AuditAction.REMOVE_QUOTA, result=f"Temporary quota of {entity} ended"
        )
        return self._node.edit(lambda current: {e: one for e, one in current.items() if e != entity}, record)

    def purge_temporary_quota(self, fence: int, ended: TemporaryQuota, reason: str) -> bool:
        """Remove this temporary quota, fenced by the term. A later one of the same entity stays."""
        who, result = f"planner, term {fence}", f"Temporary quota of {ended.entity} ended"
        record = StoredAuditRecord(0, NO_TIME, who, AuditAction.REMOVE_QUOTA, result=result, reason=reason)
        return self._node.edit(lambda current: {e: one for e, one in current.items() if one != ended}, record, fence)

    def watch_temporary_quotas(self, notify: Callable[[], None]) -> Watch:
        return self._node.watch(notify)


def _parse(name: str, value: Any) -> tuple[ClientQuotaEntity, TemporaryQuota]:
    entity = entity_of_path(text(name))
    if entity is None:
        raise Invalid(f"{name[:80]!r} is not the path of a user, a client id or an IP address")
    keys = {parse_key(key): setting for key, setting in value["values"].items()}
    return entity, TemporaryQuota(
        entity=validate_entity(entity),
        values={key: parse_value(key, text(setting)) for key, setting in keys.items()},
        author=text(value["author"]),
        time=time_of(value["time"]),
        expire_time=optional_time(value["expire_time"]),
        until_recovered=bool(value["until_recovered"]),
    )


def _format(quotas: TemporaryQuotas) -> Mapping[str, Any]:
    return {
        entity.path: {
            "values": {str(key): format_value(key, value) for key, value in quota.values.items()},
            "author": quota.author,
            "time": quota.time.isoformat(),
            "expire_time": None if quota.expire_time is None else quota.expire_time.isoformat(),
            "until_recovered": quota.until_recovered,
        }
        for entity, quota in sorted(quotas.items(), key=lambda item: item[0].order)
    }


TEMPORARY_QUOTAS = MapCodec("quotas", _parse, _format)
"""Entity -> its temporary quota; the stored name is the entity's path."""
