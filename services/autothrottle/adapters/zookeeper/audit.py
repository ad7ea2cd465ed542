"""The record of what operators changed: one node for each change, written in the change's own transaction."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, RolledBackError
from kazoo.interfaces import IAsyncResult

from autothrottle.adapters.zookeeper.codec import format_audit_record, parse_audit_record
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.core.audit import MAX_AUDIT_RECORDS, AuditRecord
from autothrottle.core.errors import Invalid, NotLeader, Unavailable

log = logging.getLogger(__name__)

_RECORD = re.compile(r"change-[0-9]{10}")
_MOST_TRIMMED = 100
"""Audit records that one change removes: as many as it adds, but for those that were put there by hand."""

NO_TIME = datetime.fromtimestamp(0, UTC)
"""Of a record that is to be written: its time is the node's, as its number is."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TrailEnd:
    """Where the record ended when a change was thought of."""

    names: tuple[str, ...]
    """Of the records, the oldest first."""
    counter: int
    """The version of their parent: it counts all changes, so that nobody can have come in between unseen."""


class AuditTrail:
    """The newest records and the way to add one. Thread-safe."""

    def __init__(
        self, client: KazooClient, own: OwnPaths, timeout: timedelta, records_kept: int = MAX_AUDIT_RECORDS
    ) -> None:
        self._client, self._own, self._records_kept = client, own, records_kept
        self._timeout = timeout.total_seconds()
        self._turn = threading.Lock()
        self._known: TrailEnd | None = None
        """Where our last change left it, for whoever has the turn; None: to be read."""

    def end(self) -> TrailEnd:
        """Return where the record ends; its parent is made when there is none. Only from within `retried`.

        After a change of ours it is not read again, its 1,000 names neither: if somebody else changed something
        meanwhile, the next change finds out, since it names the counter.
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
        self, change: TransactionRequest, end: TrailEnd, record: AuditRecord, fence: int | None = None
    ) -> int | None:
        """Carry out a change together with its record; return the transaction, None: somebody was faster.

        Only from within `retried`. The version of the parent orders all our changes: that of an override alone proves
        nothing, since a node that was removed and made anew meanwhile has it too.

        Args:
            change: what is to be done.
            end: as it was before the change was compared with what stands.
            record: what is written of it.
            fence: a term that the change's first operation checks; None: it checks none.

        Raises:
            NotLeader: when that term is over.
        """
        counter = len(change.operations)
        change.set_data(self._own.audit, b"", end.counter)
        change.create(self._own.audit_record, format_audit_record(record), sequence=True)
        surplus = min(max(0, len(end.names) + 1 - self._records_kept), _MOST_TRIMMED)
        for name in end.names[:surplus]:
            change.delete(f"{self._own.audit}/{name}")
        self._known = None
        results = change.commit_async().get(timeout=self._timeout)
        if fence is not None:
            demand_term(fence, results)
        failed = [r for r in results if isinstance(r, Exception) and not isinstance(r, RolledBackError)]
        if not failed:
            parent, made = results[counter : counter + 2]
            self._known = TrailEnd((*end.names[surplus:], made.rpartition("/")[2]), int(parent.version))
            return int(parent.mzxid)
        if isinstance(failed[0], BadVersionError | NoNodeError | NodeExistsError):
            return None
        raise failed[0]

    def retried(self, attempt: Callable[[], _T | None]) -> _T:
        """Return what an attempt made, the first that nobody else came in between of.

        Threads take turns: of 50 that begin at once each would come in between of all the others.

        Raises:
            Unavailable: when somebody always did.
        """
        deadline = time.monotonic() + self._timeout
        if not self._turn.acquire(timeout=self._timeout):
            raise self._always_changing()
        try:
            while (done := attempt()) is None:
                if time.monotonic() > deadline:
                    raise self._always_changing()
            return done
        finally:
            self._turn.release()

    def _always_changing(self) -> Unavailable:
        return Unavailable(f"overrides or the pause kept changing for {self._timeout:g} s; nothing was done, try again")

    def newest(self, limit: int) -> tuple[AuditRecord, ...]:
        """Return the newest records, the newest first; one that cannot be read is left out, and logged."""
        try:
            names = self._client.get_children_async(self._own.audit).get(timeout=self._timeout)
        except NoNodeError:
            return ()
        newest = sorted(filter(_RECORD.fullmatch, names), reverse=True)[:limit]
        asked = [(name, self._client.get_async(f"{self._own.audit}/{name}")) for name in newest]
        found = [self._record(name, answer) for name, answer in asked]
        return tuple(record for record in found if record is not None)

    def _record(self, name: str, answer: IAsyncResult) -> AuditRecord | None:
        try:
            data, stat = answer.get(timeout=self._timeout)
            made = datetime.fromtimestamp(stat.ctime / 1000, UTC)
            return parse_audit_record(data, int(name.rpartition("-")[2]), made, int(stat.czxid))
        except NoNodeError:
            return None  # trimmed meanwhile
        except Invalid as error:
            log.warning("%s/%s: %s", self._own.audit, name, error)
            return None


def demand_term(fence: int, results: Sequence[object]) -> None:
    """Raise NotLeader when the check of the term, the first of a transaction's operations, has failed."""
    if isinstance(results[0], BadVersionError | NoNodeError):
        raise NotLeader(f"term {fence} is over; the override stays")
