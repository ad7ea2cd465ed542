"""Judges what ZooKeeper's transaction log says that autothrottle did; pure: a log in, violations out.

The log is replayed from its beginning, so that each transaction is seen with what stood when it became true. What the
user wrote is told by the sessions; everything else below configs and ledger is ours.
The type to know is `Violation`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from autothrottle.adapters.zookeeper.codec import parse_config, parse_ledger_entry
from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.core.configs import REPLICAS_KEYS, THROTTLE_KEYS, parse_replicas
from autothrottle.core.ledger import LedgerKey
from autothrottle.lab.zookeeper import Operation, Transaction

Configs = Mapping[str, Mapping[str, str]]
"""Entity path -> key -> value; an entity without keys may be left out."""

_KINDS = ("brokers", "topics")


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that must not be."""

    rule: str
    """Which promise is broken, in a few words; the same for every case of it."""
    zxid: int
    """The transaction that broke it; 0: it shows in the end only."""
    what: str

    def __str__(self) -> str:
        return f"{self.rule}{f' at {self.zxid:#x}' if self.zxid else ''}: {self.what}"


UNFENCED = "a write without a check of the term"
ENDED_TERM = "a write of an ended term"
TWO_LEADERS = "writes of two leaders at a time"
NOT_ELECTED = "a term that was not won"
FOREIGN_KEY = "a write to a key that is not ours"
HALF_WRITTEN = "a throttle without its ledger, or the reverse"
UNANNOUNCED = "a config without its notification"
AT_THE_END = "the end is not the beginning plus what the user changed"
LEDGER_LEFT = "a ledger that outlives the move"


@dataclass(frozen=True, slots=True)
class Subject:
    """Whose log is judged."""

    kafka: KafkaPaths
    own: OwnPaths
    others: frozenset[int]
    """Sessions of the user."""
    begin: int
    """The zxid up to which the stage was set: none of that was us."""
    expected: Configs
    """The configs as they must be in the end."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found, and how much was looked at."""

    violations: tuple[Violation, ...]
    writes: int
    """Transactions of ours that wrote configs or the ledger."""
    terms: int
    """Terms that wrote."""
    late: int
    """Transactions that ZooKeeper refused since their term was over."""


def judge(transactions: Iterable[Transaction], subject: Subject) -> Verdict:
    """Return the verdict on a whole log, the refused transactions included."""
    replay = _Replay(subject)
    for transaction in transactions:
        replay.take(transaction)
    violations = (*replay.violations, *replay.end())
    return Verdict(violations, replay.writes, len(replay.fences), replay.late)


def normal(configs: Configs) -> dict[str, dict[str, str]]:
    """Return configs with lists in one order and without empty entities, for comparison."""
    found = {
        entity: {k: ",".join(sorted(parse_replicas(v))) if k in REPLICAS_KEYS else v for k, v in config.items()}
        for entity, config in configs.items()
    }
    return {entity: config for entity, config in found.items() if config}


def differences(found: Configs, expected: Configs) -> list[str]:
    """Say which keys differ."""
    found, expected = normal(found), normal(expected)
    return [
        f"{entity} {key} is {found.get(entity, {}).get(key)!r} and should be {expected.get(entity, {}).get(key)!r}"
        for entity in sorted(found.keys() | expected.keys())
        for key in sorted(found.get(entity, {}).keys() | expected.get(entity, {}).keys())
        if found.get(entity, {}).get(key) != expected.get(entity, {}).get(key)
    ]


BAD_VERSION = -103


@dataclass(slots=True)
class _Replay:
    """The tree as it is after each transaction, and what was wrong on the way."""

    subject: Subject
    nodes: dict[str, bytes] = field(default_factory=dict)
    term: int = 0
    fences: list[int] = field(default_factory=list)
    """Of the terms that wrote, as they came."""
    writes: int = 0
    late: int = 0
    violations: list[Violation] = field(default_factory=list)

    def take(self, transaction: Transaction) -> None:
        if not transaction.applied:
            self.late += self._is_late(transaction)
            return
        before = dict.fromkeys(o.path for o in transaction.operations)
        stood = {path: self.nodes.get(path) for path in before}
        is_ours = transaction.session_id not in self.subject.others and transaction.zxid > self.subject.begin
        if is_ours:
            self.violations += self._won(transaction)
            if any(self._is_fenced(o) for o in transaction.operations):
                self.writes += 1
                self.violations += self._fenced(transaction)
        for operation in transaction.operations:
            self._apply(operation)
        if is_ours:
            self.violations += self._whole(transaction, stood)

    def end(self) -> Iterator[Violation]:
        """Yield what is wrong with what is left."""
        found = {entity: self._config(entity) for entity in self._entities(self.subject.kafka.configs)}
        for difference in differences(found, self.subject.expected):
            yield Violation(AT_THE_END, 0, difference)
        for entity in self._entities(self.subject.own.ledger):
            yield Violation(LEDGER_LEFT, 0, entity)

    # Who may write.

    def _is_late(self, transaction: Transaction) -> bool:
        """Whether its first operation was refused for its version: ours begin with the check of the term."""
        is_ours = transaction.session_id not in self.subject.others
        refused_at_once = transaction.kind == "multi" and not transaction.operations
        return is_ours and refused_at_once and transaction.error == BAD_VERSION

    def _won(self, transaction: Transaction) -> Iterator[Violation]:
        """A term begins in one transaction with a check of the candidacy that is first in the queue."""
        own, zxid = self.subject.own, transaction.zxid
        if not any(o.kind == "set" and o.path == own.term for o in transaction.operations):
            return
        queue = sorted((path for path in self.nodes if path.startswith(f"{own.election}/")), key=lambda p: p[-10:])
        checked = [o.path for o in transaction.operations if o.kind == "check"]
        if not queue or queue[0] not in checked:
            yield Violation(NOT_ELECTED, zxid, f"{checked or 'nothing'} was checked, and first of {queue} should be")

    def _fenced(self, transaction: Transaction) -> Iterator[Violation]:
        zxid, fence = transaction.zxid, _fence(transaction, self.subject.own.term)
        paths = [o.path for o in transaction.operations if self._is_fenced(o)]
        if fence is None:
            yield Violation(UNFENCED, zxid, f"session {transaction.session_id:#x} wrote {paths}")
            return
        if fence != self.term:
            yield Violation(ENDED_TERM, zxid, f"{paths} in term {self.term} by term {fence}")
        if fence not in self.fences:
            self.fences.append(fence)
        elif fence != self.fences[-1]:
            yield Violation(TWO_LEADERS, zxid, f"{paths} by term {fence} after term {self.fences[-1]} wrote")

    def _is_fenced(self, operation: Operation) -> bool:
        """Whether only the leader may do it."""
        kafka, own = self.subject.kafka, self.subject.own
        guarded = (f"{kafka.configs}/", f"{own.ledger}/", kafka.reassign_partitions)
        return operation.kind != "check" and operation.path.startswith(guarded)

    # What is written.

    def _whole(self, transaction: Transaction, stood: Mapping[str, bytes | None]) -> Iterator[Violation]:
        """Each config changes only in throttles, with the ledger and with a notification."""
        zxid, kafka, own = transaction.zxid, self.subject.kafka, self.subject.own
        announced = [
            json.loads(o.data or b"{}").get("entity_path")
            for o in transaction.operations
            if o.kind == "create" and o.path.startswith(kafka.change_notification)
        ]
        entities = {self._entity(path, root) for path in stood for root in (kafka.configs, own.ledger)} - {""}
        for entity in sorted(entities):
            config, ledger = f"{kafka.configs}/{entity}", f"{own.ledger}/{entity}"
            old, new = _parsed(stood.get(config, self.nodes.get(config))), self._config(entity)
            if old != new and entity not in announced:
                yield Violation(UNANNOUNCED, zxid, entity)
            earlier = _ledger_keys(stood.get(ledger, self.nodes.get(ledger)))
            known = _ledger_keys(self.nodes.get(ledger))
            for key in sorted({*old, *new, *earlier, *known}):
                values = old.get(key), new.get(key)
                yield from self._agree(zxid, f"{entity} {key}", values, (earlier.get(key), known.get(key)))

    def _agree(
        self,
        zxid: int,
        key: str,
        values: tuple[str | None, str | None],
        ledger: tuple[LedgerKey | None, LedgerKey | None],
    ) -> Iterator[Violation]:
        """What we write stands in the ledger, and what we let go is as it was; each as (before, afterwards)."""
        (old, new), (earlier, known) = values, ledger
        if (old, earlier) == (new, known):
            return
        if key.rpartition(" ")[2] not in THROTTLE_KEYS or (earlier, known) == (None, None):
            yield Violation(FOREIGN_KEY, zxid, f"{key} was {old!r} and became {new!r}")
        elif known is not None and known.written != new:
            yield Violation(HALF_WRITTEN, zxid, f"{key} is {new!r}, and {known.written!r} in the ledger")
        elif known is None and earlier is not None and new == earlier.written != earlier.before:
            yield Violation(HALF_WRITTEN, zxid, f"{key} is still {new!r}, and no longer ours")

    # The tree.

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
        """`brokers/<id>` or `topics/<name>`; "" for any other node."""
        kind, _, name = path.removeprefix(f"{root}/").partition("/")
        return f"{kind}/{name}" if path.startswith(f"{root}/") and kind in _KINDS and name else ""

    def _config(self, entity: str) -> dict[str, str]:
        return _parsed(self.nodes.get(f"{self.subject.kafka.configs}/{entity}"))


def _fence(transaction: Transaction, term: str) -> int | None:
    """Return the term that a transaction checks; None: it checks none."""
    return next((o.version for o in transaction.operations if o.kind == "check" and o.path == term), None)


def _parsed(content: bytes | None) -> dict[str, str]:
    return parse_config(content) if content else {}


def _ledger_keys(content: bytes | None) -> Mapping[str, LedgerKey]:
    return parse_ledger_entry(content).keys if content else {}
