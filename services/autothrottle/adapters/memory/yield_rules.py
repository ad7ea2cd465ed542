"""Rules for clients that yield to a recovery, in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable

from autothrottle.adapters.concurrency.subscriptions import Subscriptions
from autothrottle.adapters.memory.audit import NO_TIME, MemoryAudit
from autothrottle.adapters.memory.outages import Outages
from autothrottle.core.control.audit import StoredAuditRecord
from autothrottle.core.quotas.yielding import YieldRule, YieldRules, check_number, rule_sentence
from autothrottle.core.records import AuditAction
from autothrottle.ports.kafka import Watch


class MemoryYieldRules(Outages):
    """Yield rules in memory (a `YieldRuleStore`)."""

    _outage = "the yield rules cannot be read or written; try again"

    def __init__(self, audit: MemoryAudit | None = None) -> None:
        """Create an empty store.

        Args:
            audit: stores the audit records; None: a new one.
        """
        self.audit = audit or MemoryAudit()
        self._rules: dict[str, YieldRule] = {}
        self._lock = threading.Lock()
        self._watches: Subscriptions[None] = Subscriptions()

    def read_rules(self) -> YieldRules:
        self._raise_if_down()
        return dict(self._rules)

    def set_rule(self, rule: YieldRule) -> None:
        self._raise_if_down()
        with self._lock:
            wanted = {**self._rules, rule.name: rule}
            check_number(wanted)
            self._rules = wanted
            result = f"Yield rule {rule.name}: {rule_sentence(rule)}"
            self.audit.add(StoredAuditRecord(0, NO_TIME, rule.author, AuditAction.SET_QUOTA, result=result))
        self._watches.publish(None)

    def remove_rule(self, name: str, who: str = "") -> bool:
        self._raise_if_down()
        with self._lock:
            is_known = self._rules.pop(name, None) is not None
            if is_known:
                result = f"Yield rule {name} removed"
                self.audit.add(StoredAuditRecord(0, NO_TIME, who, AuditAction.REMOVE_QUOTA, result=result))
        if is_known:
            self._watches.publish(None)
        return is_known

    def watch_rules(self, notify: Callable[[], None]) -> Watch:
        return self._watches.add(lambda _: notify())
