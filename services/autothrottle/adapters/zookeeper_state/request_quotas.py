"""Request quotas: one node in ZooKeeper for all of them.

Its text has Kafka's property name: `{"version":1,"quotas":[{"user":"anna","config":{"request_rate":"100"}}]}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from kazoo.client import KazooClient

from autothrottle.adapters.zookeeper.codec import optional_text, text
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper_state.audit import NO_TIME
from autothrottle.adapters.zookeeper_state.audited_node import AuditedNode, MapCodec
from autothrottle.core.control.audit import StoredAuditRecord
from autothrottle.core.errors import Invalid
from autothrottle.core.records import AuditAction
from autothrottle.core.request_quotas import (
    RequestQuotaEntity,
    RequestRates,
    in_order,
    validate_request_quota_entity,
    validate_request_rate,
    with_request_quota,
    without_request_quota,
)
from autothrottle.ports.kafka import Watch

_RATE = re.compile(r"[0-9]{1,9}")


class ZooKeeperRequestQuotas:
    """A `RequestQuotaStore`. Thread-safe."""

    def __init__(self, client: KazooClient, own: OwnPaths, timeout: timedelta = timedelta(seconds=5)) -> None:
        self._node = AuditedNode(client, own, own.request_quotas, "request quotas", REQUEST_QUOTAS, timeout)

    def close(self) -> None:
        """Stop following the node."""
        self._node.close()

    def read_request_quotas(self) -> RequestRates:
        return self._node.read()

    def set_request_quota(self, entity: RequestQuotaEntity, rate: int, who: str = "") -> None:
        result = f"{entity}: {rate} requests/s"
        record = StoredAuditRecord(0, NO_TIME, who, AuditAction.SET_REQUEST_QUOTA, result=result)
        self._node.edit(lambda current: with_request_quota(current, entity, rate), record)

    def remove_request_quota(self, entity: RequestQuotaEntity, who: str = "") -> bool:
        record = StoredAuditRecord(0, NO_TIME, who, AuditAction.REMOVE_REQUEST_QUOTA, result=str(entity))
        return self._node.edit(lambda current: without_request_quota(current, entity), record)

    def watch_request_quotas(self, notify: Callable[[RequestRates], None]) -> Watch:
        return self._node.watch_map(notify)


def _parse(_number: str, value: Any) -> tuple[RequestQuotaEntity, int]:
    entity = RequestQuotaEntity(optional_text(value.get("user")), optional_text(value.get("client_id")))
    rate = text(value["config"]["request_rate"])
    if not _RATE.fullmatch(rate):
        raise Invalid(f"request_rate {rate[:40]!r} is not an integer of at most 9 digits")
    return validate_request_quota_entity(entity), validate_request_rate(int(rate))


def _format(rates: RequestRates) -> Mapping[str, Any]:
    return {
        str(entity): {
            **({} if entity.user is None else {"user": entity.user}),
            **({} if entity.client_id is None else {"client_id": entity.client_id}),
            "config": {"request_rate": str(rate)},
        }
        for entity, rate in in_order(rates)
    }


REQUEST_QUOTAS = MapCodec("quotas", _parse, _format, is_list=True)
"""Entity -> requests/s."""
