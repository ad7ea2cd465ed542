"""Writes throttle configs into ZooKeeper as Kafka's own tools do, in fenced transactions.

Every transaction first checks the term. A config, its change notification and our ledger entry are written together or
not at all. A transaction stays far below ZooKeeper's limit: the server drops the connection at about 1 MB.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    RolledBackError,
    RuntimeInconsistency,
)

from autothrottle.adapters.concurrency.subscriptions import seconds_left
from autothrottle.adapters.zookeeper.bulk import Node, read_nodes
from autothrottle.adapters.zookeeper.codec import (
    format_change_notification,
    format_config,
    format_ledger_entry,
    parse_config,
    parse_ledger_entry,
)
from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.adapters.zookeeper.session import (
    ANSWER_LOST,
    NOT_ADMITTED,
    FenceCheck,
    read_after_outage,
    term_check,
    translated_errors,
)
from autothrottle.core.cluster.configs import ResourceType
from autothrottle.core.errors import Conflict, Invalid, Unavailable
from autothrottle.core.records import Outcome, OutcomeStatus
from autothrottle.core.throttles.changes import Change, edited_config, validate_restored
from autothrottle.ports.kafka import Term

MAX_BATCH_BYTES = 512_000
"""Half of ZooKeeper's limit for one request."""

_MAX_REQUEST_BYTES = 1_000_000
"""ZooKeeper's limit for one request, less the overhead of a transaction."""

_OPERATION_BYTES = 64
"""Overhead of one operation on the wire, in addition to its path and data."""

_MAX_BATCHES_IN_FLIGHT = 8
"""Limit of batches sent but not yet answered: 4 MB in the server's queue."""

Operation = tuple[str, tuple[Any, ...]]
"""(transaction method, arguments)."""


@dataclass(frozen=True, slots=True)
class _PreparedWrite:
    """A change and the operations that carry it out, at the node versions that were read."""

    change: Change
    operations: tuple[Operation, ...]
    size: int
    """Bytes of the operations in a transaction."""


class ZooKeeperConfigWriter:
    """A `ConfigWriter` on Kafka's configs in ZooKeeper. Thread-safe."""

    def __init__(self, client: KazooClient, kafka: KafkaPaths, own: OwnPaths) -> None:
        self._client, self._kafka, self._own = client, kafka, own

    def apply(self, term: Term, changes: Sequence[Change], timeout: timedelta) -> Sequence[Outcome]:
        """Apply the changes; return one outcome per change, in the same order."""
        deadline = time.monotonic() + timeout.total_seconds()
        outcomes: dict[str, Outcome] = {}
        with translated_errors("writing throttles"):
            check = term_check(self._client, self._own, term.fence, seconds_left(deadline), _NOT_WRITTEN_MORE)
            self._ensure_parents(check, changes, deadline)
            prepared = self._prepare(changes, outcomes, deadline)
        self._write(check, prepared, outcomes, deadline)
        if outcomes and all(o.reason == _NOT_TRIED for o in outcomes.values()):
            raise Unavailable("ZooKeeper did not answer in time; no throttle was written")
        return [outcomes[change.resource.path] for change in changes]

    def _ensure_parents(self, check: FenceCheck, changes: Sequence[Change], deadline: float) -> None:
        """Create the ledger's parent nodes, fenced by the term. Without them, a create in a transaction fails."""
        kinds = {change.resource.type for change in changes if change.ledger is not None}
        parents = [self._own.ledger, *(f"{self._own.ledger}/{kind.value}" for kind in kinds)] if kinds else []
        quotas = [c.resource.path for c in changes if c.resource.type is ResourceType.QUOTA and c.edits]
        configs = dict.fromkeys(parent for path in quotas for parent in self._kafka.entity_parents(path))
        for path in (*parents, *configs):
            if self._client.exists_async(path).get(timeout=seconds_left(deadline)) is None:
                transaction = check.begin(self._client)
                transaction.create(path, format_config({}) if path in configs else b"")
                _after_check(check, transaction.commit_async().get(timeout=seconds_left(deadline)))

    # Reading the current values.

    def _prepare(
        self, changes: Sequence[Change], outcomes: dict[str, Outcome], deadline: float
    ) -> list[_PreparedWrite]:
        prepared = []
        for change, config, ledger in self._read(changes, deadline):
            try:
                operations = tuple(self._operations(change, config, ledger))
            except Invalid as error:
                outcomes[change.resource.path] = _refused(change, str(error))
                continue
            size = _size(operations)
            if size > _MAX_REQUEST_BYTES:
                # The server would drop the connection, and with it the writes of all other resources.
                outcomes[change.resource.path] = _refused(change, _TOO_LARGE.format(size))
            elif operations:
                prepared.append(_PreparedWrite(change, operations, size))
            else:
                outcomes[change.resource.path] = Outcome(change.resource, OutcomeStatus.UNCHANGED)
        return prepared

    def _read(self, changes: Sequence[Change], deadline: float) -> Iterator[tuple[Change, Node | None, Node | None]]:
        """Read the config and the ledger entry of every change: (change, config node, ledger node)."""
        paths = [
            path
            for change in changes
            for path in (self._kafka.config(change.resource), self._own.ledger_entry(change.resource))
        ]
        nodes = iter(read_nodes(self._client, paths, deadline))
        return zip(changes, nodes, nodes, strict=True)

    def _operations(self, change: Change, config: Node | None, ledger: Node | None) -> list[Operation]:
        written = list(self._config_operations(change, config, ledger))
        recorded = list(self._ledger_operations(change, ledger))
        if recorded and not written and change.edits and config:
            # We take ownership of the value as it is, so the transaction checks that it did not change.
            written = [("check", (self._kafka.config(change.resource), config[2]))]
        return written + recorded

    def _config_operations(self, change: Change, node: Node | None, ledger: Node | None) -> Iterator[Operation]:
        path = self._kafka.config(change.resource)
        try:
            current = config_of(node, change.resource.type is ResourceType.QUOTA)
            config = edited_config(current, change.edits)
        except (Conflict, Invalid) as error:
            raise Invalid(f"{path}: {error}") from error
        if config == current:
            return
        if change.restored:
            # The transaction that restores also edits the ledger, at the version that is read here.
            validate_restored(change, current, parse_ledger_entry(ledger[0] or b"") if ledger else None)
        yield from config_operations(self._kafka, change.resource.path, node, config)

    def _ledger_operations(self, change: Change, node: Node | None) -> Iterator[Operation]:
        path = self._own.ledger_entry(change.resource)
        content = format_ledger_entry(change.ledger) if change.ledger else None
        if content is None and node:
            yield "delete", (path, node[2])
        elif content is not None and node is None:
            yield "create", (path, content)
        elif content is not None and node and node[0] != content:
            yield "set_data", (path, content, node[2])

    # Writing.

    def _write(
        self, check: FenceCheck, prepared: Sequence[_PreparedWrite], outcomes: dict[str, Outcome], deadline: float
    ) -> None:
        """Write in batches, several at once, because the server then syncs its disk once for all of them."""
        in_flight: deque[tuple[list[_PreparedWrite], Any]] = deque()
        for batch in _batches(prepared):
            if len(in_flight) >= _MAX_BATCHES_IN_FLIGHT:
                self._settle(check, *in_flight.popleft(), outcomes, deadline)
            if time.monotonic() < deadline:
                in_flight.append((batch, self._commit(check, batch)))
            else:
                outcomes.update((p.change.resource.path, _refused(p.change, _NOT_TRIED)) for p in batch)
        while in_flight:
            self._settle(check, *in_flight.popleft(), outcomes, deadline)

    def _settle(
        self, check: FenceCheck, rest: list[_PreparedWrite], answer: Any, outcomes: dict[str, Outcome], deadline: float
    ) -> None:
        """Wait for a batch. Refuse a resource that fails, and retry the rest without it."""
        while rest:
            try:
                failed, reason = self._first_failure(check, rest, answer, deadline)
            except ANSWER_LOST:
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
            answer = self._commit(check, rest)

    def _commit(self, check: FenceCheck, batch: Sequence[_PreparedWrite]) -> Any:
        """Send one transaction; return its pending answer."""
        transaction = check.begin(self._client)
        for prepared in batch:
            for method, arguments in prepared.operations:
                getattr(transaction, method)(*arguments)
        return transaction.commit_async()

    def _first_failure(
        self, check: FenceCheck, batch: Sequence[_PreparedWrite], answer: Any, deadline: float
    ) -> tuple[_PreparedWrite | None, str]:
        """Wait for a transaction; return the change that made it fail and the reason. None: everything was written."""
        results = _after_check(check, answer.get(timeout=seconds_left(deadline)))
        owners = [prepared for prepared in batch for _ in prepared.operations]
        for owner, result in zip(owners, results, strict=True):
            if isinstance(result, Exception) and not isinstance(result, RolledBackError | RuntimeInconsistency):
                return owner, _conflict(owner.change, result)
        return None, ""

    def _read_back(self, batch: Sequence[_PreparedWrite], outcomes: dict[str, Outcome], deadline: float) -> None:
        """After a lost answer, find out whether a batch was written, as soon as ZooKeeper answers again."""
        outcomes.update((p.change.resource.path, _refused(p.change, _UNKNOWN)) for p in batch)
        for outcome in read_after_outage(self._client, lambda: self._read_written(batch, deadline), deadline) or ():
            outcomes[outcome.resource.path] = outcome

    def _read_written(self, batch: Sequence[_PreparedWrite], deadline: float) -> list[Outcome]:
        return [
            Outcome(change.resource, OutcomeStatus.APPLIED)
            if self._is_written(change, config, ledger)
            else _refused(change, _NOT_WRITTEN)
            for change, config, ledger in self._read([prepared.change for prepared in batch], deadline)
        ]

    def _is_written(self, change: Change, config: Node | None, ledger: Node | None) -> bool:
        """Whether a change was carried out. The ledger is compared too: some changes edit only the ledger."""
        try:
            current = config_of(config, change.resource.type is ResourceType.QUOTA)
        except Invalid:
            return False
        target_entry = format_ledger_entry(change.ledger) if change.ledger else None
        stored_entry = ledger[0] if ledger else None
        return target_entry == stored_entry and all(current.get(edit.key) == edit.value for edit in change.edits)


_TOO_LARGE = (
    f"config, notification and ledger entry have {{}} bytes, more than the {_MAX_REQUEST_BYTES} that fit into one "
    "transaction of ZooKeeper; nothing is written to it. Fix: shorten the other configs of the resource"
)
_NOT_TRIED = "no time was left to write it; the next cycle retries it"
_UNKNOWN = "ZooKeeper did not answer, so it is unknown whether it was written; the next cycle reads it back"
_NOT_WRITTEN_MORE = "nothing more was written"
_NOT_WRITTEN = "the connection was lost before it was written; the next cycle retries it"


def _after_check(check: FenceCheck, results: Sequence[Any]) -> Sequence[Any]:
    """Return the results of the operations after the checks of the term."""
    rest = check.require(results, _NOT_WRITTEN_MORE)
    for result in results[: len(results) - len(rest)]:
        if isinstance(result, KazooException) and not isinstance(result, RolledBackError):
            raise result
    return rest


def config_of(node: Node | None, is_quota: bool) -> dict[str, str]:
    """Parse a config. A quota's node without data is a parent, which Kafka created for a quota of a client id.

    Raises:
        Invalid: Kafka does not write such text.
    """
    return {} if node is None or (is_quota and not node[0]) else parse_config(node[0] or b"")


def config_operations(
    kafka: KafkaPaths, entity_path: str, node: Node | None, config: Mapping[str, str]
) -> Iterator[Operation]:
    """Yield the operations that write a config at the version that was read, and notify the brokers."""
    path = kafka.entity_config(entity_path)
    if node:
        yield "set_data", (path, format_config(config), node[2])
    else:
        yield "create", (path, format_config(config))
    yield "create", (kafka.change_notification, format_change_notification(entity_path), None, False, True)


def _size(operations: Iterable[Operation]) -> int:
    return sum(
        _OPERATION_BYTES + sum(len(argument) for argument in arguments if isinstance(argument, str | bytes))
        for _, arguments in operations
    )


def _batches(prepared: Sequence[_PreparedWrite]) -> Iterator[list[_PreparedWrite]]:
    batch: list[_PreparedWrite] = []
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
        return f"another client wrote {change.resource} at the same time; the next cycle decides again"
    if isinstance(error, NoAuthError):
        return f"ZooKeeper denies the write of {change.resource} or of its ledger entry: {NOT_ADMITTED}"
    return f"ZooKeeper refused {change.resource}: {type(error).__name__} {error}".rstrip()
