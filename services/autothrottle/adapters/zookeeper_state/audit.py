"""The audit log: one node per change by an operator, written in the transaction of the change itself."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import BadVersionError, NoAuthError, NodeExistsError, NoNodeError, RolledBackError
from kazoo.interfaces import IAsyncResult

from autothrottle.adapters.zookeeper.codec import format_audit_record, parse_audit_record
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.term import FenceCheck
from autothrottle.core.errors import Invalid, Unavailable
from autothrottle.core.operators.audit import MAX_AUDIT_RECORDS, AuditReading, StoredAuditRecord

_RECORD = re.compile(r"change-[0-9]{10}")
_MAX_DELETED_RECORDS = 100
"""Maximum of old records that one change deletes. Normally it is one; more only after records were added by hand."""

OVERRIDE_STAYS = "the override stays"
"""The consequence if a term is over."""

_T = TypeVar("_T")


def committed(
    change: TransactionRequest, timeout: float, check: FenceCheck | None, consequence: str
) -> list[Any] | None:
    """Commit a change; return the results of its operations, or None if another client was faster.

    Args:
        change: the operations.
        timeout: in seconds.
        check: the check of the term with which the change begins; None: it has no such check.
        consequence: the part of the error that says what happened because the term is over.

    Raises:
        NotLeader: the term is over.
    """
    results: list[Any] = change.commit_async().get(timeout=timeout)
    if check is not None:
        check.require(results, consequence)
    failed = [r for r in results if isinstance(r, Exception) and not isinstance(r, RolledBackError)]
    if failed and not isinstance(failed[0], BadVersionError | NoNodeError | NodeExistsError):
        raise failed[0]
    return None if failed else results


@dataclass(frozen=True, slots=True)
class TrailEnd:
    """The end of the audit log before a change."""

    names: tuple[str, ...]
    """Node names of the records, oldest first."""
    counter: int
    """Version of the parent node. Every change raises it, so a concurrent change cannot go unnoticed."""


class AuditTrail:
    """Appends records and reads the newest ones. Thread-safe."""

    def __init__(
        self, client: KazooClient, own: OwnPaths, timeout: timedelta, records_kept: int = MAX_AUDIT_RECORDS
    ) -> None:
        self._client, self._own, self._records_kept = client, own, records_kept
        self._timeout = timeout.total_seconds()
        self._turn = threading.Lock()
        self._known: TrailEnd | None = None
        """The log's end after our last change; guarded by `_turn`. None: read it from ZooKeeper."""

    def end(self) -> TrailEnd:
        """Return the end of the log, creating its parent node if needed. Call it only within `retry`.

        After our own change, the end is known without reading up to 1,000 names again. If another client has changed
        something since, the next commit fails because of the counter, and is retried.
        """
        if self._known is not None:
            return self._known
        path = self._own.audit
        try:
            names, stat = self._client.get_children_async(path, include_data=True).get(timeout=self._timeout)
        except NoNodeError:
            self._client.ensure_path_async(path).get(timeout=self._timeout)
            names, stat = self._client.get_children_async(path, include_data=True).get(timeout=self._timeout)
        return TrailEnd(tuple(sorted(filter(_RECORD.fullmatch, names))), int(stat.version))

    def commit(
        self, change: TransactionRequest, end: TrailEnd, record: StoredAuditRecord, check: FenceCheck | None = None
    ) -> int | None:
        """Commit a change together with its record; return the transaction id, or None if another client was faster.

        Call it only within `retry`. The version of the parent orders all changes. The version of an override's node
        alone is not enough, because a node that was deleted and created again can have the same version.

        Args:
            change: the operations.
            end: the log's end, read before the current value with which the change was compared.
            record: the record of this change.
            check: the check of the term with which the change begins; None: it has no such check.

        Raises:
            NotLeader: the term is over.
        """
        counter = len(change.operations)
        change.set_data(self._own.audit, b"", end.counter)
        change.create(self._own.audit_record, format_audit_record(record), sequence=True)
        surplus = min(max(0, len(end.names) + 1 - self._records_kept), _MAX_DELETED_RECORDS)
        for name in end.names[:surplus]:
            change.delete(f"{self._own.audit}/{name}")
        self._known = None
        results = committed(change, self._timeout, check, OVERRIDE_STAYS)
        if results is None:
            return None
        parent, made = results[counter : counter + 2]
        self._known = TrailEnd((*end.names[surplus:], made.rpartition("/")[2]), int(parent.version))
        return int(parent.mzxid)

    def retry(self, attempt: Callable[[], _T | None]) -> _T:
        """Run `attempt` until it succeeds, and return its result. None means that another client was faster.

        Threads take turns. Without turns, 50 threads that start at once would all conflict with each other.

        Raises:
            Unavailable: no attempt succeeded within the timeout.
        """
        deadline = time.monotonic() + self._timeout
        if not self._turn.acquire(timeout=self._timeout):
            raise self._contention()
        try:
            while (done := attempt()) is None:
                if time.monotonic() > deadline:
                    raise self._contention()
            return done
        finally:
            self._turn.release()

    def _contention(self) -> Unavailable:
        return Unavailable(
            f"overrides, catch-ups, request quotas or the pause kept changing for {self._timeout:g} s; nothing was "
            "written, try again"
        )

    def newest(self, limit: int) -> AuditReading:
        """Return the newest records, newest first, and which of them cannot be read."""
        try:
            names = self._client.get_children_async(self._own.audit).get(timeout=self._timeout)
        except NoNodeError:
            return AuditReading()
        newest = sorted(filter(_RECORD.fullmatch, names), reverse=True)[:limit]
        pending = [(name, self._client.get_async(f"{self._own.audit}/{name}")) for name in newest]
        records: list[StoredAuditRecord] = []
        problems: list[str] = []
        for name, answer in pending:
            try:
                record = self._record(name, answer)
                records += [] if record is None else [record]
            except (Invalid, NoAuthError) as error:
                problems.append(f"{self._own.audit}/{name}: {error or 'ZooKeeper denies access to this node'}")
        return AuditReading(tuple(records), tuple(problems))

    def _record(self, name: str, answer: IAsyncResult) -> StoredAuditRecord | None:
        try:
            data, stat = answer.get(timeout=self._timeout)
            made = datetime.fromtimestamp(stat.ctime / 1000, UTC)
            return parse_audit_record(data, int(name.rpartition("-")[2]), made, int(stat.czxid))
        except NoNodeError:
            return None  # deleted since its name was read
