"""Snapshots of a Kafka cluster by its admin API: every one is read live, and a poll tells what happens between them.

What moves is the controller's own list; leaders and ISR come from metadata; a throttle stands only where it is set on
that very broker or topic. What is ours is read from our ledger. A broker that does not answer is named, and the others
go on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol

from autothrottle.adapters.deadlines import time_left
from autothrottle.adapters.kafka_admin.answers import Answers, ConfigValue
from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.edits import Edits, Needed, edits, needed_lists, needed_rates
from autothrottle.adapters.kafka_admin.moves import Moves, read_moves
from autothrottle.adapters.news import Item, Look, News
from autothrottle.adapters.progress import ProgressReader
from autothrottle.adapters.subscriptions import Subscriptions
from autothrottle.adapters.zookeeper.ledger_reader import LedgerCopy
from autothrottle.core.configs import REPLICAS_KEYS, ConfigResource, ResourceType
from autothrottle.core.errors import AutothrottleError, Incomplete, Invalid, Missing, Unavailable
from autothrottle.core.topology import Problem, Snapshot, TopicPartition, participants
from autothrottle.ports.cluster import SnapshotEvent, Watch

log = logging.getLogger(__name__)

_BROKER_PATIENCE = timedelta(seconds=3)
"""A broker that takes longer to describe its rates is unreachable in this snapshot."""

_POLL_TIMEOUT = timedelta(seconds=5)

_REST = 10
"""The poll rests so many times as long as it worked: at most a tenth of anybody's time is spent on it."""

_LAG_SECONDS = (0.05, 0.1, 0.2)
"""The pauses in which a broker hears of a config; milliseconds are usual."""

_SECOND_LOOK_SECONDS = 0.2
"""After what looks as if somebody had edited our throttles."""

_CLOCK_SKEW_MS = 60_000
"""So far the clock of another replica of discovery may be ahead."""

_THREADS = 8
"""Two snapshots at once, of four calls each."""


_Standing = dict[ConfigResource, dict[str, str]]
"""Resource -> the throttle keys set there, by who was asked and answered."""


@dataclass(frozen=True, slots=True)
class _Brokers:
    """What the brokers said of themselves."""

    registered: frozenset[int]
    configs: Answers[int, Mapping[str, ConfigValue]]


@dataclass(slots=True)
class _Watched:
    """What the poll makes of throttles that keep a move slow."""

    told: Edits = field(default_factory=dict)
    """What somebody did to them and was told; it stands yet."""
    suspected: Edits = field(default_factory=dict)
    """What was seen once: the broker that was asked may lag behind, or we are in the middle of a write."""

    def confirmed(self, found: Edits) -> frozenset[ConfigResource]:
        """Take over what was found; return whose throttles were found edited twice now and were not told yet."""
        fresh = found.items() - self.told.items()
        twice = fresh & self.suspected.items()
        self.told = dict(found.items() - fresh | twice)
        self.suspected = dict(fresh - twice)
        return frozenset(resource for (resource, _), _ in twice)


@dataclass(slots=True)
class _Poll:
    """What the poll remembers from look to look."""

    moves: Moves = field(default_factory=Moves)
    looked: datetime | None = None
    """When the last look began, UTC; None: there was none."""
    error: str = ""
    lists: _Watched = field(default_factory=_Watched)
    rates: _Watched = field(default_factory=_Watched)
    silent: frozenset[int] = frozenset()
    """Registered brokers that hold a role and did not tell their rates."""
    rates_look: Future[None] | None = None
    rates_due: float = 0.0


class LedgerSource(Protocol):
    """Where our ledger is; a `LedgerReader`."""

    def read(self, timeout: timedelta) -> LedgerCopy:
        """Return the ledger with everything that was written before the call, or raise Unavailable."""
        ...


class AdminSnapshots:
    """The cluster as Kafka's admin API shows it; a `SnapshotSource`. Thread-safe.

    While something moves only topics that move, or that the ledger knows, are looked at for throttles; while nothing
    does, all are.
    """

    def __init__(
        self,
        kafka: KafkaAdmin,
        ledger: LedgerSource,
        poll: timedelta = timedelta(seconds=1),
        reaches_controllers: bool = False,
        progress: ProgressReader | None = None,
    ) -> None:
        """Begin to poll.

        Args:
            kafka: stays open when this is closed.
            ledger: stays open when this is closed.
            poll: how often the cluster is asked what moves, > 0.
            reaches_controllers: whether the rates of brokers that are down can be written through the controllers.
            progress: reads log sizes, closed by whoever made it; None: how far moves have come is unknown.
        """
        self._kafka, self._ledger, self._interval = kafka, ledger, poll.total_seconds()
        self._reaches_controllers, self._progress = reaches_controllers, progress
        self._watchers = Subscriptions[SnapshotEvent]()
        self._lock = threading.Lock()
        self._version = 0
        self._news = News()
        self._brokers: frozenset[int] = frozenset()
        self._awaited: frozenset[int] = frozenset()
        self._poll = _Poll()
        self._closed = threading.Event()
        self._calls = ThreadPoolExecutor(_THREADS, thread_name_prefix="admin-snapshots")
        self._growth_watch = progress.watch_growth(self._clients_brought_more) if progress else None
        self._thread = threading.Thread(target=self._follow, name="admin-snapshots-poll", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop following the cluster."""
        if self._growth_watch:
            self._growth_watch.close()
        self._closed.set()
        self._thread.join()
        self._calls.shutdown()

    # What the port asks for.

    def fetch_snapshot(
        self,
        *,
        min_version: int = 0,
        replicas_of: Collection[int] = (),
        partitions: Collection[TopicPartition] = (),
        catching_up: Collection[int] = (),
        timeout: timedelta,
        may_presume: bool = False,
    ) -> Snapshot:
        """Return the cluster as it is now."""
        version = self._next_version(min_version)
        try:
            snapshot = self._read(version, frozenset(replicas_of), partitions, timeout)
        except Invalid as error:
            raise Incomplete(f"Kafka refuses to tell what moves: {error}") from error
        if self._progress and catching_up:
            self._progress.follow_catch_ups(catching_up, snapshot.assignments)
        return snapshot

    def watch_snapshots(self, notify: Callable[[SnapshotEvent], None]) -> Watch:
        """Call `notify` for every event from now on."""
        return self._watchers.add(notify)

    # Reading.

    def _next_version(self, least: int) -> int:
        """A version for what is read from now on: newer than every event so far, in any replica of discovery."""
        now = time.time_ns() // 1_000_000
        if least > now + _CLOCK_SKEW_MS:
            ahead = (least - now) // 1000
            raise Unavailable(f"version {least} is {ahead} s ahead of this machine's clock; set the clocks right")
        with self._lock:
            self._version = max(now, least, self._version + 1)
            return self._version

    def _read(
        self, version: int, replicas_of: frozenset[int], partitions: Collection[TopicPartition], timeout: timedelta
    ) -> Snapshot:
        deadline = time.monotonic() + timeout.total_seconds()
        known, topics = self._poll.moves.reassignments, {topic for topic, _ in partitions}
        # All at once; the ledger may be read before or after the rest, since a write of ours stands there first as an
        # intent and last as written, and what stands is one of the two.
        read_ledger = self._calls.submit(self._ledger.read, timeout)
        read_brokers = self._calls.submit(self._read_brokers, deadline)
        read_defaults = self._calls.submit(self._kafka.default_broker_configs, timeout=timeout)
        moves = read_moves(self._kafka, timeout, known, None if replicas_of else topics)
        ledger = read_ledger.result()
        held = moves.replicas_on(replicas_of)
        held_topics = {topic for topics_there in held.values() for topic in topics_there}
        lists = self._settled(self._read_lists(moves, ledger, held_topics, deadline), ledger, deadline)
        brokers = read_brokers.result()
        roles = participants(Snapshot(version, reassignments=tuple(moves.reassignments.values())))
        involved = roles.keys() | _broker_ids(ledger.entries) | replicas_of
        self._note(Look(brokers.registered, moves.reassignments), involved)
        unreadable = _unreadable(brokers, involved, lists)
        standing = _standing(brokers.configs.values, ConfigResource.broker)
        standing |= _standing(lists.values, ConfigResource.topic)
        if self._reaches_controllers:
            standing |= _last_known(ledger, brokers.registered, unreadable)
        return Snapshot(
            version=version,
            brokers=brokers.registered,
            reassignments=tuple(moves.reassignments.values()),
            throttles={resource: keys for resource, keys in standing.items() if keys},
            default_throttles=read_defaults.result(),
            ledger=ledger.entries,
            replicas=held,
            unreadable_configs={**unreadable, **ledger.unreadable},
            problems=moves.problems,
            assignments=moves.assignments(partitions),
            progress=self._progress.progress if self._progress else None,
        )

    def _read_brokers(self, deadline: float) -> _Brokers:
        registered = self._kafka.brokers(timeout=time_left(deadline))
        patience = min(time_left(deadline), _BROKER_PATIENCE)
        return _Brokers(registered, self._kafka.broker_configs(registered, timeout=patience))

    def _read_lists(
        self, moves: Moves, ledger: LedgerCopy, held_topics: set[str], deadline: float
    ) -> Answers[str, Mapping[str, ConfigValue]]:
        """The lists that stand: of all topics while nothing moves, since then somebody's left-overs are reported."""
        if not moves.reassignments:
            return self._kafka.topic_configs(None, timeout=time_left(deadline))
        ours = {resource.name for resource in ledger.entries if resource.type is ResourceType.TOPIC}
        wanted = moves.reassignments.keys() | ours | held_topics
        return self._kafka.topic_configs(wanted, timeout=time_left(deadline))

    def _settled(
        self, lists: Answers[str, Mapping[str, ConfigValue]], ledger: LedgerCopy, deadline: float
    ) -> Answers[str, Mapping[str, ConfigValue]]:
        """Look again at lists of ours that seem to be edited: the broker that was asked may not have heard of them."""
        ours = {resource: REPLICAS_KEYS for resource in ledger.entries if resource.type is ResourceType.TOPIC}
        for pause in _LAG_SECONDS:
            odd = {r.name for r, _ in edits(ours, _standing(lists.values, ConfigResource.topic), ledger.entries)}
            if not odd or time.monotonic() + pause > deadline:
                break
            time.sleep(pause)
            again = self._kafka.topic_configs(odd, timeout=time_left(deadline))
            lists = Answers({**lists.values, **again.values}, {**lists.failures, **again.failures})
        return lists

    def _note(self, look: Look, involved: Collection[int]) -> None:
        with self._lock:
            self._brokers = look.brokers
            self._news.handed_out(look)
            self._awaited = frozenset(involved) - look.brokers

    # Following the cluster.

    def _follow(self) -> None:
        pause = 0.0
        while not self._closed.wait(pause):
            began = time.monotonic()
            try:
                self._look()
            except AutothrottleError as error:
                self._complain(str(error))
                pause = self._interval
                continue
            except Exception:  # a bug must not end the poll: nothing else tells that something moves
                log.exception("the poll of the cluster failed unexpectedly")
                pause = self._interval
                continue
            self._complain("")
            took = time.monotonic() - began
            again = self._poll.lists.suspected or self._poll.rates.suspected
            pause = max(_SECOND_LOOK_SECONDS if again else self._interval - took, _REST * took)

    def _complain(self, error: str) -> None:
        if error and not self._poll.error:
            log.warning("the cluster cannot be read: %s", error)
        self._poll.error = error

    def _look(self) -> None:
        """Ask what moves, and tell what is new; one request while nothing moves and no broker is waited for."""
        poll, began = self._poll, datetime.now(UTC)
        poll.moves = read_moves(self._kafka, _POLL_TIMEOUT, poll.moves.reassignments)
        looks_at_brokers = poll.moves.reassignments or self._awaited or not self._brokers
        registered = self._kafka.brokers(timeout=_POLL_TIMEOUT) if looks_at_brokers else None
        with self._lock:
            # Those that were not looked at are taken as the last snapshot has them.
            self._brokers = self._brokers if registered is None else registered
            self._awaited -= self._brokers
            news = self._news.since_last_look(Look(self._brokers, poll.moves.reassignments))
        self._publish(news)
        if self._progress:
            self._progress.follow(tuple(poll.moves.reassignments.values()), self._brokers, poll.looked)
        poll.looked = began
        if poll.moves.reassignments:
            self._look_at_lists()
            self._look_at_rates_beside()
        else:
            poll.lists, poll.rates, poll.silent = _Watched(), _Watched(), frozenset()

    def _publish(self, news: Iterable[Item]) -> None:
        for reason, urgent in news:
            self._watchers.publish(SnapshotEvent(self._next_version(0), reason, urgent))

    def _clients_brought_more(self, reason: str) -> None:
        self._publish([(reason, False)])

    # Whether somebody edits what keeps a move throttled.

    def _look_at_lists(self) -> None:
        needed = needed_lists(self._poll.moves.reassignments.values())
        answers = self._kafka.topic_configs([resource.name for resource in needed], timeout=_POLL_TIMEOUT)
        self._tell_edits(needed, _standing(answers.values, ConfigResource.topic), self._poll.lists)

    def _look_at_rates_beside(self) -> None:
        """Look at the brokers' rates in another thread: one of them may be dying, and the poll does not wait for it."""
        poll = self._poll
        if poll.rates_look is not None and not poll.rates_look.done():
            return
        if time.monotonic() >= poll.rates_due:
            poll.rates_look = self._calls.submit(self._look_at_rates)

    def _look_at_rates(self) -> None:
        poll, began = self._poll, time.monotonic()
        needed = needed_rates(poll.moves.reassignments.values())
        asked = [resource.broker_id for resource in needed if resource.broker_id in self._brokers]
        try:
            answers = self._kafka.broker_configs(asked, timeout=_BROKER_PATIENCE)
            self._tell_who_is_back(frozenset(answers.failures))
            self._tell_edits(needed, _standing(answers.values, ConfigResource.broker), poll.rates)
        except AutothrottleError as error:
            log.debug("rates cannot be compared: %s", error)
        now = time.monotonic()
        poll.rates_due = now + _REST * (now - began)

    def _tell_who_is_back(self, silent: frozenset[int]) -> None:
        """Tell of brokers that are registered all the time and answer again."""
        poll = self._poll
        back, poll.silent = poll.silent - silent, silent
        self._publish((f"broker {b} answers again", False) for b in sorted(back & self._brokers))

    def _tell_edits(self, needed: Needed, standing: _Standing, watched: _Watched) -> None:
        found = edits(needed, standing, self._ledger.read(_POLL_TIMEOUT).entries)
        edited = watched.confirmed(found)
        self._publish((f"throttles of {resource} were edited by somebody else", True) for resource in sorted(edited))


def _standing(
    answers: Mapping[int, Mapping[str, ConfigValue]] | Mapping[str, Mapping[str, ConfigValue]],
    resource: Callable[..., ConfigResource],
) -> _Standing:
    """Who answered -> the throttle keys that are set on that very broker or topic."""
    return {
        resource(who): {key: v.standing for key, v in values.items() if v.standing is not None}
        for who, values in answers.items()
    }


def _broker_ids(resources: Iterable[ConfigResource]) -> frozenset[int]:
    return frozenset(r.broker_id for r in resources if r.type is ResourceType.BROKER)


def _unreadable(
    brokers: _Brokers, involved: Collection[int], lists: Answers[str, Mapping[str, ConfigValue]]
) -> dict[ConfigResource, Problem]:
    found = {
        ConfigResource.broker(b): f"its rates cannot be read: {error}" for b, error in brokers.configs.failures.items()
    }
    found |= {
        ConfigResource.broker(b): f"broker {b} is unreachable: it is not registered; it is tried again when it is back"
        for b in set(involved) - brokers.registered
    }
    found |= {
        ConfigResource.topic(topic): f"the lists of {topic} cannot be read: {error}"
        for topic, error in lists.failures.items()
        if not isinstance(error, Missing)
    }
    return {resource: Problem(resource.path, reason) for resource, reason in sorted(found.items())}


def _last_known(
    ledger: LedgerCopy, registered: Collection[int], unreadable: dict[ConfigResource, Problem]
) -> _Standing:
    """What we wrote to brokers that are down, as what stands there: the controller can take it back meanwhile."""
    found = {}
    for resource, entry in ledger.entries.items():
        down = resource in unreadable and resource.type is ResourceType.BROKER and resource.broker_id not in registered
        if down and resource not in ledger.unreadable:
            written = {name: key.written if key.intent is None else key.intent for name, key in entry.keys.items()}
            found[resource] = {name: value for name, value in written.items() if value is not None}
            del unreadable[resource]
    return found
