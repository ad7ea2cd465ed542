"""The audit log: one node per change by an operator, written in the transaction of the change itself."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from kazoo.client import TransactionRequest
from kazoo.exceptions import BadVersionError, NoAuthError, NodeExistsError, NoNodeError, RolledBackError
from kazoo.protocol.states import ZnodeStat

from autothrottle.adapters.state_store.nodes import NodeEdit, StoredNode
from autothrottle.adapters.zookeeper.client import SecuredClient
from autothrottle.adapters.zookeeper.codec import format_audit_record, parse_audit_record
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import FenceCheck, term_check, translated_errors
from autothrottle.core.errors import Invalid, Unavailable
from autothrottle.core.operators.audit import MAX_AUDIT_RECORDS, AuditReading, StoredAuditRecord

_RECORD = re.compile(r"change-[0-9]{10}")
_MAX_DELETED_RECORDS = 100
"""Maximum of old records that one change deletes. Normally it is one; more only after records were added by hand."""

_NOTHING_WRITTEN = "nothing was written"
"""The consequence if a term is over."""

_UNFENCED = FenceCheck(0, ())
"""The check of a change that belongs to no term."""


@dataclass(frozen=True, slots=True)
class TrailEnd:
    """The end of the audit log before a change."""

    names: tuple[str, ...]
    """Node names of the records, oldest first."""
    counter: int
    """Version of the parent node. Every change raises it, so a concurrent change cannot go unnoticed."""


class AuditTrail:
    """Changes nodes together with their audit records, and reads the newest records. Thread-safe."""

    def __init__(
        self, client: SecuredClient, own: OwnPaths, timeout: timedelta, records_kept: int = MAX_AUDIT_RECORDS
    ) -> None:
        self._client, self._own, self._records_kept = client, own, records_kept
        self._timeout = timeout.total_seconds()
        self._turn = threading.Lock()
        self._known: TrailEnd | None = None
        """The log's end after our last change; guarded by `_turn`. None: read it from ZooKeeper."""

    def edit(
        self, path: str, plan: Callable[[StoredNode | None], NodeEdit | None], doing: str, fence: int | None = None
    ) -> int:
        """Change a node and write the audit record in one transaction; return the transaction's id."""

        def attempt() -> int | None:
            end, node = self._end(), self._node(path)
            edit = plan(node)
            check = _UNFENCED
            if fence is not None:
                check = term_check(self._client, self._own, fence, self._timeout, _NOTHING_WRITTEN)
            change = check.begin(self._client)
            if edit is None:
                if fence is not None:
                    check.require(change.commit_async().get(timeout=self._timeout), _NOTHING_WRITTEN)
                return 0
            _write(change, path, node, edit.data)
            zxid = self._committed(change, check, end, edit.record)
            if zxid is None and node is None:  # another client was faster, or the parent does not exist
                self._client.ensure_path_async(path.rpartition("/")[0]).get(timeout=self._timeout)
            return zxid

        with translated_errors(doing):
            return self._retried(attempt)

    def append(self, record: StoredAuditRecord) -> None:
        """Write a record of an action that changes no node."""
        with translated_errors("writing an audit record"):
            self._retried(lambda: self._committed(self._client.transaction(), _UNFENCED, self._end(), record))

    def _node(self, path: str) -> StoredNode | None:
        try:
            data, stat = self._client.get_async(path).get(timeout=self._timeout)
        except NoNodeError:
            return None
        return StoredNode(data, stat.version, int(stat.mzxid))

    def _end(self) -> TrailEnd:
        """Return the end of the log, creating its parent node if needed.

        After our own change, the end is known without reading up to 1,000 names again. If another client has changed
        something since, the next commit fails because of the counter, and is retried.
        """
        if self._known is not None:
            return self._known
        try:
            reading = self._client.get_children_async(self._own.audit, include_data=True)
            names, stat = reading.get(timeout=self._timeout)
        except NoNodeError:
            self._client.ensure_path_async(self._own.audit).get(timeout=self._timeout)
            return self._end()
        return TrailEnd(tuple(sorted(filter(_RECORD.fullmatch, names))), int(stat.version))

    def _committed(
        self, change: TransactionRequest, check: FenceCheck, end: TrailEnd, record: StoredAuditRecord | None
    ) -> int | None:
        """Commit a change together with its record; return the transaction id, or None if another client was faster.

        The version of the parent orders all recorded changes. The version of an override's node alone is not enough,
        because a node that was deleted and created again can have the same version.

        Args:
            change: begins with the check.
            check: of the term.
            end: the log's end, read before the current value with which the change was compared.
            record: the record of this change; None: it is not recorded.
        """
        surplus = min(max(0, len(end.names) + 1 - self._records_kept), _MAX_DELETED_RECORDS)
        if record is not None:
            self._known = None
            change.set_data(self._own.audit, b"", end.counter)
            change.create(self._own.audit_record, format_audit_record(record), sequence=True)
            for name in end.names[:surplus]:
                change.delete(f"{self._own.audit}/{name}")
        results: list[Any] = change.commit_async().get(timeout=self._timeout)
        check.require(results, _NOTHING_WRITTEN)
        failed = [r for r in results if isinstance(r, Exception) and not isinstance(r, RolledBackError)]
        if failed and not isinstance(failed[0], BadVersionError | NoNodeError | NodeExistsError):
            raise failed[0]
        if failed:
            return None
        stat = [result for result in results if isinstance(result, ZnodeStat)][-1]  # of the last written node
        if record is not None:
            made = [result for result in results if isinstance(result, str)][-1].rpartition("/")[2]
            self._known = TrailEnd((*end.names[surplus:], made), int(stat.version))
        return int(stat.mzxid)

    def _retried(self, attempt: Callable[[], int | None]) -> int:
        """Run `attempt` until it succeeds, and return its result. None means that another client was faster.

        Threads take turns. Without turns, 50 threads that start at once would all conflict with each other.

        Raises:
            Unavailable: no attempt succeeded within the timeout.
        """
        self._client.require_connection()
        deadline = time.monotonic() + self._timeout
        if not self._turn.acquire(timeout=self._timeout):
            raise self._contention()
        try:
            while (zxid := attempt()) is None:
                if time.monotonic() > deadline:
                    raise self._contention()
            return zxid
        finally:
            self._turn.release()

    def _contention(self) -> Unavailable:
        return Unavailable(
            f"overrides, catch-ups, request quotas or the pause kept changing for {self._timeout:g} s; nothing was "
            "written, try again"
        )

    def newest(self, limit: int) -> AuditReading:
        """Return the newest records, newest first, and which of them cannot be read."""
        self._client.require_connection()
        with translated_errors("reading the audit records"):
            return self._newest(limit)

    def _newest(self, limit: int) -> AuditReading:
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
                data, stat = answer.get(timeout=self._timeout)
                made = datetime.fromtimestamp(stat.ctime / 1000, UTC)
                records.append(parse_audit_record(data, int(name.rpartition("-")[2]), made, int(stat.czxid)))
            except NoNodeError:
                continue  # deleted since its name was read
            except (Invalid, NoAuthError) as error:
                problems.append(f"{self._own.audit}/{name}: {error or 'ZooKeeper denies access to this node'}")
        return AuditReading(tuple(records), tuple(problems))


def _write(change: TransactionRequest, path: str, node: StoredNode | None, data: bytes | None) -> None:
    """Add the write that succeeds if the node still has its version; without data, the node is deleted."""
    if node is None:
        change.create(path, data)
    elif data is None:
        change.delete(path, node.number)
    else:
        change.set_data(path, data, node.number)
