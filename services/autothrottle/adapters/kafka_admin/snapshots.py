"""Snapshots of a Kafka cluster through its admin API: each one is read live, and a poll detects changes in between.

Reassignments come from the controller's list, leaders and ISR from metadata. A throttle counts only if it is set on the
broker or topic itself. Our own throttles are known from the ledger. A broker that does not answer is reported, and the
snapshot goes on without it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice

from autothrottle.adapters.concurrency.subscriptions import Subscriptions, time_left
from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.reassignments import ReassignmentReading, read_reassignments
from autothrottle.adapters.kafka_admin.throttle_checks import (
    BROKER_PATIENCE,
    ThrottleChecks,
    current_throttles,
)
from autothrottle.adapters.kafka_admin.values import Answers, Configs
from autothrottle.adapters.kafka_common.progress_reader import ProgressReader
from autothrottle.core.cluster.configs import REPLICAS_KEYS, ConfigResource, ResourceType
from autothrottle.core.cluster.snapshot import (
    ANY_SNAPSHOT,
    ClusterView,
    Difference,
    Problem,
    Snapshot,
    SnapshotDifferences,
    SnapshotRequest,
)
from autothrottle.core.errors import AutothrottleError, Incomplete, Invalid, Missing, Unavailable
from autothrottle.core.retries import LISTS
from autothrottle.core.throttles.foreign_edits import RECHECK, Throttles, edits
from autothrottle.ports.kafka import SnapshotEvent, Watch
from autothrottle.ports.state_store import LedgerCopy, LedgerReader

log = logging.getLogger(__name__)

_POLL_TIMEOUT = timedelta(seconds=5)

_REST_FACTOR = 10
"""The poll rests this many times as long as it works, so that it uses at most a tenth of a broker's time and ours."""

_POLLS_COMPARED = 5
"""The shortest of so many polls counts as work. While a broker dies, the others wait for it."""

_LIST_READS = 3
"""Further reads of lists, while a broker may not know a new config."""

_CLOCK_SKEW_MS = 60_000
"""Maximum time by which the clock of another discovery replica may be ahead."""

_THREADS = 8
"""Enough for two concurrent snapshots of four calls each."""

_RETRIED = (
    "retried when it is back. Fix: start it, or on Kafka 4 give kafka-bootstrap-controllers, through which its "
    "throttles are written while it is down"
)


@dataclass(slots=True)
class _Poll:
    """State of the poll between two runs."""

    reading: ReassignmentReading = field(default_factory=ReassignmentReading)
    last_poll: datetime | None = None
    """Start of the last poll, UTC; None: there was none."""
    error: str = ""
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_POLLS_COMPARED))
    """Durations of the last polls that succeeded."""


class AdminSnapshots:
    """The cluster according to Kafka's admin API; a `FollowedCluster`. Thread-safe.

    During reassignments, throttles are read only of topics that are being reassigned or are in the ledger. Otherwise
    they are read of all topics.
    """

    def __init__(
        self,
        kafka: KafkaAdmin,
        ledger: LedgerReader,
        poll: timedelta = timedelta(seconds=1),
        progress: ProgressReader | None = None,
        check_tick: timedelta = RECHECK,
    ) -> None:
        """Start to poll.

        Args:
            kafka: stays open when this is closed.
            ledger: stays open when this is closed.
            poll: interval of the poll for reassignments, > 0.
            progress: reads log sizes; its creator closes it. None: snapshots have no progress.
            check_tick: see `ThrottleChecks`.
        """
        self._kafka, self._ledger, self._interval = kafka, ledger, poll.total_seconds()
        self._progress = progress
        self._watchers = Subscriptions[SnapshotEvent]()
        self._lock = threading.Lock()
        self._version = 0
        self._differences = SnapshotDifferences()
        self._brokers: frozenset[int] = frozenset()
        self._missing_brokers: frozenset[int] = frozenset()
        self._rates_of_others: dict[int, Mapping[str, str]] = {}
        """Broker id -> its last known rates without ours, for the time when it is down."""
        self._poll = _Poll()
        self._closed = threading.Event()
        self._calls = ThreadPoolExecutor(_THREADS, thread_name_prefix="admin-snapshots")
        self._checks = ThrottleChecks(kafka, ledger, self._publish, check_tick)
        self._growth_watch = progress.watch_growth(self._logs_grew) if progress else None
        self._thread = threading.Thread(target=self._follow, name="admin-snapshots-poll", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop following the cluster."""
        if self._growth_watch:
            self._growth_watch.close()
        self._closed.set()
        self._thread.join()
        self._checks.close()
        self._calls.shutdown()

    # The port's methods.

    def fetch_snapshot(self, request: SnapshotRequest = ANY_SNAPSHOT, *, timeout: timedelta) -> Snapshot:
        version = self._next_version(request.min_version)
        try:
            snapshot = self._read(version, request, timeout)
        except Invalid as error:
            raise Incomplete(f"Kafka refuses to list the reassignments: {error}") from error
        if self._progress and request.catching_up:
            self._progress.follow_catch_ups(request.catching_up, snapshot.assignments)
        return snapshot

    def watch_snapshots(self, notify: Callable[[SnapshotEvent], None]) -> Watch:
        return self._watchers.add(notify)

    @property
    def problem(self) -> str:
        return self._poll.error

    # Reading.

    def _next_version(self, least: int) -> int:
        """Return a version for the next read, newer than every event so far from any replica of discovery."""
        now = time.time_ns() // 1_000_000
        if least > now + _CLOCK_SKEW_MS:
            ahead = (least - now) // 1000
            raise Unavailable(f"version {least} is {ahead} s ahead of this machine's clock; synchronize the clocks")
        with self._lock:
            self._version = max(now, least, self._version + 1)
            return self._version

    def _read(self, version: int, request: SnapshotRequest, timeout: timedelta) -> Snapshot:
        deadline, replicas_of = time.monotonic() + timeout.total_seconds(), frozenset(request.replicas_of)
        last, topics = self._poll.reading.reassignments, {topic for topic, _ in request.partitions}
        # All in parallel. The ledger may be read before or after the rest, because it has each of our writes first as
        # an intent and then as written, and the current value equals one of the two.
        read_ledger = self._calls.submit(self._ledger.read, timeout)
        read_brokers = self._calls.submit(self._read_brokers, deadline)
        read_defaults = self._calls.submit(self._kafka.default_broker_configs, timeout=timeout)
        reading = read_reassignments(self._kafka, timeout, last, None if replicas_of else topics)
        ledger = read_ledger.result()
        topics_of_brokers = reading.replicas_on(replicas_of)
        held_topics = {topic for topics_there in topics_of_brokers.values() for topic in topics_there}
        lists = self._settled(self._read_lists(reading, ledger, held_topics, deadline), ledger, deadline)
        registered, rates = read_brokers.result()
        roles = Snapshot(version, reassignments=tuple(reading.reassignments.values())).participants
        ledger_brokers = {r.broker_id for r in ledger.entries if r.type is ResourceType.BROKER}
        involved = roles.keys() | ledger_brokers | replicas_of
        self._note(ClusterView(registered, reading.reassignments), involved)
        unreadable = _unreadable(rates, lists, involved - registered)
        current = {
            **current_throttles(rates.values, ConfigResource.broker),
            **current_throttles(lists.values, ConfigResource.topic),
        }
        if self._kafka.has_controllers:
            self._rates_of_others |= _rates_of_others(rates.values, ledger)
            current |= self._last_known(involved - registered, ledger)
            unreadable = {r: p for r, p in unreadable.items() if r not in current}
        return Snapshot(
            version=version,
            brokers=registered,
            reassignments=tuple(reading.reassignments.values()),
            throttles={resource: keys for resource, keys in current.items() if keys},
            default_throttles=read_defaults.result(),
            ledger=ledger.entries,
            replicas=topics_of_brokers,
            unreadable_configs={**unreadable, **ledger.unreadable},
            problems=reading.problems,
            assignments=reading.assignments(request.partitions),
            progress=self._progress.progress if self._progress else None,
        )

    def _read_brokers(self, deadline: float) -> tuple[frozenset[int], Answers[int, Configs]]:
        """Return the registered brokers, and the configs that they report."""
        registered = self._kafka.brokers(timeout=time_left(deadline))
        patience = min(time_left(deadline), BROKER_PATIENCE)
        return registered, self._kafka.broker_configs(registered, timeout=patience)

    def _read_lists(
        self, reading: ReassignmentReading, ledger: LedgerCopy, held_topics: set[str], deadline: float
    ) -> Answers[str, Configs]:
        """Read replica lists. Without reassignments, read them of all topics, to report leftovers of other parties."""
        if not reading.reassignments:
            return self._kafka.topic_configs(None, timeout=time_left(deadline))
        ledger_topics = {resource.name for resource in ledger.entries if resource.type is ResourceType.TOPIC}
        topics = reading.reassignments.keys() | ledger_topics | held_topics
        return self._kafka.topic_configs(topics, timeout=time_left(deadline))

    def _settled(self, lists: Answers[str, Configs], ledger: LedgerCopy, deadline: float) -> Answers[str, Configs]:
        """Read our lists again if they seem edited: the queried broker may not know our write yet."""
        ledger_keys = {resource: REPLICAS_KEYS for resource in ledger.entries if resource.type is ResourceType.TOPIC}
        for pause in islice(LISTS.waits(), _LIST_READS):
            odd = {
                r.name
                for r, _ in edits(ledger_keys, current_throttles(lists.values, ConfigResource.topic), ledger.entries)
            }
            if not odd or time.monotonic() + pause > deadline:
                break
            time.sleep(pause)
            again = self._kafka.topic_configs(odd, timeout=time_left(deadline))
            lists = Answers({**lists.values, **again.values}, {**lists.failures, **again.failures})
        return lists

    def _last_known(self, down: Collection[int], ledger: LedgerCopy) -> Throttles:
        """The current rates of brokers that are down, so that a controller can change them: no node describes them.

        They are our writes, and the rates of other parties when the broker was last read. A rate that was set before
        discovery started, or while the broker was down, is not known.
        """
        rates_of_brokers: dict[ConfigResource, Mapping[str, str]] = {}
        for broker_id in down:
            resource = ConfigResource.broker(broker_id)
            if resource in ledger.unreadable:
                continue
            entry = ledger.entries.get(resource)
            keys = entry.keys.items() if entry else ()
            own_rates = {name: key.written if key.intent is None else key.intent for name, key in keys}
            rates = {**self._rates_of_others.get(broker_id, {}), **own_rates}
            rates_of_brokers[resource] = {key: value for key, value in rates.items() if value is not None}
        return rates_of_brokers

    def _note(self, view: ClusterView, involved: Collection[int]) -> None:
        with self._lock:
            self._brokers = view.brokers
            self._differences.note_handed_out(view)
            self._missing_brokers = frozenset(involved) - view.brokers

    # Following the cluster.

    def _follow(self) -> None:
        pause = 0.0
        while not self._closed.wait(pause):
            began, pause, failure = time.monotonic(), self._interval, ""
            try:
                self._poll_once()
                took = time.monotonic() - began
                self._poll.seconds.append(took)
                pause = max(self._interval - took, _REST_FACTOR * min(self._poll.seconds))
            except AutothrottleError as error:
                failure = str(error)
            except Exception:  # a bug must not end the poll: nothing else detects new reassignments
                log.exception("The poll of the cluster failed unexpectedly")
                failure = self._poll.error
            if failure and not self._poll.error:
                log.warning("The cluster cannot be read: %s", failure)
            if self._poll.error and not failure:
                # A cycle that failed meanwhile is retried after an interval at most, which may be minutes away.
                self._publish([("the cluster can be read again", True)])
            self._poll.error = failure

    def _poll_once(self) -> None:
        """Poll once and report changes. Takes one request without reassignments and missing brokers."""
        poll, began = self._poll, datetime.now(UTC)
        poll.reading = read_reassignments(self._kafka, _POLL_TIMEOUT, poll.reading.reassignments)
        reads_brokers = poll.reading.reassignments or self._missing_brokers or not self._brokers
        registered = self._kafka.brokers(timeout=_POLL_TIMEOUT) if reads_brokers else None
        with self._lock:
            # Without a new read, the brokers are those of the last snapshot.
            self._brokers = self._brokers if registered is None else registered
            self._missing_brokers -= self._brokers
            differences = self._differences.since_last_view(ClusterView(self._brokers, poll.reading.reassignments))
        self._publish(differences)
        if self._progress:
            self._progress.follow(tuple(poll.reading.reassignments.values()), self._brokers, poll.last_poll)
        poll.last_poll = began
        self._checks.follow(poll.reading.reassignments.values(), self._brokers)

    def _publish(self, differences: Iterable[Difference]) -> None:
        for reason, urgent in differences:
            self._watchers.publish(SnapshotEvent(self._next_version(0), reason, urgent))

    def _logs_grew(self, reason: str) -> None:
        self._publish([(reason, False)])


def _unreadable(
    rates: Answers[int, Configs], lists: Answers[str, Configs], down: Collection[int]
) -> dict[ConfigResource, Problem]:
    reasons = {ConfigResource.broker(b): f"its rates cannot be read: {error}" for b, error in rates.failures.items()}
    reasons |= {ConfigResource.broker(b): f"broker {b} is unreachable: it is not registered; {_RETRIED}" for b in down}
    reasons |= {
        ConfigResource.topic(topic): f"the lists of {topic} cannot be read: {error}"
        for topic, error in lists.failures.items()
        if not isinstance(error, Missing)
    }
    return {resource: Problem(resource.path, reason) for resource, reason in sorted(reasons.items())}


def _rates_of_others(answers: Mapping[int, Configs], ledger: LedgerCopy) -> dict[int, Mapping[str, str]]:
    """Return broker id -> its rates as they are without ours: those before ours, where the ledger has an entry."""
    rates_of_brokers: dict[int, Mapping[str, str]] = {}
    for broker_id, values in answers.items():
        entry = ledger.entries.get(ConfigResource.broker(broker_id))
        ledger_keys = entry.keys if entry else {}
        rates = {key: ledger_keys[key].before if key in ledger_keys else value.current for key, value in values.items()}
        rates_of_brokers[broker_id] = {key: rate for key, rate in rates.items() if rate is not None}
    return rates_of_brokers
