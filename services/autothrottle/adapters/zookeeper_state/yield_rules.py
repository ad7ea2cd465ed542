"""Rules for clients that yield to a recovery: one node in ZooKeeper for all of them, changed by compare-and-set."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from kazoo.client import KazooClient

from autothrottle.adapters.zookeeper.codec import compact_json
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper_state.audit import NO_TIME
from autothrottle.adapters.zookeeper_state.audited_node import AuditedNode
from autothrottle.core.control.audit import AuditAction, AuditRecord
from autothrottle.core.errors import Invalid
from autothrottle.core.quotas.keys import parse_key
from autothrottle.core.quotas.yielding import YieldRule, YieldRules, check_number, rule_sentence, validate_rule
from autothrottle.ports.kafka import Watch


class ZooKeeperYieldRules:
    """A `YieldRuleStore`. Thread-safe."""

    def __init__(self, client: KazooClient, own: OwnPaths, timeout: timedelta = timedelta(seconds=5)) -> None:
        self._node = AuditedNode(client, own, own.yield_rules, "yield rules", parse_rules, format_rules, timeout)

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
        self._node.edit(with_rule, AuditRecord(0, NO_TIME, rule.author, AuditAction.SET_QUOTA, result=result))

    def remove_rule(self, name: str, who: str = "") -> bool:
        record = AuditRecord(0, NO_TIME, who, AuditAction.REMOVE_QUOTA, result=f"Yield rule {name} removed")
        return self._node.edit(lambda current: {n: one for n, one in current.items() if n != name}, record)

    def watch_rules(self, notify: Callable[[], None]) -> Watch:
        return self._node.watch(notify)


def parse_rules(data: bytes, path: str) -> YieldRules:
    """Parse the node: name -> rule. Fields of newer versions are ignored.

    Raises:
        Invalid: the text cannot be parsed, or a rule is not valid.
    """
    try:
        return {name: _parse(name, value) for name, value in json.loads(data)["rules"].items()}
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError, Invalid):
        raise Invalid(f"{path} cannot be parsed; delete the node, then set the yield rules again") from None


def _parse(name: str, value: Mapping[str, Any]) -> YieldRule:
    rule = YieldRule(
        name=name,
        user=value["user"],
        client_id=value["client_id"],
        at_most=value["at_most"],
        at_most_share=value["at_most_share"],
        floor=value["floor"],
        keys=frozenset(map(parse_key, value["keys"])),
        author=str(value["author"]),
        time=datetime.fromisoformat(value["time"]).astimezone(UTC),
    )
    return validate_rule(rule, i_mean_it=True)


def format_rules(rules: YieldRules) -> bytes:
    """Format rules as the node's text."""
    found = {
        name: {
            "user": rule.user,
            "client_id": rule.client_id,
            "at_most": rule.at_most,
            "at_most_share": rule.at_most_share,
            "floor": rule.floor,
            "keys": sorted(rule.keys),
            "author": rule.author,
            "time": rule.time.isoformat(),
        }
        for name, rule in sorted(rules.items())
    }
    return compact_json({"version": 1, "rules": found})
