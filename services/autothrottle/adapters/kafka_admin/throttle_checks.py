"""Notices edits of throttles by other parties within seconds: compares Kafka with the ledger while something moves.

Lists are read once a second, with one request. Each broker knows only its own rates, so rates take one request for each
broker: once in 1.5 s, and at most 100 a second in all. Nothing is read while nothing moves.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.values import Configs
from autothrottle.core.cluster.configs import ConfigResource, LedgerEntry
from autothrottle.core.cluster.snapshot import Difference, TopicReassignment
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.throttles.foreign_edits import (
    RECHECK,
    ForeignEdits,
    Needed,
    NeededThrottles,
    Throttles,
    edited_reason,
    edits,
)
from autothrottle.ports.state_store import LedgerReader

log = logging.getLogger(__name__)

K = TypeVar("K")

LISTS_TICKS = 5
"""Least time between two readings of the lists: 1 s."""

ROUND_TICKS = 7.5
"""Least time between two readings of a broker's rates: 1.5 s. With the second reading that confirms an edit, it is
noticed within 2 s."""

BROKERS_AT_ONCE = 20
"""Brokers that are asked in a tick: 100 in a second, so that each of 1,000 is asked once in 10 s."""

TOPICS_AT_ONCE = 1_000
"""Topics in one request: with more topics, each request asks for others."""

_SILENT_TICKS = 10
"""Least time between two requests to a broker that did not answer: 2 s."""

_SILENT_AT_ONCE = 2
"""Brokers that did not answer and are asked in a tick, in place of others; more if there are fewer others."""

_TIMEOUT = timedelta(seconds=5)

BROKER_PATIENCE = timedelta(seconds=3)
"""A broker that takes longer to describe its rates does not answer."""


@dataclass(slots=True)
class Rounds:
    """Chooses which of many resources to read next: each one once in a round, the one that waits longest first."""

    at_once: int
    """Maximum number of resources in one reading."""
    tick: float
    """Least time between two readings, seconds."""
    sent_at: float = -math.inf
    """When the last reading was sent, on the monotonic clock."""
    _last_requests: dict[ConfigResource, float] = field(default_factory=dict)

    def due(
        self, resources: Collection[ConfigResource], least: float, now: float, suspects: Collection[ConfigResource] = ()
    ) -> Sequence[ConfigResource]:
        """Return the resources to read now, and count them as read.

        Args:
            resources: all that are read again and again.
            least: time between two readings of a resource, seconds; it is longer if there are many.
            now: monotonic time, seconds; calls are at least a tick apart.
            suspects: those of them that are due at once.
        """
        self._last_requests = {resource: at for resource, at in self._last_requests.items() if resource in resources}
        round_seconds = max(least, len(resources) / self.at_once * self.tick)
        # What becomes due before the next call can come is due now.
        since = now - round_seconds + self.tick / 2
        waiting = [r for r in resources if r in suspects or self._last_requests.get(r, since) <= since]
        waiting.sort(key=lambda r: (r not in suspects, self._last_requests.get(r, -math.inf)))
        chosen = waiting[: self.at_once]
        self._last_requests |= dict.fromkeys(chosen, now)
        return chosen


class ThrottleChecks:
    """Compares throttles in the background, from the first reassignment that `follow` gets to the last. Thread-safe."""

    def __init__(
        self,
        kafka: KafkaAdmin,
        ledger: LedgerReader,
        publish: Callable[[Iterable[Difference]], None],
        tick: timedelta = RECHECK,
    ) -> None:
        """Start the threads, which wait for a reassignment.

        Args:
            kafka: stays open when this is closed.
            ledger: stays open when this is closed.
            publish: gets what happened; called from threads of this object.
            tick: least time between two readings of one kind, > 0.
        """
        self._kafka, self._ledger, self._publish, self._tick = kafka, ledger, publish, tick.total_seconds()
        self._condition = threading.Condition()
        self._reassignments: tuple[TopicReassignment, ...] = ()
        self._brokers: frozenset[int] = frozenset()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._lists, self._rates, self._needed = ForeignEdits(), ForeignEdits(), NeededThrottles()
        self._silent: frozenset[int] = frozenset()
        """Registered brokers that have a role and did not report their rates."""
        self._entries: Mapping[ConfigResource, LedgerEntry] = {}
        """The ledger as last read. It is read again before an edit counts."""
        self._of_lists, self._of_rates, self._of_silent = (
            Rounds(at_once, self._tick) for at_once in (TOPICS_AT_ONCE, BROKERS_AT_ONCE, _SILENT_AT_ONCE)
        )
        # A thread for each kind, so that none waits for an answer that another one needs.
        self._threads = [
            threading.Thread(target=self._run, args=[read], name=f"throttle-checks-{kind}", daemon=True)
            for kind, read in (
                ("lists", self._read_lists),
                ("rates", self._read_rates),
                ("silent", self._read_silent_brokers),
            )
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the threads. Idempotent."""
        self._closing.set()
        with self._condition:
            self._condition.notify_all()
        for thread in self._threads:
            thread.join()

    def follow(self, reassignments: Collection[TopicReassignment], brokers: frozenset[int]) -> None:
        """Check the throttles of these reassignments from now on; empty: nothing is checked.

        Args:
            reassignments: those that run.
            brokers: ids of the registered brokers.
        """
        with self._condition:
            # An equal object has its derived values already.
            counted = {r.topic: r for r in self._reassignments} if reassignments else {}
            self._reassignments = tuple(counted[r.topic] if counted.get(r.topic) == r else r for r in reassignments)
            self._brokers = brokers
            self._condition.notify_all()
        if not reassignments:
            with self._lock:
                self._lists, self._rates, self._silent = ForeignEdits(), ForeignEdits(), frozenset()
                self._needed, self._entries = NeededThrottles(), {}

    def _run(self, read: Callable[[NeededThrottles, float], float]) -> None:
        """Read again and again while something moves.

        Args:
            read: reads what is due at this monotonic time, and returns how long to rest, seconds.
        """
        while self._is_needed():
            began, rest = time.monotonic(), 0.0
            try:
                rest = read(self._needed_throttles(), began)
            except AutothrottleError as error:
                log.debug("Throttles cannot be compared: %s", error)
            except Exception:  # a bug must not end the thread: nothing else notices edits between two scheduled cycles
                log.exception("Comparing throttles failed unexpectedly")
            self._closing.wait(max(rest, began + self._tick - time.monotonic()))

    def _is_needed(self) -> bool:
        """Wait for reassignments, and keep none of them meanwhile; return False when this is closed."""
        with self._condition:
            self._condition.wait_for(lambda: self._closing.is_set() or self._reassignments)
            return not self._closing.is_set()

    def _needed_throttles(self) -> NeededThrottles:
        with self._lock:
            self._needed = self._needed.of(self._reassignments)
            return self._needed

    def _read_lists(self, needed: NeededThrottles, now: float) -> float:
        suspects = {resource for resource, _ in self._lists.suspected}
        due = self._of_lists.due(needed.lists, LISTS_TICKS * self._tick, now, suspects)
        if not due:
            return 0.0
        answers = self._kafka.topic_configs([resource.name for resource in due], timeout=_TIMEOUT)
        took = time.monotonic() - now
        self._entries = self._ledger.read(_TIMEOUT).entries
        lists = {resource: needed.lists[resource] for resource in due}
        self._report_edits(lists, current_throttles(answers.values, ConfigResource.topic), self._lists)
        # The lists of 100,000 partitions take long to read. A reading that confirms an edit follows at once.
        return 0.0 if self._lists.suspected else took

    def _read_rates(self, needed: NeededThrottles, now: float) -> float:
        silent = self._silent_brokers(needed)
        rates = {r: keys for r, keys in needed.rates.items() if r.broker_id in self._brokers - silent}
        self._of_rates.at_once = BROKERS_AT_ONCE - (_SILENT_AT_ONCE if silent else 0)
        suspects = {resource for resource, _ in self._rates.suspected}
        due = self._of_rates.due(rates, ROUND_TICKS * self._tick, now, suspects)
        return self._check_rates(rates, due, self._of_rates)

    def _read_silent_brokers(self, needed: NeededThrottles, now: float) -> float:
        silent = self._silent_brokers(needed)
        rates = {r: keys for r, keys in needed.rates.items() if r.broker_id in self._brokers & silent}
        others = len(needed.rates) - len(rates)
        self._of_silent.at_once = max(_SILENT_AT_ONCE, BROKERS_AT_ONCE - others)
        due = self._of_silent.due(rates, _SILENT_TICKS * self._tick, now)
        return self._check_rates(rates, due, self._of_silent)

    def _silent_brokers(self, needed: NeededThrottles) -> frozenset[int]:
        with self._lock:
            self._silent &= {resource.broker_id for resource in needed.rates}
            return self._silent

    def _check_rates(self, rates: Needed, due: Sequence[ConfigResource], rounds: Rounds) -> float:
        """Read the rates that are due, a tick after the last ones, however long it took to choose them."""
        if not due:
            return 0.0
        self._closing.wait(max(0.0, rounds.sent_at + self._tick - time.monotonic()))
        rounds.sent_at = time.monotonic()
        answers = self._kafka.broker_configs([r.broker_id for r in due], timeout=BROKER_PATIENCE)
        with self._lock:
            back = self._silent & answers.values.keys()
            self._silent = (self._silent | answers.failures.keys()) - back
        self._publish([(f"broker {b} answers again", False) for b in sorted(back & self._brokers)])
        current = current_throttles(answers.values, ConfigResource.broker)
        self._report_edits({resource: rates[resource] for resource in due}, current, self._rates)
        return 0.0

    def _report_edits(self, needed: Needed, current: Throttles, foreign_edits: ForeignEdits) -> None:
        current_edits = edits(needed, current, self._entries)
        if current_edits:
            self._entries = self._ledger.read(_TIMEOUT).entries
            current_edits = edits(needed, current, self._entries)
        with self._lock:
            edited = foreign_edits.confirmed(current_edits, needed.keys())
        self._publish([(edited_reason(r), True) for r in sorted(edited, key=lambda resource: resource.order)])


def current_throttles(answers: Mapping[K, Configs], resource: Callable[[K], ConfigResource]) -> Throttles:
    """Return resource -> throttle configs set on it, for the brokers or topics in the answers."""
    return {
        resource(name): {key: v.current for key, v in values.items() if v.current is not None}
        for name, values in answers.items()
    }
