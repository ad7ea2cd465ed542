"""Finds violations of autothrottle's guarantees in ZooKeeper's transaction log: a pure function of the log.

It replays the log from its beginning, so that it checks each transaction against the state before it. Sessions identify
the user's writes; all other writes to configs and the ledger are autothrottle's. The type to know is `Violation`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from autothrottle.adapters.zookeeper.codec import parse_config, parse_ledger_entry
from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.core.cluster.configs import REPLICAS_KEYS, THROTTLE_KEYS, LedgerKey, parse_replicas
from autothrottle_lab.servers.zookeeper import Operation, Transaction

Configs = Mapping[str, Mapping[str, str]]
"""Entity path -> key -> value; entities without keys may be absent."""

_KINDS = ("brokers", "topics")


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken guarantee."""

    rule: str
    """The broken guarantee in a few words, the same text for every case."""
    zxid: int
    """The transaction that broke it; 0: only the final state shows it."""
    details: str

    def __str__(self) -> str:
        return f"{self.rule}{f' at {self.zxid:#x}' if self.zxid else ''}: {self.details}"


UNFENCED = "a write without a check of the term"
ENDED_TERM = "a write of an ended term"
TWO_LEADERS = "interleaved writes of two leaders"
NOT_ELECTED = "a term without an election"
FOREIGN_KEY = "a write to a foreign key"
LEDGER_MISMATCH = "a throttle that does not match the ledger"
NOT_NOTIFIED = "a config write without a notification"
WRONG_END_STATE = "the final configs are not the initial ones plus the user's changes"
LEDGER_LEFT = "a ledger entry after the end of the reassignment"


@dataclass(frozen=True, slots=True)
class Subject:
    """The input of the checker besides the log."""

    kafka: KafkaPaths
    own: OwnPaths
    others: frozenset[int]
    """Sessions of the user."""
    begin: int
    """The last zxid of the setup; autothrottle wrote nothing before."""
    expected: Configs
    """The required final configs."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The violations, and the number of checked transactions."""

    violations: tuple[Violation, ...]
    writes: int
    """Transactions of autothrottle that wrote configs or the ledger."""
    terms: int
    """Terms with such writes."""
    late: int
    """Transactions that ZooKeeper refused because their term was over."""


def judge(transactions: Iterable[Transaction], subject: Subject) -> Verdict:
    """Return the verdict on a whole log, which must include refused transactions."""
    replay = _Replay(subject)
    for transaction in transactions:
        replay.take(transaction)
    violations = (*replay.violations, *replay.end())
    return Verdict(violations, replay.writes, len(replay.fences), replay.late)


def normalized(configs: Configs) -> dict[str, dict[str, str]]:
    """Return configs with sorted lists and without empty entities, for comparison."""
    found = {
        entity: {k: ",".join(sorted(parse_replicas(v))) if k in REPLICAS_KEYS else v for k, v in config.items()}
        for entity, config in configs.items()
    }
    return {entity: config for entity, config in found.items() if config}


def differences(found: Configs, expected: Configs) -> list[str]:
    """Return one line for each key that differs."""
    found, expected = normalized(found), normalized(expected)
    return [
        f"{entity} {key} is {found.get(entity, {}).get(key)!r} and should be {expected.get(entity, {}).get(key)!r}"
        for entity in sorted(found.keys() | expected.keys())
        for key in sorted(found.get(entity, {}).keys() | expected.get(entity, {}).keys())
        if found.get(entity, {}).get(key) != expected.get(entity, {}).get(key)
    ]


BAD_VERSION = -103


@dataclass(slots=True)
class _Replay:
    """The znodes after each transaction, and the violations so far."""

    subject: Subject
    nodes: dict[str, bytes] = field(default_factory=dict)
    term: int = 0
    fences: list[int] = field(default_factory=list)
    """Fences of the terms that wrote, in order."""
    writes: int = 0
    late: int = 0
    violations: list[Violation] = field(default_factory=list)

    def take(self, transaction: Transaction) -> None:
        if not transaction.applied:
            self.late += self._is_late(transaction)
            return
        before = dict.fromkeys(o.path for o in transaction.operations)
        previous = {path: self.nodes.get(path) for path in before}
        is_ours = transaction.session_id not in self.subject.others and transaction.zxid > self.subject.begin
        if is_ours:
            self.violations += self._check_election(transaction)
            if any(self._is_fenced(o) for o in transaction.operations):
                self.writes += 1
                self.violations += self._check_fence(transaction)
        for operation in transaction.operations:
            self._apply(operation)
        if is_ours:
            self.violations += self._check_configs(transaction, previous)

    def end(self) -> Iterator[Violation]:
        """Yield the violations in the final state."""
        found = {entity: self._config(entity) for entity in self._entities(self.subject.kafka.configs)}
        for difference in differences(found, self.subject.expected):
            yield Violation(WRONG_END_STATE, 0, difference)
        for entity in self._entities(self.subject.own.ledger):
            yield Violation(LEDGER_LEFT, 0, entity)

    # Leadership

    def _is_late(self, transaction: Transaction) -> bool:
        """Whether its first operation failed with a bad version; autothrottle's first operation checks the term."""
        is_ours = transaction.session_id not in self.subject.others
        refused_at_once = transaction.kind == "multi" and not transaction.operations
        return is_ours and refused_at_once and transaction.error == BAD_VERSION

    def _check_election(self, transaction: Transaction) -> Iterator[Violation]:
        """The transaction that begins a term must check the candidate znode that is first in the queue."""
        own, zxid = self.subject.own, transaction.zxid
        if not any(o.kind == "set" and o.path == own.term for o in transaction.operations):
            return
        queue = sorted((path for path in self.nodes if path.startswith(f"{own.election}/")), key=lambda p: p[-10:])
        checked = [o.path for o in transaction.operations if o.kind == "check"]
        if not queue or queue[0] not in checked:
            yield Violation(NOT_ELECTED, zxid, f"it checked {checked or 'nothing'} instead of the first of {queue}")

    def _check_fence(self, transaction: Transaction) -> Iterator[Violation]:
        zxid, fence = transaction.zxid, _fence(transaction, self.subject.own.term)
        paths = [o.path for o in transaction.operations if self._is_fenced(o)]
        if fence is None:
            yield Violation(UNFENCED, zxid, f"session {transaction.session_id:#x} wrote {paths}")
            return
        if fence != self.term:
            yield Violation(ENDED_TERM, zxid, f"{paths} by term {fence} in term {self.term}")
        if fence not in self.fences:
            self.fences.append(fence)
        elif fence != self.fences[-1]:
            yield Violation(TWO_LEADERS, zxid, f"{paths} by term {fence} after a write of term {self.fences[-1]}")

    def _is_fenced(self, operation: Operation) -> bool:
        """Whether only the leader may execute it."""
        kafka, own = self.subject.kafka, self.subject.own
        guarded = (f"{kafka.configs}/", f"{own.ledger}/", kafka.reassign_partitions)
        return operation.kind != "check" and operation.path.startswith(guarded)

    # Contents

    def _check_configs(self, transaction: Transaction, previous: Mapping[str, bytes | None]) -> Iterator[Violation]:
        """Config changes must only concern throttles, match the ledger, and have a notification."""
        zxid, kafka, own = transaction.zxid, self.subject.kafka, self.subject.own
        notified = [
            json.loads(o.data or b"{}").get("entity_path")
            for o in transaction.operations
            if o.kind == "create" and o.path.startswith(kafka.change_notification)
        ]
        entities = {self._entity(path, root) for path in previous for root in (kafka.configs, own.ledger)} - {""}
        for entity in sorted(entities):
            config, ledger = f"{kafka.configs}/{entity}", f"{own.ledger}/{entity}"
            old, new = _parsed(previous.get(config, self.nodes.get(config))), self._config(entity)
            if old != new and entity not in notified:
                yield Violation(NOT_NOTIFIED, zxid, entity)
            earlier = _ledger_keys(previous.get(ledger, self.nodes.get(ledger)))
            known = _ledger_keys(self.nodes.get(ledger))
            for key in sorted({*old, *new, *earlier, *known}):
                values = old.get(key), new.get(key)
                yield from self._check_key(zxid, f"{entity} {key}", values, (earlier.get(key), known.get(key)))

    def _check_key(
        self,
        zxid: int,
        key: str,
        values: tuple[str | None, str | None],
        ledger: tuple[LedgerKey | None, LedgerKey | None],
    ) -> Iterator[Violation]:
        """A written value must be in the ledger, and a released key must have its original value.

        Args:
            zxid: the transaction.
            key: entity and key, for messages.
            values: config value (before, after) the transaction.
            ledger: ledger entry (before, after) the transaction.
        """
        (old, new), (earlier, known) = values, ledger
        if (old, earlier) == (new, known):
            return
        if key.rpartition(" ")[2] not in THROTTLE_KEYS or (earlier, known) == (None, None):
            yield Violation(FOREIGN_KEY, zxid, f"{key} changed from {old!r} to {new!r}")
        elif known is not None and known.written != new:
            yield Violation(LEDGER_MISMATCH, zxid, f"{key} is {new!r}, but {known.written!r} in the ledger")
        elif known is None and earlier is not None and new == earlier.written != earlier.before:
            yield Violation(LEDGER_MISMATCH, zxid, f"{key} is still {new!r}, but no longer in the ledger")

    # Znodes

    def _apply(self, operation: Operation) -> None:
        if operation.kind in ("create", "set"):
            self.nodes[operation.path] = operation.data or b""
        elif operation.kind == "delete":
            self.nodes.pop(operation.path, None)
        if operation.kind == "set" and operation.path == self.subject.own.term:
            self.term = operation.version or 0

    def _entities(self, root: str) -> list[str]:
        return sorted(entity for path in self.nodes if (entity := self._entity(path, root)))

    @staticmethod
    def _entity(path: str, root: str) -> str:
        """`brokers/<id>` or `topics/<name>`; "" for any other znode."""
        kind, _, name = path.removeprefix(f"{root}/").partition("/")
        return f"{kind}/{name}" if path.startswith(f"{root}/") and kind in _KINDS and name else ""

    def _config(self, entity: str) -> dict[str, str]:
        return _parsed(self.nodes.get(f"{self.subject.kafka.configs}/{entity}"))


def _fence(transaction: Transaction, term: str) -> int | None:
    """Return the term that a transaction checks; None: it does not check the term."""
    return next((o.version for o in transaction.operations if o.kind == "check" and o.path == term), None)


def _parsed(content: bytes | None) -> dict[str, str]:
    return parse_config(content) if content else {}


def _ledger_keys(content: bytes | None) -> Mapping[str, LedgerKey]:
    return parse_ledger_entry(content).keys if content else {}
