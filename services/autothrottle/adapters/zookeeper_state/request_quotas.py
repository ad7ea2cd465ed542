"""Request quotas: one node in ZooKeeper for all of them.

Its text has Kafka's property name: `{"version":1,"quotas":[{"user":"anna","config":{"request_rate":"100"}}]}`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta

from kazoo.client import KazooClient

from autothrottle.adapters.zookeeper.codec import compact_json
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper_state.audit import NO_TIME
from autothrottle.adapters.zookeeper_state.audited_node import AuditedNode
from autothrottle.core.control.audit import AuditAction, AuditRecord
from autothrottle.core.errors import Invalid
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


class ZooKeeperRequestQuotas:
    """A `RequestQuotaStore`. Thread-safe."""

    def __init__(self, client: KazooClient, own: OwnPaths, timeout: timedelta = timedelta(seconds=5)) -> None:
        self._node = AuditedNode(
            client, own, own.request_quotas, "request quotas", parse_request_quotas, format_request_quotas, timeout
        )

    def close(self) -> None:
        """Stop following the node."""
        self._node.close()

    def read_request_quotas(self) -> RequestRates:
        return self._node.read()

    def set_request_quota(self, entity: RequestQuotaEntity, rate: int, who: str = "") -> None:
        result = f"{entity}: {rate} requests/s"
        record = AuditRecord(0, NO_TIME, who, AuditAction.SET_REQUEST_QUOTA, result=result)
        self._node.edit(lambda current: with_request_quota(current, entity, rate), record)

    def remove_request_quota(self, entity: RequestQuotaEntity, who: str = "") -> bool:
        record = AuditRecord(0, NO_TIME, who, AuditAction.REMOVE_REQUEST_QUOTA, result=str(entity))
        return self._node.edit(lambda current: without_request_quota(current, entity), record)

    def watch_request_quotas(self, notify: Callable[[RequestRates], None]) -> Watch:
        return self._node.watch_map(notify)


def parse_request_quotas(data: bytes, path: str) -> RequestRates:
    """Parse the node.

    Raises:
        Invalid: the text cannot be parsed, or a value is out of range.
    """
    try:
        found = {}
        for one in json.loads(data)["quotas"]:
            names = [one.get(part) for part in ("user", "client_id")]
            if any(not isinstance(name, str | None) for name in names):
                raise TypeError(f"{names} are not names")
            entity = validate_request_quota_entity(RequestQuotaEntity(*names))
            found[entity] = validate_request_rate(int(one["config"]["request_rate"]))
    except (AttributeError, Invalid, KeyError, RecursionError, TypeError, ValueError):
        raise Invalid(f"{path} cannot be parsed; delete the node, then set the request quotas again") from None
    return found


def format_request_quotas(rates: RequestRates) -> bytes:
    """Format request quotas as the node's text."""
    quotas = [
        {
            **({} if entity.user is None else {"user": entity.user}),
            **({} if entity.client_id is None else {"client_id": entity.client_id}),
            "config": {"request_rate": str(rate)},
        }
        for entity, rate in in_order(rates)
    ]
    return compact_json({"version": 1, "quotas": quotas})
