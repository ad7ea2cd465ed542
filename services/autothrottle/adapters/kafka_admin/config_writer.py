"""Writes throttle configs through Kafka's admin API in three stages, and a crash may occur between any two.

Kafka's configs and our ledger cannot be written atomically. So the ledger (in our ZooKeeper) first records the intent,
then Kafka gets the write, then the ledger records it as written. After an interrupted change,
`core.throttles.ownership` accepts either value as ours.

Kafka does not know our terms. The fence holds as far as possible: the term is checked in ZooKeeper right before each
write, and each write ends before our session can expire and before the leader's lease ends.

A broker may report a value later than Kafka accepted it. So a write is confirmed once the broker whose value was read
before reports it. Until then the intent stays in the ledger. A restore in that time is sent even if the broker already
reports the restored value.

The configs of a broker that is down are written through a controller, and are confirmed at once: no node of Kafka
describes them. Their current values are those of the decision. The broker applies them about 0.1 s after its first
fetch (Kafka 4.3.1).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import chain, zip_longest
from typing import Any

from kazoo.client import KazooClient

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.client_quotas import quota_edits, quota_texts
from autothrottle.adapters.kafka_admin.config_edits import operations
from autothrottle.adapters.kafka_admin.fence import Fence
from autothrottle.adapters.kafka_admin.values import ConfigEdit
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper_state.ledger import Ledger
from autothrottle.core.cluster.configs import ConfigResource, LedgerEntry, ResourceType
from autothrottle.core.errors import AutothrottleError, Conflict, Missing, NotLeader, Unavailable
from autothrottle.core.records import Outcome, OutcomeStatus
from autothrottle.core.throttles.changes import Change, Edit, intended, validate_restored
from autothrottle.ports.kafka import Term

MAX_BATCH_TOPICS, MAX_BATCH_BYTES = 100, 1_000_000
"""Limits of one request. The controller writes it as one batch of its log, which holds at most 8 MB."""

_MAX_THREADS = 64
"""Limit of brokers that are written in parallel."""

_PATIENCE = timedelta(seconds=2)
"""How long a broker may take before the others continue without it; milliseconds are usual."""

_SHARE_OF_LEASE = 1 / 3
"""Maximum share of the rest of the lease for one wait for a slow broker; a change may cause two."""

_POLL_SECONDS = 0.02
"""Interval between checks whether Kafka reports a write."""

_Throttles = Mapping[str, str] | AutothrottleError
"""The throttles set on one resource itself (key -> value), or why they cannot be read."""

_Outcomes = dict[ConfigResource, Outcome]

_TOO_LATE = "no time was left to write it; the next cycle retries it"
_NOT_REPORTED = "Kafka accepted it but does not report it yet; the next cycle checks it again"


@dataclass(frozen=True, slots=True)
class _PreparedEdit:
    """A change and the requests that carry it out."""

    change: Change
    """Contains only the remaining edits, from the current value to the exact text after the write."""
    ledger: LedgerEntry | None
    """The current ledger entry."""
    requests: tuple[tuple[ConfigEdit, ...], ...] = ()
    """Requests in sending order; empty: only the ledger changes."""
    unreachable: Unavailable | None = None
    """Why the broker does not answer. Only a controller can then write its config."""

    @property
    def resource(self) -> ConfigResource:
        return self.change.resource

    def is_reported(self, current: _Throttles) -> bool:
        """Whether the old values are gone. The new ones need not match ours exactly, since others edit lists too."""
        if isinstance(current, AutothrottleError):
            return False
        return all(e.value == e.expected or current.get(e.key) != e.expected for e in self.change.edits)

    @property
    def size(self) -> int:
        return sum(len(edit.value or "") for edit in chain(*self.requests))


class AdminConfigWriter:
    """A `ConfigWriter` on Kafka's admin API; the term and the ledger are in our own ZooKeeper. Thread-safe."""

    def __init__(
        self,
        kafka: KafkaAdmin,
        client: KazooClient,
        own: OwnPaths,
        session_timeout: timedelta,
        patience: timedelta = _PATIENCE,
    ) -> None:
        """Prepare; this reads and writes nothing.

        Args:
            kafka: holds the configs.
            client: the session that holds the term.
            own: paths of the term and the ledger.
            session_timeout: of that session, > 0.
            patience: how long a broker may take before the others continue without it, > 0.
        """
        self._kafka, self._ledger = kafka, Ledger(client, own)
        self._fence = Fence(self._ledger, session_timeout)
        self._patience = patience.total_seconds()

    def apply(self, term: Term, changes: Sequence[Change], timeout: timedelta) -> Sequence[Outcome]:
        """Apply the changes; return one outcome per change, in the same order."""
        deadline = time.monotonic() + timeout.total_seconds()
        outcomes: _Outcomes = {}
        prepared = self._prepare(term, changes, outcomes, deadline)
        recorded = self._record_intents(term, prepared, outcomes, deadline)
        written = self._write(term, recorded, outcomes, deadline)
        self._confirm(term, written, outcomes, deadline)
        return [outcomes[change.resource] for change in changes]

    # Reads current values, and finds the edits that are still needed.

    def _prepare(
        self, term: Term, changes: Sequence[Change], outcomes: _Outcomes, deadline: float
    ) -> list[_PreparedEdit]:
        ledger = self._ledger.read([change.resource for change in changes], deadline)
        readable: list[tuple[Change, LedgerEntry | None]] = []
        for change in changes:
            entry = ledger[change.resource]
            if isinstance(entry, AutothrottleError):
                outcomes[change.resource] = _refused(change.resource, str(entry))
            else:
                readable.append((change, entry))
        edited = [change.resource for change, _ in readable if change.edits]
        current = self._current(edited, self._longest_wait(term, deadline))
        down = self._down(current, self._longest_wait(term, deadline))
        prepared = []
        for change, entry in readable:
            try:
                work = _prepared(change, entry, current.get(change.resource, {}), change.resource in down)
            except AutothrottleError as error:
                outcomes[change.resource] = _refused(change.resource, str(error))
                continue
            if work.requests or work.change.ledger != entry:
                prepared.append(work)
            else:
                outcomes[change.resource] = Outcome(change.resource, OutcomeStatus.UNCHANGED)
        return prepared

    def _current(self, resources: Sequence[ConfigResource], timeout: timedelta) -> Mapping[ConfigResource, _Throttles]:
        """Read the throttles set on each resource itself, brokers and topics in parallel."""
        brokers = [r.broker_id for r in resources if r.type is ResourceType.BROKER]
        topics = [r.name for r in resources if r.type is ResourceType.TOPIC]
        quotas = [r for r in resources if r.type is ResourceType.QUOTA]
        with ThreadPoolExecutor(1, thread_name_prefix="topic-configs") as pool:
            pending = pool.submit(_read, self._kafka.topic_configs, topics, timeout)
            configs = _read(self._kafka.broker_configs, brokers, timeout)
            return {
                **{ConfigResource.broker(broker_id): configs[broker_id] for broker_id in brokers},
                **{ConfigResource.topic(topic): answer for topic, answer in pending.result().items()},
                **self._read_quotas(quotas, timeout),
            }

    def _read_quotas(
        self, resources: Collection[ConfigResource], timeout: timedelta
    ) -> Mapping[ConfigResource, _Throttles]:
        """Read the client quotas of each resource."""
        try:
            texts = quota_texts(self._kafka.client_quotas(timeout=timeout)) if resources else {}
        except AutothrottleError as error:
            return dict.fromkeys(resources, error)
        return {resource: texts.get(resource, {}) for resource in resources}

    def _down(self, current: Mapping[ConfigResource, _Throttles], timeout: timedelta) -> Collection[ConfigResource]:
        """Return the brokers whose configs a controller can set, because they are down and not only slow."""
        silent = {
            r for r, configs in current.items() if isinstance(configs, Unavailable) and r.type is ResourceType.BROKER
        }
        if not silent or not self._kafka.has_controllers:
            return ()
        try:
            registered = self._kafka.brokers(timeout=timeout)
        except AutothrottleError:
            return ()
        return {resource for resource in silent if resource.broker_id not in registered}

    def _longest_wait(self, term: Term, deadline: float) -> timedelta:
        """How long to wait for a slow broker: part of the lease stays for the others."""
        now = time.monotonic()
        return timedelta(
            seconds=max(0.001, min(self._patience, deadline - now, (term.lease_end - now) * _SHARE_OF_LEASE))
        )

    # The three stages.

    def _record_intents(
        self, term: Term, prepared: Sequence[_PreparedEdit], outcomes: _Outcomes, deadline: float
    ) -> list[_PreparedEdit]:
        """Record the intents in the ledger; return the changes that may continue."""
        entries = {p.resource: intended(p.change, p.ledger, term.fence) for p in prepared if p.requests}
        changed = {p.resource: entries[p.resource] for p in prepared if p.requests and entries[p.resource] != p.ledger}
        done = self._ledger.write(term.fence, changed, deadline) if changed else {}
        refused = {r: o for r, o in done.items() if o.status is OutcomeStatus.REFUSED}
        outcomes.update(refused)
        return [p for p in prepared if p.resource not in refused]

    def _write(
        self, term: Term, prepared: Sequence[_PreparedEdit], outcomes: _Outcomes, deadline: float
    ) -> list[_PreparedEdit]:
        """Write to Kafka, rates before lists; return the changes that succeeded."""
        rates = [p for p in prepared if p.requests and p.resource.type is ResourceType.BROKER]
        lists = [p for p in prepared if p.requests and p.resource.type is ResourceType.TOPIC]
        quotas = [p for p in prepared if p.requests and p.resource.type is ResourceType.QUOTA]
        failures: dict[ConfigResource, str] = {}
        with ThreadPoolExecutor(max(1, min(_MAX_THREADS, len(rates))), thread_name_prefix="rates") as pool:
            running = {p.resource: pool.submit(self._write_rates, term, p, deadline) for p in rates}
            wait(running.values(), timeout=self._longest_wait(term, deadline).total_seconds())
            failures |= self._write_lists(term, lists, deadline)
            failures |= self._write_quotas(term, quotas, deadline)
            failures |= _failures(running)
        outcomes.update((r, _refused(r, reason)) for r, reason in failures.items())
        return [p for p in prepared if p.resource not in failures]

    def _write_rates(self, term: Term, prepared: _PreparedEdit, deadline: float) -> None:
        broker_id, (edits,) = prepared.resource.broker_id, prepared.requests
        until = self._fence.admit(term, deadline, _TOO_LATE)
        try:
            if prepared.unreachable is None:
                self._kafka.alter_broker_configs(broker_id, edits, until=until)
            else:
                self._kafka.alter_broker_configs_through_controller(broker_id, edits, until=until)
        except Unavailable as error:
            tried = f"{prepared.unreachable}; through a controller: {error}" if prepared.unreachable else error
            raise Unavailable(_unreachable(broker_id, tried)) from error
        if prepared.unreachable is None and self._unreported(
            partial(_read, self._kafka.broker_configs), {broker_id: prepared}, deadline
        ):
            raise Unavailable(_NOT_REPORTED)

    def _write_lists(self, term: Term, prepared: Sequence[_PreparedEdit], deadline: float) -> dict[ConfigResource, str]:
        """Send the topics' requests in batches; return why some failed."""
        failures: dict[ConfigResource, str] = {}
        for batch in _batches(prepared):
            for step in zip_longest(*([(p, r) for r in p.requests] for p in batch)):
                edits = {p.resource.name: r for p, r in filter(None, step) if p.resource not in failures}
                failures |= self._write_topics(term, edits, deadline) if edits else {}
        sent = {p.resource.name: p for p in prepared if p.resource not in failures}
        unreported = self._unreported(partial(_read, self._kafka.topic_configs), sent, deadline)
        return failures | {ConfigResource.topic(topic): _NOT_REPORTED for topic in unreported}

    def _write_quotas(
        self, term: Term, prepared: Sequence[_PreparedEdit], deadline: float
    ) -> dict[ConfigResource, str]:
        """Send the quotas' requests one by one; return why some failed."""
        failures: dict[ConfigResource, str] = {}
        for p in prepared:
            try:
                until = self._fence.admit(term, deadline, _TOO_LATE)
                for edits in p.requests:
                    self._kafka.alter_client_quotas(*quota_edits(p.resource, edits), until=until)
            except NotLeader:
                raise
            except AutothrottleError as error:
                failures[p.resource] = str(error)
        sent = {p.resource: p for p in prepared if p.resource not in failures}
        unreported = self._unreported(self._read_quotas, sent, deadline)
        return failures | dict.fromkeys(unreported, _NOT_REPORTED)

    def _write_topics(
        self, term: Term, edits: Mapping[str, Sequence[ConfigEdit]], deadline: float
    ) -> dict[ConfigResource, str]:
        try:
            refused = self._kafka.alter_topic_configs(edits, until=self._fence.admit(term, deadline, _TOO_LATE))
        except NotLeader:
            raise
        except AutothrottleError as error:
            return {ConfigResource.topic(topic): str(error) for topic in edits}
        return {ConfigResource.topic(topic): str(error) for topic, error in refused.items()}

    def _unreported(
        self, fetch: Callable[[Sequence[Any], timedelta], Any], sent: Mapping[Any, _PreparedEdit], deadline: float
    ) -> Collection[Any]:
        """Wait until Kafka reports the written values; return the brokers or topics for which it does not."""
        deadline = min(deadline, time.monotonic() + self._fence.longest_write)
        waiting = list(sent)
        while waiting and (seconds_left := deadline - time.monotonic()) > 0:
            configs = fetch(waiting, timedelta(seconds=seconds_left))
            waiting = [name for name in waiting if not sent[name].is_reported(configs[name])]
            if waiting:
                time.sleep(_POLL_SECONDS)
        return waiting

    def _confirm(self, term: Term, written: Sequence[_PreparedEdit], outcomes: _Outcomes, deadline: float) -> None:
        """Record in the ledger that the values were written."""
        entries = {p.resource: p.change.ledger for p in written}
        try:
            done = self._ledger.write(term.fence, entries, deadline) if entries else {}
        except Unavailable as error:
            done = {p.resource: _refused(p.resource, str(error)) for p in written}
        for p in written:
            outcome = done[p.resource]
            if outcome.status is OutcomeStatus.REFUSED:
                problem = "it was written but not confirmed in the ledger; the next cycle confirms it"
                outcomes[p.resource] = _refused(p.resource, f"{problem}: {outcome.reason}")
            else:
                outcomes[p.resource] = Outcome(p.resource, OutcomeStatus.APPLIED)


def _prepared(change: Change, ledger: LedgerEntry | None, current: _Throttles, is_down: bool = False) -> _PreparedEdit:
    """Determine the requests of a change.

    Args:
        change: the change.
        ledger: the current ledger entry.
        current: the current values.
        is_down: whether the broker is down, so that a controller can set its values.

    Raises:
        Conflict: the current value is not the expected one.
        Invalid: Kafka would not accept a value, or the ledger does not record a restored one.
        Unavailable: the current values cannot be read, and a controller could not help.
    """
    topic = change.resource.type is ResourceType.TOPIC
    if isinstance(current, Missing) and topic and change.ledger is None:
        # A deleted topic has no throttles any more, and nothing is left to restore.
        return _PreparedEdit(Change(change.resource, (), None), ledger)
    if isinstance(current, Unavailable) and change.resource.type is ResourceType.BROKER:
        if change.ledger is not None and not is_down:
            raise Unavailable(_unreachable(change.resource.broker_id, current))
        # No node describes the configs of this broker. The decision was based on the last known values.
        as_decided = {edit.key: edit.expected for edit in change.edits if edit.expected is not None}
        return _with_requests(change, ledger, as_decided, current)
    if isinstance(current, AutothrottleError):
        raise current
    return _with_requests(change, ledger, current)


def _with_requests(
    change: Change, ledger: LedgerEntry | None, current: Mapping[str, str], unreachable: Unavailable | None = None
) -> _PreparedEdit:
    validate_restored(change, current, ledger)
    keys, edits, steps = dict(change.ledger.keys if change.ledger else {}), [], []
    unknown = {name for name, key in (ledger.keys if ledger else {}).items() if key.intent is not None}
    for edit in change.edits:
        value_in_kafka, ledger_key = current.get(edit.key), keys.get(edit.key)
        if value_in_kafka not in (edit.expected, edit.value):
            raise Conflict(f"{edit.key} is {value_in_kafka!r}, but was {edit.expected!r} when the change was decided")
        if value_in_kafka == edit.value and (edit.writes or edit.key not in unknown):
            continue
        sent, value = operations(replace(edit, expected=value_in_kafka), restores=ledger_key is None)
        edits.append(Edit(edit.key, value_in_kafka, value))
        steps.append(sent)
        if ledger_key:
            keys[edit.key] = replace(ledger_key, written=value)
    entry = replace(change.ledger, keys=keys) if change.ledger else None
    requests = tuple(tuple(filter(None, step)) for step in zip_longest(*steps))
    return _PreparedEdit(Change(change.resource, tuple(edits), entry), ledger, requests, unreachable)


def _read(ask: Callable[..., Any], names: Sequence[Any], timeout: timedelta) -> Mapping[Any, _Throttles]:
    """Read the throttles of brokers or topics; an error of the whole call becomes the error of each."""
    if not names:
        return {}
    try:
        answers = ask(names, timeout=timeout)
    except AutothrottleError as error:
        return dict.fromkeys(names, error)
    own: Mapping[Any, _Throttles] = {
        name: {key: value.current for key, value in values.items() if value.current is not None}
        for name, values in answers.values.items()
    }
    return {name: own[name] if name in own else answers.failures[name] for name in names}


def _failures(running: Mapping[ConfigResource, Future[None]]) -> dict[ConfigResource, str]:
    """Wait for all writes; return why some failed.

    Raises:
        NotLeader: a write found that the term is over.
    """
    errors = {resource: future.exception() for resource, future in running.items()}
    for error in errors.values():
        if error is not None and (isinstance(error, NotLeader) or not isinstance(error, AutothrottleError)):
            raise error
    return {resource: str(error) for resource, error in errors.items() if error is not None}


def _batches(prepared: Sequence[_PreparedEdit]) -> Iterator[list[_PreparedEdit]]:
    batch: list[_PreparedEdit] = []
    for item in prepared:
        if batch and (len(batch) >= MAX_BATCH_TOPICS or sum(p.size for p in [*batch, item]) > MAX_BATCH_BYTES):
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch


def _refused(resource: ConfigResource, reason: str) -> Outcome:
    return Outcome(resource, OutcomeStatus.REFUSED, reason)


def _unreachable(broker_id: int, reason: object) -> str:
    return f"broker {broker_id} is unreachable; the next cycle retries it: {reason}"
