"""Writes throttle configs into ZooKeeper, as Kafka's own tools did, each batch in one fenced transaction.

Every transaction first checks the term; a config, its change notification and our ledger are written together or
not at all. A transaction stays far below ZooKeeper's limit: beyond about 1 MB the server drops the connection.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.handlers.threading import KazooTimeoutError

from autothrottle.adapters.deadlines import seconds_left
from autothrottle.adapters.zookeeper.bulk import Node, read_nodes
from autothrottle.adapters.zookeeper.codec import (
    format_change_notification,
    format_config,
    format_ledger_entry,
    parse_config,
)
from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.core.changes import Change, Edit, Outcome, OutcomeStatus
from autothrottle.core.errors import Invalid, NotLeader, Unavailable

MAX_BATCH_BYTES = 512_000
"""Half of what ZooKeeper takes in one request."""

_OPERATION_BYTES = 64
"""What an operation costs on the wire beside its path and data."""

_LOST = (KazooException, KazooTimeoutError)
"""What a commit itself raises: whether it was carried out is not known then."""

_BATCHES_UNDER_WAY = 8
"""At once: 4 MB in the server's queue."""

_RETRY_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A change with what has to be written for it, at the versions that were read."""

    change: Change
    operations: tuple[tuple[str, tuple[Any, ...]], ...]
    """(method of the transaction, arguments)."""

    @property
    def size(self) -> int:
        return sum(
            _OPERATION_BYTES + sum(len(argument) for argument in arguments if isinstance(argument, str | bytes))
            for _, arguments in self.operations
        )


class ZooKeeperConfigWriter:
    """A `ConfigWriter` on Kafka's configs in ZooKeeper. Thread-safe."""

    def __init__(self, client: KazooClient, kafka: KafkaPaths, own: OwnPaths) -> None:
        self._client, self._kafka, self._own = client, kafka, own

    def apply(self, fence: int, changes: Sequence[Change], timeout: timedelta) -> Sequence[Outcome]:
        """Carry out the changes; one outcome for each, in their order."""
        deadline = time.monotonic() + timeout.total_seconds()
        outcomes: dict[str, Outcome] = {}
        with translated_errors("writing throttles"):
            self._ensure_parents(fence, changes, deadline)
            prepared = self._prepare(changes, outcomes, deadline)
        self._write(fence, prepared, outcomes, deadline)
        if outcomes and all(o.reason == _NOT_TRIED for o in outcomes.values()):
            raise Unavailable("ZooKeeper did not answer in time; no throttle was written")
        return [outcomes[change.resource.path] for change in changes]

    def _ensure_parents(self, fence: int, changes: Sequence[Change], deadline: float) -> None:
        """Make the ledger's parents, on behalf of the term too; a create in a transaction fails without them."""
        kinds = {change.resource.type for change in changes if change.ledger is not None}
        parents = [self._own.ledger, *(f"{self._own.ledger}/{kind.value}" for kind in kinds)]
        for path in parents if kinds else ():
            if self._client.exists_async(path).get(timeout=seconds_left(deadline)) is None:
                transaction = self._client.transaction()
                transaction.check(self._own.term, fence)
                transaction.create(path)
                term_check, _ = transaction.commit_async().get(timeout=seconds_left(deadline))
                _demand_term(fence, term_check)

    # Reading what stands.

    def _prepare(self, changes: Sequence[Change], outcomes: dict[str, Outcome], deadline: float) -> list[_Prepared]:
        prepared = []
        for change, config, ledger in self._read(changes, deadline):
            try:
                operations = self._operations(change, config, ledger)
            except Invalid as error:
                outcomes[change.resource.path] = _refused(change, str(error))
                continue
            if operations:
                prepared.append(_Prepared(change, tuple(operations)))
            else:
                outcomes[change.resource.path] = Outcome(change.resource, OutcomeStatus.UNCHANGED)
        return prepared

    def _read(self, changes: Sequence[Change], deadline: float) -> Iterator[tuple[Change, Node | None, Node | None]]:
        """Read the config and the ledger entry of all: (change, both nodes)."""
        paths = [
            path
            for change in changes
            for path in (self._kafka.config(change.resource), self._own.ledger_entry(change.resource))
        ]
        nodes = iter(read_nodes(self._client, paths, deadline))
        return zip(changes, nodes, nodes, strict=True)

    def _operations(
        self, change: Change, config: Node | None, ledger: Node | None
    ) -> list[tuple[str, tuple[Any, ...]]]:
        written, recorded = list(self._config_operations(change, config)), list(self._ledger_operations(change, ledger))
        if recorded and not written and change.edits and config:
            # It becomes ours as it stands, which must be so in that very moment.
            written = [("check", (self._kafka.config(change.resource), config[2]))]
        return written + recorded

    def _config_operations(self, change: Change, node: Node | None) -> Iterator[tuple[str, tuple[Any, ...]]]:
        path = self._kafka.config(change.resource)
        try:
            standing = parse_config(node[0] or b"") if node else {}
        except Invalid as error:
            raise Invalid(f"{path}: {error}") from error
        wanted = _edited(path, standing, change.edits)
        if wanted == standing:
            return
        if node:
            yield "set_data", (path, format_config(wanted), node[2])
        else:
            yield "create", (path, format_config(wanted))
        notification = format_change_notification(change.resource.path)
        yield "create", (self._kafka.change_notification, notification, None, False, True)

    def _ledger_operations(self, change: Change, node: Node | None) -> Iterator[tuple[str, tuple[Any, ...]]]:
        path = self._own.ledger_entry(change.resource)
        wanted = format_ledger_entry(change.ledger) if change.ledger else None
        if wanted is None and node:
            yield "delete", (path, node[2])
        elif wanted is not None and node is None:
            yield "create", (path, wanted)
        elif wanted is not None and node and node[0] != wanted:
            yield "set_data", (path, wanted, node[2])

    # Writing.

    def _write(self, fence: int, prepared: Sequence[_Prepared], outcomes: dict[str, Outcome], deadline: float) -> None:
        """Write in batches, some of which are on their way at once: the server syncs its disk for them together."""
        under_way: deque[tuple[list[_Prepared], Any]] = deque()
        for batch in _batches(prepared):
            if len(under_way) >= _BATCHES_UNDER_WAY:
                self._settle(fence, *under_way.popleft(), outcomes, deadline)
            if time.monotonic() < deadline:
                under_way.append((batch, self._commit(fence, batch)))
            else:
                outcomes.update((p.change.resource.path, _refused(p.change, _NOT_TRIED)) for p in batch)
        while under_way:
            self._settle(fence, *under_way.popleft(), outcomes, deadline)

    def _settle(
        self, fence: int, rest: list[_Prepared], answer: Any, outcomes: dict[str, Outcome], deadline: float
    ) -> None:
        """Wait for a batch; a resource that fails is refused alone and the rest is tried again."""
        while rest:
            try:
                failed, reason = self._failed(fence, rest, answer, deadline)
            except _LOST:
                self._read_back(rest, outcomes, deadline)
                return
            if failed is None:
                for prepared in rest:
                    resource = prepared.change.resource
                    outcomes[resource.path] = Outcome(resource, OutcomeStatus.APPLIED)
                return
            outcomes[failed.change.resource.path] = _refused(failed.change, reason)
            rest.remove(failed)
            if time.monotonic() >= deadline:
                outcomes.update((p.change.resource.path, _refused(p.change, _NOT_TRIED)) for p in rest)
                return
            answer = self._commit(fence, rest)

    def _commit(self, fence: int, batch: Sequence[_Prepared]) -> Any:
        """Send one transaction, and return its answer to come."""
        transaction: TransactionRequest = self._client.transaction()
        transaction.check(self._own.term, fence)
        for prepared in batch:
            for method, arguments in prepared.operations:
                getattr(transaction, method)(*arguments)
        return transaction.commit_async()

    def _failed(
        self, fence: int, batch: Sequence[_Prepared], answer: Any, deadline: float
    ) -> tuple[_Prepared | None, str]:
        """Wait for a transaction; return the change that made it fail, and why; None: all is written."""
        term_check, *results = answer.get(timeout=seconds_left(deadline))
        _demand_term(fence, term_check)
        owners = [prepared for prepared in batch for _ in prepared.operations]
        for owner, result in zip(owners, results, strict=True):
            if isinstance(result, Exception) and not isinstance(result, RolledBackError | RuntimeInconsistency):
                return owner, _conflict(owner.change, result)
        return None, ""

    def _read_back(self, batch: Sequence[_Prepared], outcomes: dict[str, Outcome], deadline: float) -> None:
        """Find out what became of a batch whose answer was lost, as soon as ZooKeeper answers again."""
        outcomes.update((p.change.resource.path, _refused(p.change, _UNKNOWN)) for p in batch)
        while time.monotonic() < deadline:
            try:
                outcomes.update((o.resource.path, o) for o in self._found(batch, deadline))
                return
            except _LOST:
                time.sleep(_RETRY_SECONDS)

    def _found(self, batch: Sequence[_Prepared], deadline: float) -> list[Outcome]:
        # What was on its way is carried out before the sync, or never.
        self._client.sync_async("/").get(timeout=seconds_left(deadline))
        return [
            Outcome(change.resource, OutcomeStatus.APPLIED)
            if self._stands(change, config, ledger)
            else _refused(change, _LOST_REASON)
            for change, config, ledger in self._read([prepared.change for prepared in batch], deadline)
        ]

    def _stands(self, change: Change, config: Node | None, ledger: Node | None) -> bool:
        """Whether a change was carried out; one that only has a ledger entry shows nowhere else."""
        try:
            standing = parse_config(config[0] or b"") if config else {}
        except Invalid:
            return False
        wanted = format_ledger_entry(change.ledger) if change.ledger else None
        found = ledger[0] if ledger else None
        return wanted == found and all(standing.get(edit.key) == edit.value for edit in change.edits)


_NOT_TRIED = "there was no time left to write it; it is tried again next cycle"
_UNKNOWN = "ZooKeeper did not answer, so that it is unknown whether it was written; it is read back next cycle"
_LOST_REASON = "the connection was lost before it was written; it is tried again next cycle"


def _demand_term(fence: int, term_check: object) -> None:
    """Refuse to go on when a transaction's check of the term failed, which undoes all that stands behind it."""
    if isinstance(term_check, BadVersionError | NoNodeError):
        raise NotLeader(f"term {fence} is over; nothing more was written")
    if isinstance(term_check, KazooException) and not isinstance(term_check, RolledBackError):
        raise term_check


def _edited(path: str, standing: dict[str, str], edits: Sequence[Edit]) -> dict[str, str]:
    """The config with the edits made; every other key as it stands."""
    wanted = dict(standing)
    for edit in edits:
        found = standing.get(edit.key)
        if found not in (edit.expected, edit.value):
            raise Invalid(f"{path}: {edit.key} is {found!r} and was {edit.expected!r} when this was decided")
        if edit.value is None:
            wanted.pop(edit.key, None)
        else:
            wanted[edit.key] = edit.value
    return wanted


def _batches(prepared: Sequence[_Prepared]) -> Iterator[list[_Prepared]]:
    batch: list[_Prepared] = []
    size = 0
    for item in prepared:
        if batch and size + item.size > MAX_BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += item.size
    if batch:
        yield batch


def _refused(change: Change, reason: str) -> Outcome:
    return Outcome(change.resource, OutcomeStatus.REFUSED, reason)


def _conflict(change: Change, error: Exception) -> str:
    if isinstance(error, BadVersionError | NodeExistsError):
        return f"somebody else wrote {change.resource} at the same moment; it is decided anew next cycle"
    return f"ZooKeeper refused {change.resource}: {type(error).__name__} {error}".rstrip()
