"""Writes throttle configs through Kafka's admin API, in three stages that a crash may part anywhere.

Kafka's configs and our ledger cannot be written together, so the ledger (in our ZooKeeper) says first what is about to
be written, then Kafka is told, then the ledger says that it was. What is left of an interrupted change is sorted out by
`core.ownership`, which takes either value for ours.

Kafka knows nothing of our terms. As far as it allows, the fence holds here too: right before each write the term is
checked in ZooKeeper, and each write ends before our session can.

A broker reports what it has heard, which may be later than Kafka has taken it. So a write is confirmed when the broker
that was asked before reports it; until then the intent stands, and what is given back meanwhile is written anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import chain, zip_longest
from typing import Any

from kazoo.client import KazooClient

from autothrottle.adapters.kafka_admin.client import ConfigEdit, KafkaAdmin
from autothrottle.adapters.kafka_admin.config_edits import operations
from autothrottle.adapters.kafka_admin.fence import Fence
from autothrottle.adapters.zookeeper.ledger import Ledger
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.core.changes import Change, Edit, Outcome, OutcomeStatus, intended
from autothrottle.core.configs import ConfigResource, ResourceType
from autothrottle.core.errors import AutothrottleError, Conflict, Missing, NotLeader, Unavailable
from autothrottle.core.ledger import LedgerEntry

MAX_BATCH_TOPICS, MAX_BATCH_BYTES = 100, 1_000_000
"""In one request; the controller writes it as one batch of its log, which holds 8 MB."""

_MAX_THREADS = 64
"""Brokers that are written to at the same moment."""

_PATIENCE = timedelta(seconds=2)
"""What a broker gets to answer before the others go on without it; milliseconds are usual."""

_PAUSE_SECONDS = 0.02
"""Between two questions whether a write is reported."""

_Standing = Mapping[str, str] | AutothrottleError
"""The throttles of one resource's own, or why they cannot be read."""

_Outcomes = dict[ConfigResource, Outcome]

_TOO_LATE = "there was no time left to write it; it is tried again next cycle"
_NOT_REPORTED = "Kafka has taken it but does not report it yet; it is looked at again next cycle"


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A change with what has to be sent for it."""

    change: Change
    """Its edits are those that are left to do, from what stands to the very text that will stand."""
    ledger: LedgerEntry | None
    """The entry that stands."""
    requests: tuple[tuple[ConfigEdit, ...], ...] = ()
    """What is sent, in this order; empty: only the ledger changes."""
    unreachable: Unavailable | None = None
    """Why the broker does not answer: only the controller can take its config back then."""

    @property
    def resource(self) -> ConfigResource:
        return self.change.resource

    def is_reported(self, standing: _Standing) -> bool:
        """Whether what is reported is no longer what stood; exactly ours it need not be: others write lists too."""
        if isinstance(standing, AutothrottleError):
            return False
        return all(e.value == e.expected or standing.get(e.key) != e.expected for e in self.change.edits)

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
        """Prepare; nothing is read or written.

        Args:
            kafka: where the configs are.
            client: the session that holds the term.
            own: where the term and the ledger are.
            session_timeout: of that session, > 0.
            patience: what a broker gets to answer before the others go on without it, > 0.
        """
        self._kafka, self._ledger = kafka, Ledger(client, own)
        self._fence = Fence(self._ledger, session_timeout)
        self._patience = patience.total_seconds()

    def apply(self, fence: int, changes: Sequence[Change], timeout: timedelta) -> Sequence[Outcome]:
        """Carry out the changes; one outcome for each, in their order."""
        deadline = time.monotonic() + timeout.total_seconds()
        outcomes: _Outcomes = {}
        prepared = self._prepare(changes, outcomes, deadline)
        announced = self._announce(fence, prepared, outcomes, deadline)
        written = self._write(fence, announced, outcomes, deadline)
        self._confirm(fence, written, outcomes, deadline)
        return [outcomes[change.resource] for change in changes]

    # What stands, and what is left to do.

    def _prepare(self, changes: Sequence[Change], outcomes: _Outcomes, deadline: float) -> list[_Prepared]:
        ledger = self._ledger.read([change.resource for change in changes], deadline)
        whole: list[tuple[Change, LedgerEntry | None]] = []
        for change in changes:
            entry = ledger[change.resource]
            if isinstance(entry, AutothrottleError):
                outcomes[change.resource] = _refused(change.resource, str(entry))
            else:
                whole.append((change, entry))
        standing = self._standing([change.resource for change, _ in whole if change.edits], deadline)
        prepared = []
        for change, entry in whole:
            try:
                work = _prepared(change, entry, standing.get(change.resource, {}))
            except AutothrottleError as error:
                outcomes[change.resource] = _refused(change.resource, str(error))
                continue
            if work.requests or work.change.ledger != entry:
                prepared.append(work)
            else:
                outcomes[change.resource] = Outcome(change.resource, OutcomeStatus.UNCHANGED)
        return prepared

    def _standing(self, resources: Sequence[ConfigResource], deadline: float) -> Mapping[ConfigResource, _Standing]:
        """What stands on each resource itself; brokers and topics are asked at once."""
        brokers = [r.broker_id for r in resources if r.type is ResourceType.BROKER]
        topics = [r.name for r in resources if r.type is ResourceType.TOPIC]
        timeout = timedelta(seconds=max(0.001, min(self._patience, deadline - time.monotonic())))
        with ThreadPoolExecutor(1, thread_name_prefix="topic-configs") as pool:
            asked = pool.submit(_read, self._kafka.topic_configs, topics, timeout)
            found = _read(self._kafka.broker_configs, brokers, timeout)
            return {
                **{ConfigResource.broker(broker_id): found[broker_id] for broker_id in brokers},
                **{ConfigResource.topic(topic): answer for topic, answer in asked.result().items()},
            }

    # The three stages.

    def _announce(
        self, fence: int, prepared: Sequence[_Prepared], outcomes: _Outcomes, deadline: float
    ) -> list[_Prepared]:
        """Write into the ledger what is about to be written; return the changes that may go on."""
        entries = {p.resource: intended(p.change, p.ledger, fence) for p in prepared if p.requests}
        changed = {p.resource: entries[p.resource] for p in prepared if p.requests and entries[p.resource] != p.ledger}
        done = self._ledger.write(fence, changed, deadline) if changed else {}
        refused = {r: o for r, o in done.items() if o.status is OutcomeStatus.REFUSED}
        outcomes.update(refused)
        return [p for p in prepared if p.resource not in refused]

    def _write(
        self, fence: int, prepared: Sequence[_Prepared], outcomes: _Outcomes, deadline: float
    ) -> list[_Prepared]:
        """Write to Kafka, rates first and then lists; return the changes that are done."""
        rates = [p for p in prepared if p.requests and p.resource.type is ResourceType.BROKER]
        lists = [p for p in prepared if p.requests and p.resource.type is ResourceType.TOPIC]
        failures: dict[ConfigResource, str] = {}
        with ThreadPoolExecutor(max(1, min(_MAX_THREADS, len(rates))), thread_name_prefix="rates") as pool:
            running = {p.resource: pool.submit(self._write_rates, fence, p, deadline) for p in rates}
            wait(running.values(), timeout=self._patience)
            failures |= self._write_lists(fence, lists, deadline)
            failures |= _failures(running)
        outcomes.update((r, _refused(r, reason)) for r, reason in failures.items())
        return [p for p in prepared if p.resource not in failures]

    def _write_rates(self, fence: int, prepared: _Prepared, deadline: float) -> None:
        broker_id, (edits,) = prepared.resource.broker_id, prepared.requests
        until = self._fence.passed(fence, deadline, _TOO_LATE)
        try:
            if prepared.unreachable is None:
                self._kafka.alter_broker_configs(broker_id, edits, until=until)
            else:
                self._kafka.alter_broker_configs_through_controller(broker_id, edits, until=until)
        except Unavailable as error:
            tried = f"{prepared.unreachable}; through a controller: {error}" if prepared.unreachable else error
            raise Unavailable(_unreachable(broker_id, tried)) from error
        if prepared.unreachable is None and self._unreported(
            self._kafka.broker_configs, {broker_id: prepared}, deadline
        ):
            raise Unavailable(_NOT_REPORTED)

    def _write_lists(self, fence: int, prepared: Sequence[_Prepared], deadline: float) -> dict[ConfigResource, str]:
        """Send the requests of the topics, as many topics in one as it takes; return why some are not done."""
        failures: dict[ConfigResource, str] = {}
        for batch in _batches(prepared):
            for step in zip_longest(*([(p, r) for r in p.requests] for p in batch)):
                edits = {p.resource.name: r for p, r in filter(None, step) if p.resource not in failures}
                failures |= self._write_topics(fence, edits, deadline) if edits else {}
        sent = {p.resource.name: p for p in prepared if p.resource not in failures}
        unreported = self._unreported(self._kafka.topic_configs, sent, deadline)
        return failures | {ConfigResource.topic(topic): _NOT_REPORTED for topic in unreported}

    def _write_topics(
        self, fence: int, edits: Mapping[str, Sequence[ConfigEdit]], deadline: float
    ) -> dict[ConfigResource, str]:
        try:
            refused = self._kafka.alter_topic_configs(edits, until=self._fence.passed(fence, deadline, _TOO_LATE))
        except NotLeader:
            raise
        except AutothrottleError as error:
            return {ConfigResource.topic(topic): str(error) for topic in edits}
        return {ConfigResource.topic(topic): str(error) for topic, error in refused.items()}

    def _unreported(self, ask: Callable[..., Any], sent: Mapping[Any, _Prepared], deadline: float) -> Collection[Any]:
        """Wait until Kafka reports what was written; return the brokers or topics for which it does not."""
        deadline = min(deadline, time.monotonic() + self._fence.longest_write)
        waiting = list(sent)
        while waiting and (left := deadline - time.monotonic()) > 0:
            found = _read(ask, waiting, timedelta(seconds=left))
            waiting = [name for name in waiting if not sent[name].is_reported(found[name])]
            if waiting:
                time.sleep(_PAUSE_SECONDS)
        return waiting

    def _confirm(self, fence: int, written: Sequence[_Prepared], outcomes: _Outcomes, deadline: float) -> None:
        """Write into the ledger that it was written."""
        entries = {p.resource: p.change.ledger for p in written}
        try:
            done = self._ledger.write(fence, entries, deadline) if entries else {}
        except Unavailable as error:
            done = {p.resource: _refused(p.resource, str(error)) for p in written}
        for p in written:
            outcome = done[p.resource]
            if outcome.status is OutcomeStatus.REFUSED:
                said = "it was written but not confirmed in the ledger, which the next cycle does"
                outcomes[p.resource] = _refused(p.resource, f"{said}: {outcome.reason}")
            else:
                outcomes[p.resource] = Outcome(p.resource, OutcomeStatus.APPLIED)


def _prepared(change: Change, ledger: LedgerEntry | None, standing: _Standing) -> _Prepared:
    """What has to be sent for a change.

    Raises:
        Conflict: when something else stands than was expected.
        Invalid: when Kafka would not take a value.
        Unavailable: when it cannot be read what stands, and no controller could help.
    """
    topic = change.resource.type is ResourceType.TOPIC
    if isinstance(standing, Missing) and topic and change.ledger is None:
        # A topic that is gone has taken its throttles along, and there is nothing to put back.
        return _Prepared(Change(change.resource, (), None), ledger)
    if isinstance(standing, Unavailable) and not topic:
        if change.ledger is not None:
            raise Unavailable(_unreachable(change.resource.broker_id, standing))
        # Only the ledger knows what stands; whoever decided has looked there.
        as_decided = {edit.key: edit.expected for edit in change.edits if edit.expected is not None}
        return _with_requests(change, ledger, as_decided, standing)
    if isinstance(standing, AutothrottleError):
        raise standing
    return _with_requests(change, ledger, standing)


def _with_requests(
    change: Change, ledger: LedgerEntry | None, standing: Mapping[str, str], unreachable: Unavailable | None = None
) -> _Prepared:
    known, edits, steps = dict(change.ledger.keys if change.ledger else {}), [], []
    unknown = {name for name, key in (ledger.keys if ledger else {}).items() if key.intent is not None}
    for edit in change.edits:
        found, ours = standing.get(edit.key), known.get(edit.key)
        if found not in (edit.expected, edit.value):
            raise Conflict(f"{edit.key} is {found!r} and was {edit.expected!r} when this was decided")
        if found == edit.value and (edit.writes or edit.key not in unknown):
            continue
        sent, value = operations(replace(edit, expected=found), restores=ours is None)
        edits.append(Edit(edit.key, found, value))
        steps.append(sent)
        if ours:
            known[edit.key] = replace(ours, written=value)
    entry = replace(change.ledger, keys=known) if change.ledger else None
    requests = tuple(tuple(filter(None, step)) for step in zip_longest(*steps))
    return _Prepared(Change(change.resource, tuple(edits), entry), ledger, requests, unreachable)


def _read(ask: Callable[..., Any], names: Sequence[Any], timeout: timedelta) -> Mapping[Any, _Standing]:
    """Ask for the throttles of brokers or topics; an error of the whole question is an error of each."""
    if not names:
        return {}
    try:
        answers = ask(names, timeout=timeout)
    except AutothrottleError as error:
        return dict.fromkeys(names, error)
    own: Mapping[Any, _Standing] = {
        name: {key: value.standing for key, value in values.items() if value.standing is not None}
        for name, values in answers.values.items()
    }
    return {name: own[name] if name in own else answers.failures[name] for name in names}


def _failures(running: Mapping[ConfigResource, Future[None]]) -> dict[ConfigResource, str]:
    """Wait for all writes; return why some are not done.

    Raises:
        NotLeader: when one found that the term is over.
    """
    errors = {resource: future.exception() for resource, future in running.items()}
    for error in errors.values():
        if error is not None and (isinstance(error, NotLeader) or not isinstance(error, AutothrottleError)):
            raise error
    return {resource: str(error) for resource, error in errors.items() if error is not None}


def _batches(prepared: Sequence[_Prepared]) -> Iterator[list[_Prepared]]:
    batch: list[_Prepared] = []
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
    return f"broker {broker_id} is unreachable and is tried again next cycle: {reason}"
