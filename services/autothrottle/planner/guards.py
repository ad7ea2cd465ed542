"""The guard rails of a cycle: what they remember, and in which order the rules of `core.guards` hold."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta

from autothrottle.core import guards
from autothrottle.core.deadline import held_to_deadline
from autothrottle.core.fetching import ClusterSettings
from autothrottle.core.flows import Progress
from autothrottle.core.limits import Limits
from autothrottle.core.loads import Port
from autothrottle.core.plan import Plan
from autothrottle.core.schedule import Schedule, Window
from autothrottle.core.stalls import StallWatch
from autothrottle.core.topology import Snapshot, TopicPartition, TopicReassignment, participants
from autothrottle.planner.settings_reader import SettingsReader
from autothrottle.ports.fetch_settings import FetchSettingsSource
from autothrottle.ports.metrics import Event

log = logging.getLogger(__name__)

_READ_OVER = timedelta(minutes=3)
"""What is produced is a mean over so long."""


class Guards:
    """What the guard rails remember of a term. Only for the planner's thread."""

    def __init__(
        self,
        source: FetchSettingsSource,
        schedule: Schedule,
        finish_by: datetime | None,
        free: Callable[[], None],
    ) -> None:
        """Begin; `free` is called, from another thread, when partitions turn out to be below min ISR."""
        self._schedule, self._finish_by, self._free = schedule, finish_by, free
        self._late = ""
        self._looked = False
        self._moves: Collection[TopicReassignment] = ()
        self._reader = SettingsReader(source, self._settings_read)
        self._window: Window | None = None
        self._readings: deque[Progress] = deque()
        self._growth: Mapping[Port, float] = {}
        self._stalls = StallWatch()
        self._stalled: dict[int, str] = {}
        self._exceeded: dict[int, str] = {}

    def close(self) -> None:
        """Stop reading settings. Idempotent."""
        self._reader.close()

    @property
    def settled(self) -> bool:
        """Whether the settings of all who take part have been read, or could not be."""
        return self._reader.known

    @property
    def settings(self) -> ClusterSettings:
        """What brokers and topics are configured to, as far as it was read."""
        return self._reader.settings

    def begin_term(self) -> None:
        """Forget what belongs to another term."""
        self._readings.clear()
        self._growth = {}
        self._stalls, self._stalled, self._exceeded, self._late = StallWatch(), {}, {}, ""

    def limits(self, limits: Limits, now: datetime) -> Limits:
        """Return what the operator allows now."""
        window = self._schedule.window(now)
        if window != self._window:
            share = "the usual share of" if window is None else f"{window.max_ratio * 100:g} % of"
            log.info("By the schedule replication gets %s the headroom from now on", share)
        self._window = window
        return self._schedule.limits(limits, now)

    def next_change(self, now: datetime) -> timedelta | None:
        """Return when the schedule allows another share, from now; None: never."""
        change = self._schedule.next_change(now)
        return None if change is None else change - now

    def keep(self, plan: Plan, read: Snapshot, snapshot: Snapshot, limits: Limits, now: datetime) -> guards.Guarded:
        """Return the plan as it may be written.

        Args:
            plan: what was decided.
            read: the cluster as it is, with what catches up: what is only proposed is throttled, whatever its in-sync
                replicas are.
            snapshot: what was decided on.
            limits: what the operator allows now.
            now: UTC.
        """
        self._observe(read.progress)
        self._moves = read.reassignments
        self._looked = self._looked and self._reader.known
        self._reader.want(participants(snapshot).keys(), snapshot.topics)
        freed = guards.never_held_back(plan, snapshot, limits, self._below_min_isr(read))
        readings, moves, produced = tuple(self._readings), snapshot.reassignments, dict[Port, guards.Ingress]()
        if self._finish_by is not None or guards.may_starve(freed.plan, self._growth, moves):
            produced.update(guards.ingress(readings, moves))
        held = guards.Guarded(freed.plan)
        if self._finish_by is not None:
            held = held_to_deadline(freed.plan, snapshot, limits, produced, self._finish_by, now)
        self._late = (self._late or held.findings[0]) if held.findings else ""
        deadline = self._late or self._unheld(snapshot, now)
        fed = guards.kept_from_starving(held.plan, snapshot, limits, produced, self._window is not None)
        return guards.Guarded(fed.plan, (*freed.findings, *([deadline] if deadline else []), *fed.findings))

    def _unheld(self, snapshot: Snapshot, now: datetime) -> str:
        """Why a deadline that is given holds for nothing; empty: there is none, or nothing moves, or it does hold."""
        if self._finish_by is None or not snapshot.reassignments:
            return ""
        if now >= self._finish_by:
            return f"finish-by {self._finish_by:%Y-%m-%dT%H:%M:%SZ} is over: what moves goes by the headroom"
        if snapshot.progress is None:
            return (
                f"finish-by {self._finish_by:%Y-%m-%dT%H:%M:%SZ} is not kept to, since nobody reads the sizes of logs, "
                "and what moves goes by the headroom; in ZooKeeper mode give --bootstrap-servers"
            )
        return ""

    def _settings_read(self) -> None:
        if guards.below_min_isr(self._moves, self._reader.settings):
            self._free()

    def _below_min_isr(self, read: Snapshot) -> frozenset[TopicPartition]:
        return guards.below_min_isr(read.reassignments, self._reader.settings)

    def _observe(self, progress: Progress | None) -> None:
        if progress is None or progress.at is None or (self._readings and self._readings[-1].at == progress.at):
            return
        self._readings.append(progress)
        while (oldest := self._readings[0].at) is not None and progress.at - oldest > _READ_OVER:
            self._readings.popleft()
        self._growth = guards.port_growth(tuple(self._readings))

    def look(self, plan: Plan, snapshot: Snapshot, scheduled: bool) -> tuple[list[str], list[Event]]:
        """Return what there is to say of the cluster under a plan, a sentence each, and what is posted of it.

        What holds on keeps its words, so that it is said once.
        """
        if scheduled:
            self._stalls = self._stalls.observe(snapshot.progress)
        stalled = self._stalls.stalled(plan, snapshot.progress)
        new = [sentence for follower, sentence in stalled.items() if follower not in self._stalled]
        self._stalled = _worded(self._stalled, stalled)
        if self._reader.known and (scheduled or not self._looked):
            self._looked = True
            exceeded = guards.window_warnings(plan, snapshot, self._reader.settings)
            self._exceeded = _worded(self._exceeded, exceeded)
        events = [Event("Reassignment stands still", "\n".join(new))] if new else []
        return [*self._stalled.values(), *self._exceeded.values()], events


def _worded(before: Mapping[int, str], now: Mapping[int, str]) -> dict[int, str]:
    """What is said now, in the words in which it was said first."""
    return {broker_id: before.get(broker_id, sentence) for broker_id, sentence in now.items()}
