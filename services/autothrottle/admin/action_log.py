"""Logs and records the actions of operators that change no state in the stores of autothrottle.

The type to know is `ActionLog`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from autothrottle.core.cluster.snapshot import TopicPartition
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.operators.submission import Targets
from autothrottle.core.records import AuditAction
from autothrottle.core.texts import excerpt, id_ranges
from autothrottle.ports.state_store import OverrideStore

log = logging.getLogger(__name__)

audit_log = logging.getLogger("autothrottle.audit")
"""One line for each write; as JSON, its field `audit` has the action, the author and the values."""


class ActionLog:
    """Writes the audit records of actions whose result is known only afterwards."""

    def __init__(self, store: OverrideStore) -> None:
        self._store = store

    def record(self, action: AuditAction, who: str, result: str) -> None:
        """Log and store an action that has ended. It stays in effect if its record cannot be stored."""
        log_action(action, who, result)
        try:
            self._store.add_audit_record(action, who, result)
        except AutothrottleError as error:
            log.warning("The audit record of this action was not stored, the action stays in effect: %s", error)

    @contextmanager
    def failure_recorded(self, action: AuditAction, who: str, subject: str = "") -> Iterator[None]:
        """Record why an action failed; `subject`: what it was about, "" if the error says so."""
        try:
            yield
        except AutothrottleError as error:
            reason = " ".join(str(error).split())
            self.record(action, who, f"Failed{subject and f' for {subject}'}: {reason}")
            raise


def partitions_words(rows: Collection[TopicPartition]) -> str:
    """Return the number of partitions and their first topics.

    >>> partitions_words([("orders", 0), ("orders", 1)]), partitions_words([("a", 0)])
    ('2 partitions of orders', '1 partition of a')
    """
    topics = sorted({topic for topic, _ in rows})
    return f"{len(rows)} partition{'s' * (len(rows) != 1)} of {excerpt(topics, _TOPICS_NAMED)}"


def moves_words(targets: Targets) -> str:
    """Return the number of partitions, their first topics, and the brokers that shall have them."""
    brokers = sorted({broker_id for replicas in targets.values() for broker_id in replicas})
    return f"{partitions_words(targets)} to brokers [{id_ranges(brokers, _RANGES_NAMED)}]"


_TOPICS_NAMED, _RANGES_NAMED = 3, 5


def log_action(action: AuditAction, who: str, sentence: str, broker_id: int | None = None) -> None:
    """Log an action in one line."""
    line = " ".join(sentence.split())
    values = {"action": action.value, "who": who, "result": line, "broker_id": broker_id}
    audit_log.info("%s by %s", line, who, extra={"audit": values})
