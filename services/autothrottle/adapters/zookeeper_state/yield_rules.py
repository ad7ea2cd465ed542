"""Rules for clients that yield to a recovery: one node in ZooKeeper for all of them, changed by compare-and-set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from kazoo.client import KazooClient

from autothrottle.adapters.zookeeper.codec import INT64, integer, number, optional_text, text, time_of
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper_state.audit import NO_TIME
from autothrottle.adapters.zookeeper_state.audited_node import AuditedNode, MapCodec
from autothrottle.core.control.audit import StoredAuditRecord
from autothrottle.core.quotas.keys import parse_key
from autothrottle.core.quotas.yielding import YieldRule, YieldRules, check_number, rule_sentence, validate_rule
from autothrottle.core.records import AuditAction
from autothrottle.ports.kafka import Watch


class ZooKeeperYieldRules:
    """A `YieldRuleStore`. Thread-safe."""

    def __init__(self, client: KazooClient, own: OwnPaths, timeout: timedelta = timedelta(seconds=5)) -> None:
        self._node = AuditedNode(client, own, own.yield_rules, "yield rules", YIELD_RULES, timeout)

    def close(self) -> None:
        """Stop following the node."""
        self._node.close()

    def read_rules(self) -> YieldRules:
        return self._node.read()

    def set_rule(self, rule: YieldRule) -> None:
        def with_rule(current: YieldRules) -> YieldRules:
            wanted = {**current, rule.name: rule}
            check_number(wanted)
            return wanted

        result = f"Yield rule {rule.name}: {rule_sentence(rule)}"
        self._node.edit(with_rule, StoredAuditRecord(0, NO_TIME, rule.author, AuditAction.SET_QUOTA, result=result))

    def remove_rule(self, name: str, who: str = "") -> bool:
        record = StoredAuditRecord(0, NO_TIME, who, AuditAction.REMOVE_QUOTA, result=f"Yield rule {name} removed")
        return self._node.edit(lambda current: {n: one for n, one in current.items() if n != name}, record)

    def watch_rules(self, notify: Callable[[], None]) -> Watch:
        return self._node.watch(notify)


def _parse(name: str, value: Mapping[str, Any]) -> tuple[str, YieldRule]:
    """Parse a rule. Fields of newer versions are ignored."""
    at_most, share = value["at_most"], value["at_most_share"]
    rule = YieldRule(
        name=name,
        user=optional_text(value["user"]),
        client_id=optional_text(value["client_id"]),
        at_most_bytes_per_second=None if at_most is None else integer(at_most, INT64),
        at_most_share=None if share is None else number(share),
        floor_bytes_per_second=integer(value["floor"], INT64),
        keys=frozenset(map(parse_key, value["keys"])),
        author=text(value["author"]),
        time=time_of(value["time"]),
    )
    return name, validate_rule(rule, i_mean_it=True)


def _format(rules: YieldRules) -> Mapping[str, Any]:
    return {
        name: {
            "user": rule.user,
            "client_id": rule.client_id,
            "at_most": rule.at_most_bytes_per_second,
            "at_most_share": rule.at_most_share,
            "floor": rule.floor_bytes_per_second,
            "keys": sorted(rule.keys),
            "author": rule.author,
            "time": None if rule.time is None else rule.time.isoformat(),
        }
        for name, rule in sorted(rules.items())
    }


YIELD_RULES = MapCodec("rules", _parse, _format)
"""Name -> rule."""
