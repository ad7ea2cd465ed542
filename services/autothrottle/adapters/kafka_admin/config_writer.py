"""Writes throttle configs through Kafka's admin API in three stages, and a crash may occur between any two.

Kafka's configs and our ledger cannot be written atomically. So the ledger (in our state store) first records the
intent, then Kafka gets the write, then the ledger records it as written. After an interrupted change,
`core.throttles.ownership` accepts either value as ours.

Kafka does not know our terms. The fence holds as far as possible: the term is checked in the state store right
before each write, and each write ends before our session can expire and before the leader's lease ends.

A broker may report a value later than Kafka accepted it. So a write is confirmed once the broker whose value was read
before reports it. Until then the intent stays in the ledger. A restore in that time is sent even if the broker already
reports the restored value.

The configs of a broker that is down are written through a controller, and are confirmed at once: no node of Kafka
describes them. Their current values are those of the decision. The broker applies them about 0.1 s after its first
fetch (Kafka 4.3.1).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import chain, zip_longest
from typing import Any

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.client_quotas import AdminClientQuotas, quota_edits
from autothrottle.adapters.kafka_admin.values import Answers, ConfigEdit, ConfigOperation, Configs
from autothrottle.adapters.state_store.ledger import Fence
from autothrottle.core.cluster.configs import (
    MAX_VALUE_BYTES,
    REPLICAS_KEYS,
    WILDCARD,
    ConfigResource,
    LedgerEntry,
    ResourceType,
    format_replicas,
    parse_replicas,
)
from autothrottle.core.errors import AutothrottleError, Invalid, Missing, NotLeader, Unavailable
from autothrottle.core.records import Outcome, OutcomeStatus
from autothrottle.core.throttles.changes import Change, Edit, intended, validate_restored
from autothrottle.ports.kafka import Term
from autothrottle.ports.state_store import Ledger

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

_Requests = Mapping[ConfigResource, Sequence[ConfigEdit]]
"""Resource -> its edits in one request."""

_Alter = Callable[[_Requests, float], Mapping[ConfigResource, AutothrottleError]]
"""Sends requests until a time on the monotonic clock; returns resource -> why Kafka refused its edits."""

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
    """A `ConfigWriter` on Kafka's admin API; the term and the ledger are in our state store. Thread-safe."""

    def __init__(
        self,
        kafka: KafkaAdmin,
        ledger: Ledger,
        session_timeout: timedelta,
        patience: timedelta = _PATIENCE,
    ) -> None:
        """Prepare; this reads and writes nothing.

        Args:
            kafka: holds the configs.
            ledger: holds the ledger and the terms.
            session_timeout: how long the leader may be silent, > 0.
            patience: how long a broker may take before the others continue without it, > 0.
        """
        self._kafka, self._quotas, self._ledger = kafka, AdminClientQuotas(kafka), ledger
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
        readable = [c for c in changes if not isinstance(ledger[c.resource], AutothrottleError)]
        current = self._read([c.resource for c in readable if c.edits], self._longest_wait(term, deadline))
        down = self._down(current, self._longest_wait(term, deadline))
        prepared = []
        for change in changes:
            entry = ledger[change.resource]
            try:
                if isinstance(entry, AutothrottleError):
                    raise entry
                work = _prepared(change, entry, current.get(change.resource, {}), change.resource in down)
            except AutothrottleError as error:
                outcomes[change.resource] = _refused(change.resource, str(error))
                continue
            if work.requests or work.change.ledger != entry:
                prepared.append(work)
            else:
                outcomes[change.resource] = Outcome(change.resource, OutcomeStatus.UNCHANGED)
        return prepared

    def _read(self, resources: Collection[ConfigResource], timeout: timedelta) -> Mapping[ConfigResource, _Throttles]:
        """Read the throttles and quotas set on each resource itself, brokers and topics in parallel."""
        brokers = {r.broker_id: r for r in resources if r.type is ResourceType.BROKER}
        topics = {r.name: r for r in resources if r.type is ResourceType.TOPIC}
        quotas = [r for r in resources if r.type is ResourceType.QUOTA]
        with ThreadPoolExecutor(1, thread_name_prefix="topic-configs") as pool:
            pending = pool.submit(_read, self._kafka.topic_configs, topics, timeout) if topics else None
            configs = _read(self._kafka.broker_configs, brokers, timeout)
            return {**configs, **self._read_quotas(quotas, timeout), **(pending.result() if pending else {})}

    def _read_quotas(
        self, resources: Collection[ConfigResource], timeout: timedelta
    ) -> Mapping[ConfigResource, _Throttles]:
        try:
            return self._quotas.fetch_texts(resources, timeout) if resources else {}
        except AutothrottleError as error:
            return dict.fromkeys(resources, error)

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
        rates, lists, quotas = (
            [p for p in prepared if p.requests and p.resource.type is kind]
            for kind in (ResourceType.BROKER, ResourceType.TOPIC, ResourceType.QUOTA)
        )
        failures: dict[ConfigResource, str] = {}
        with ThreadPoolExecutor(max(1, min(_MAX_THREADS, len(rates))), thread_name_prefix="rates") as pool:
            running = {p.resource: pool.submit(self._write_rates, term, p, deadline) for p in rates}
            wait(running.values(), timeout=self._longest_wait(term, deadline).total_seconds())
            failures |= self._write_batches(term, _batches(lists), self._alter_topics, deadline)
            failures |= self._write_batches(term, ([p] for p in quotas), self._alter_quota, deadline)
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
        if prepared.unreachable is None and self._unreported([prepared], deadline):
            raise Unavailable(_NOT_REPORTED)

    def _write_batches(
        self, term: Term, batches: Iterable[Sequence[_PreparedEdit]], alter: _Alter, deadline: float
    ) -> dict[ConfigResource, str]:
        """Send the requests of each batch together; return why some failed."""
        failures: dict[ConfigResource, str] = {}
        sent: list[_PreparedEdit] = []
        for batch in batches:
            sent += batch
            for step in zip_longest(*([(p.resource, r) for r in p.requests] for p in batch)):
                requests = {resource: r for resource, r in filter(None, step) if resource not in failures}
                if requests:
                    failures |= self._attempt(term, requests, alter, deadline)
        return failures | self._unreported([p for p in sent if p.resource not in failures], deadline)

    def _attempt(self, term: Term, requests: _Requests, alter: _Alter, deadline: float) -> dict[ConfigResource, str]:
        try:
            refused = alter(requests, self._fence.admit(term, deadline, _TOO_LATE))
        except NotLeader:
            raise
        except AutothrottleError as error:
            refused = dict.fromkeys(requests, error)
        return {resource: str(error) for resource, error in refused.items()}

    def _alter_topics(self, requests: _Requests, until: float) -> Mapping[ConfigResource, AutothrottleError]:
        refused = self._kafka.alter_topic_configs({r.name: edits for r, edits in requests.items()}, until=until)
        return {ConfigResource.topic(topic): error for topic, error in refused.items()}

    def _alter_quota(self, requests: _Requests, until: float) -> Mapping[ConfigResource, AutothrottleError]:
        for resource, edits in requests.items():
            self._kafka.alter_client_quotas(*quota_edits(resource, edits), until=until)
        return {}

    def _unreported(self, sent: Collection[_PreparedEdit], deadline: float) -> dict[ConfigResource, str]:
        """Wait until Kafka reports the written values; return the resources for which it does not, and the reason."""
        deadline = min(deadline, time.monotonic() + self._fence.longest_write)
        waiting = {p.resource: p for p in sent}
        while waiting and (seconds_left := deadline - time.monotonic()) > 0:
            current = self._read(waiting, timedelta(seconds=seconds_left))
            waiting = {r: p for r, p in waiting.items() if not p.is_reported(current[r])}
            if waiting:
                time.sleep(_POLL_SECONDS)
        return dict.fromkeys(waiting, _NOT_REPORTED)

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
    if isinstance(current, Missing) and topic and not change.records:
        # A deleted topic has no throttles any more, and nothing is left to restore.
        return _PreparedEdit(Change(change.resource, (), None), ledger)
    if isinstance(current, Unavailable) and change.resource.type is ResourceType.BROKER:
        is_release = not change.records and not (ledger and all(key.is_released for key in ledger.keys.values()))
        if not is_release and not is_down:
            # A slow broker may still forward a late write.
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
        edit.validate(value_in_kafka)
        if value_in_kafka == edit.value and (edit.writes or edit.key not in unknown):
            continue
        restores = edit.key not in change.records
        sent, value = operations(replace(edit, expected=value_in_kafka), restores)
        edits.append(Edit(edit.key, value_in_kafka, value))
        steps.append(sent)
        if ledger_key:
            keys[edit.key] = replace(ledger_key, written=value)
    entry = replace(change.ledger, keys=keys) if change.ledger else None
    requests = tuple(tuple(filter(None, step)) for step in zip_longest(*steps))
    return _PreparedEdit(Change(change.resource, tuple(edits), entry), ledger, requests, unreachable)


def _read(
    ask: Callable[..., Answers[Any, Configs]], resources: Mapping[Any, ConfigResource], timeout: timedelta
) -> Mapping[ConfigResource, _Throttles]:
    """Read the throttles of brokers or topics; an error of the whole call becomes the error of each.

    Args:
        ask: describes the configs of brokers or topics.
        resources: broker id or topic -> its resource.
        timeout: of the call.
    """
    if not resources:
        return {}
    try:
        answers = ask(resources, timeout=timeout)
    except AutothrottleError as error:
        return dict.fromkeys(resources.values(), error)
    own: Mapping[Any, _Throttles] = {
        name: {key: value.current for key, value in values.items() if value.current is not None}
        for name, values in answers.values.items()
    }
    return {r: own[name] if name in own else answers.failures[name] for name, r in resources.items()}


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


def operations(edit: Edit, restores: bool) -> tuple[tuple[ConfigEdit, ...], str | None]:
    """Return the operations of an edit, one per request, and the value after them.

    Args:
        edit: an edit with an effect; `expected` is the current value.
        restores: True if the value belongs to another party and is restored byte for byte. Otherwise the order of a
            list does not matter.

    Raises:
        Invalid: the value is longer than Kafka accepts. Kafka would close the connection instead of refusing it.
    """
    if edit.value is None:
        return (ConfigEdit(edit.key, ConfigOperation.DELETE),), None
    if len(edit.value.encode()) > MAX_VALUE_BYTES:
        size = len(edit.value.encode())
        raise Invalid(f"{edit.key} has {size} bytes and Kafka accepts {MAX_VALUE_BYTES}; throttle fewer partitions")
    if edit.key in REPLICAS_KEYS:
        steps, value = _difference(edit.key, edit.expected or "", edit.value)
        if steps and (value == edit.value or not restores):
            return steps, value
    return (ConfigEdit(edit.key, ConfigOperation.SET, edit.value),), edit.value


def _difference(key: str, current: str, value: str) -> tuple[tuple[ConfigEdit, ...], str]:
    """The operations that turn one list into another, and the resulting text; no operations: it is impossible."""
    parts = [part for part in current.split(",") if part]
    try:
        old, new = parse_replicas(current), parse_replicas(value)
    except Invalid:
        return (), ""
    # Kafka compares entries as text, so it would not find an entry with a space or a duplicate.
    if WILDCARD in old | new or sorted(parts) != sorted(old):
        return (), ""
    steps = []
    if added := new - old:
        steps.append(ConfigEdit(key, ConfigOperation.APPEND, format_replicas(added)))
    if removed := old - new:
        steps.append(ConfigEdit(key, ConfigOperation.SUBTRACT, format_replicas(removed)))
    remaining = [part for part in parts if part in new]
    return tuple(steps), ",".join([*remaining, *(part for part in format_replicas(added).split(",") if part)])
