"""Logs and records the actions of operators that change no state in the stores of autothrottle.

The type to know is `ActionLog`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from autothrottle.core.errors import AutothrottleError
from autothrottle.core.records import AuditAction
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
    def failure_recorded(self, action: AuditAction, who: str) -> Iterator[None]:
        """Record why an action failed."""
        try:
            yield
        except AutothrottleError as error:
            self.record(action, who, f"Failed: {' '.join(str(error).split())}")
            raise


def log_action(action: AuditAction, who: str, sentence: str, broker_id: int | None = None) -> None:
    """Log an action in one line."""
    line = " ".join(sentence.split())
    values = {"action": action.value, "who": who, "result": line, "broker_id": broker_id}
    audit_log.info("%s by %s", line, who, extra={"audit": values})
