"""Guards: apply the safety rules of `core.control.guards` to a plan, in order, and keep their state."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta

from autothrottle.core.cluster.fetch_settings import ClusterSettings
from autothrottle.core.cluster.flows import LinkSide, Progress
from autothrottle.core.cluster.snapshot import Snapshot, TopicPartition, TopicReassignment, participants
from autothrottle.core.control import guards
from autothrottle.core.control.deadline import limited_by_deadline
from autothrottle.core.control.plan import Plan
from autothrottle.core.control.schedule import Schedule, ScheduleWindow
from autothrottle.core.forecast.stalls import StallWatch
from autothrottle.core.policy.limits import Limits
from autothrottle.planner.settings_reader import SettingsReader
from autothrottle.ports.kafka import FetchSettingsSource
from autothrottle.ports.telemetry import Event

log = logging.getLogger(__name__)

_PRODUCE_RATE_WINDOW = timedelta(minutes=3)
"""The produce rate is the mean over this time."""


class Guards:
    """The guards' state of one term. Only for the planner's thread."""

    def __init__(
        self,
        source: FetchSettingsSource,
        schedule: Schedule,
        finish_by: datetime | None,
        on_below_min_isr: Callable[[], None],
    ) -> None:
        """Begin without state.

        Args:
            source: settings of brokers and topics.
            schedule: hours with another share of the headroom.
            finish_by: deadline, UTC; None: none.
            on_below_min_isr: called from another thread when partitions are found below min.insync.replicas.
        """
        self._schedule, self._finish_by = schedule, finish_by
        self._on_below_min_isr = on_below_min_isr
        self._missed_deadline = ""
        self._checked_windows = False
        self._reassignments: Collection[TopicReassignment] = ()
        self._reader = SettingsReader(source, self._on_settings)
        self._window: ScheduleWindow | None = None
        self._samples: deque[Progress] = deque()
        self._growth: Mapping[LinkSide, float] = {}
        self._stalls = StallWatch()
        self._stalled: dict[int, str] = {}
        self._exceeded: dict[int, str] = {}

    def close(self) -> None:
        """Stop reading settings. Idempotent."""
        self._reader.close()

    @property
    def settled(self) -> bool:
        """Whether the read of the participants' settings has finished, successfully or not."""
        return self._reader.known

    @property
    def settings(self) -> ClusterSettings:
        """Settings of brokers and topics, as far as they were read."""
        return self._reader.settings

    def begin_term(self) -> None:
        """Forget the previous term."""
        self._samples.clear()
        self._growth = {}
        self._stalls, self._stalled, self._exceeded, self._missed_deadline = StallWatch(), {}, {}, ""

    def limits(self, limits: Limits, now: datetime) -> Limits:
        """Return the limits that the schedule sets at this time."""
        window = self._schedule.window(now)
        if window != self._window:
            share = "the usual share" if window is None else f"{window.max_ratio * 100:g} %"
            log.info("Schedule: from now on replication gets %s of the headroom", share)
        self._window = window
        return self._schedule.limits(limits, now)

    def next_change(self, now: datetime) -> timedelta | None:
        """Return the time until the schedule changes the share of headroom; None: never."""
        change = self._schedule.next_change(now)
        return None if change is None else change - now

    def keep(self, plan: Plan, read: Snapshot, snapshot: Snapshot, limits: Limits, now: datetime) -> guards.Guarded:
        """Return the plan with all guards applied.

        Args:
            plan: the decisions.
            read: the cluster with catch-ups, but without proposed reassignments: those are throttled whatever their
                ISR is.
            snapshot: the input of the decisions.
            limits: the operator's limits at this time.
            now: UTC.
        """
        self._observe(read.progress)
        self._reassignments = read.reassignments
        self._checked_windows = self._checked_windows and self._reader.known
        self._reader.want(participants(snapshot).keys(), snapshot.topics)
        freed = guards.with_exempt_partitions(plan, snapshot, limits, self._below_min_isr(read))
        samples, reassignments, produced = (
            tuple(self._samples),
            snapshot.reassignments,
            dict[LinkSide, guards.Ingress](),
        )
        if self._finish_by is not None or guards.may_starve(freed.plan, self._growth, reassignments):
            produced.update(guards.ingress(samples, reassignments))
        held = guards.Guarded(freed.plan)
        if self._finish_by is not None:
            held = limited_by_deadline(freed.plan, snapshot, limits, produced, self._finish_by, now)
        self._missed_deadline = (self._missed_deadline or held.findings[0]) if held.findings else ""
        deadline = self._missed_deadline or self._ineffective_deadline(snapshot, now)
        fed = guards.without_starvation(held.plan, snapshot, limits, produced, self._window is not None)
        return guards.Guarded(fed.plan, (*freed.findings, *([deadline] if deadline else []), *fed.findings))

    def _ineffective_deadline(self, snapshot: Snapshot, now: datetime) -> str:
        """Why the configured deadline has no effect. Empty: it has one, no deadline is set, or no reassignment runs."""
        if self._finish_by is None or not snapshot.reassignments:
            return ""
        if now >= self._finish_by:
            return f"finish-by {self._finish_by:%Y-%m-%dT%H:%M:%SZ} has passed: rates follow the headroom"
        if snapshot.progress is None:
            return (
                f"finish-by {self._finish_by:%Y-%m-%dT%H:%M:%SZ} has no effect, since log sizes are unknown: "
                "rates follow the headroom; in ZooKeeper mode set --bootstrap-servers"
            )
        return ""

    def _on_settings(self) -> None:
        if guards.below_min_isr(self._reassignments, self._reader.settings):
            self._on_below_min_isr()

    def _below_min_isr(self, read: Snapshot) -> frozenset[TopicPartition]:
        return guards.below_min_isr(read.reassignments, self._reader.settings)

    def _observe(self, progress: Progress | None) -> None:
        if progress is None or progress.at is None or (self._samples and self._samples[-1].at == progress.at):
            return
        self._samples.append(progress)
        while (oldest := self._samples[0].at) is not None and progress.at - oldest > _PRODUCE_RATE_WINDOW:
            self._samples.popleft()
        self._growth = guards.link_side_growth(tuple(self._samples))

    def findings(self, plan: Plan, snapshot: Snapshot, scheduled: bool) -> tuple[list[str], list[Event]]:
        """Return the findings on the cluster under this plan, a sentence each, and the events to post.

        A finding that persists keeps its text, so that it is logged once.
        """
        if scheduled:
            self._stalls = self._stalls.observe(snapshot.progress)
        stalled = self._stalls.stalled(plan, snapshot.progress)
        new = [sentence for follower, sentence in stalled.items() if follower not in self._stalled]
        self._stalled = _with_first_texts(self._stalled, stalled)
        if self._reader.known and (scheduled or not self._checked_windows):
            self._checked_windows = True
            exceeded = guards.window_warnings(plan, snapshot, self._reader.settings)
            self._exceeded = _with_first_texts(self._exceeded, exceeded)
        events = [Event("Reassignment stalled", "\n".join(new))] if new else []
        return [*self._stalled.values(), *self._exceeded.values()], events


def _with_first_texts(before: Mapping[int, str], now: Mapping[int, str]) -> dict[int, str]:
    """The current findings; one that persists keeps its first text."""
    return {broker_id: before.get(broker_id, sentence) for broker_id, sentence in now.items()}
