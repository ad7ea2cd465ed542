"""Estimates a reassignment from the current data of discovery and metrics. Changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from queue import Empty, SimpleQueue
from threading import Lock, Thread

from autothrottle.core.cluster.configs import ClusterSettings
from autothrottle.core.cluster.flows import LinkSide
from autothrottle.core.cluster.snapshot import LogSizes, Snapshot, SnapshotRequest, TopicPartition
from autothrottle.core.errors import AutothrottleError, Unavailable
from autothrottle.core.forecast.eta import Goal, estimate, restricted_to, sizes_needed, transfers
from autothrottle.core.forecast.moves import running_moves
from autothrottle.core.operators.cancellation import CancelRule, cancel_effect, without_reassignment
from autothrottle.core.operators.sources import NO_SCHEDULE, Overrides, Schedule
from autothrottle.core.operators.submission import Targets, proposal, with_proposed
from autothrottle.core.policy.headroom import HeadroomPolicy
from autothrottle.core.policy.interface import Limits, Policy, PolicyObservation
from autothrottle.core.records import CancelEffect, Estimate, RunningMove
from autothrottle.core.throttles.guards import fetch_warning
from autothrottle.core.throttles.plan import plan
from autothrottle.core.traffic.loads import BrokerLoad, Loads
from autothrottle.ports.kafka import FetchSettingsSource, LogSizeSource, SnapshotSource
from autothrottle.ports.state_store import OverrideStore
from autothrottle.ports.telemetry import LoadSource

GROWTH_SECONDS = 2.0
"""Time between the two samples of log sizes that give the produce rate."""

_SIZES_TIMEOUT = timedelta(seconds=3)
"""Time in which brokers tell log sizes that an answer can lack."""

_SHOWN = 10
"""Maximum number of brokers in a note."""


@dataclass(frozen=True, slots=True)
class Estimator:
    """Estimates the duration and rates of a reassignment."""

    snapshots: SnapshotSource
    sizes: LogSizeSource
    settings: FetchSettingsSource
    loads: LoadSource
    overrides: OverrideStore
    limits: Limits
    schedule: Schedule = NO_SCHEDULE
    """Hours with another share of the headroom."""
    policy: Policy = HeadroomPolicy()  # noqa: RUF009 (frozen)
    """Decides the rates. It starts without history: the planner has its own instance."""
    wait: Callable[[float], None] = time.sleep
    """Sleeps for this many seconds."""
    _reading: Lock = field(default_factory=Lock, init=False)

    def estimate(self, snapshot: Snapshot, targets: Targets, goal: Goal, timeout: timedelta) -> Estimate:
        """Return the estimate of a reassignment, or the rates that a goal needs.

        Args:
            snapshot: the cluster, with the assignments of these partitions.
            targets: target replicas of each partition. Of a partition already moving there, only the bytes left count.
            goal: the share of the capacity or the duration that the operator sets.
            timeout: for the whole estimate, > 0.

        Raises:
            Invalid, Missing, Conflict: the reassignment cannot be submitted.
            Unavailable: its log sizes cannot be read in time.
        """
        deadline = _Deadline(timeout)
        proposal_of_targets = proposal(snapshot, targets)
        in_progress = replace(snapshot, reassignments=restricted_to(snapshot.reassignments, proposal_of_targets.moving))
        proposed = with_proposed(in_progress, proposal_of_targets.start)
        logs = sizes_needed(proposed.reassignments)
        sizes = self.sizes.fetch_log_sizes(logs, deadline.remaining())
        loads, notes = self._loads(deadline)
        total = self._total_partitions(snapshot, deadline)
        self.wait(min(GROWTH_SECONDS, deadline.remaining().total_seconds() / 2))
        transfer = transfers(proposed.reassignments, sizes, self.sizes.fetch_log_sizes(logs, deadline.remaining()))
        # Decide with all reassignments, like a cycle: a broker has one throttle for all of them.
        now = datetime.now(UTC)
        policy, window = self.policy.observe(PolicyObservation(now, snapshot, loads)), self.schedule.window(now)
        limits = self.limits if window is None else window.limits(self.limits)
        # A goal sets the throttles: existing overrides would only hide the capacity of the links.
        overrides = self.overrides.read_overrides() if goal == Goal() else Overrides()
        decided = plan(with_proposed(snapshot, proposal_of_targets.start), loads, limits, overrides, policy=policy)
        overridden = {d.broker_id for d in decided.decisions if d.reason.is_override}
        if fixed := overridden & {broker_id for broker_id, _ in transfer.sides}:
            notes.append(f"an override sets the throttles of {_which(fixed)}, whatever their headroom is")
        if shared := {
            broker_id
            for broker_id, _ in _link_sides_of_others(snapshot, proposal_of_targets.moving) & transfer.sides.keys()
        }:
            notes.append(
                f"{_which(shared)} take part in other reassignments that share their throttles: this one takes longer"
            )
        notes += [f"the log sizes of broker {b} are unknown: {why}" for b, why in sorted(sizes.problems.items())]
        if warning := fetch_warning(decided, proposed, self._settings(proposed.participants.keys(), (), deadline)):
            notes.append(warning)
        return estimate(transfer, decided.decisions, goal, total, notes)

    def moves(self, snapshot: Snapshot, timeout: timedelta) -> Sequence[RunningMove]:
        """Return the running moves of a snapshot; their bytes left are unknown if log sizes cannot be read in time."""
        return running_moves(snapshot, self._sizes(sizes_needed(snapshot.reassignments), timeout))

    def cancellation(
        self, rows: Collection[TopicPartition], timeout: timedelta
    ) -> tuple[Sequence[CancelEffect], Mapping[TopicPartition, str]]:
        """Return what a cancellation of these partitions would do, and the partitions that would be refused -> why.

        Raises:
            Unavailable: the cluster cannot be read in time.
        """
        deadline = _Deadline(timeout)
        snapshot = self.snapshots.fetch_snapshot(SnapshotRequest(partitions=rows), timeout=deadline.remaining())
        moving = {row: a for row in rows if (a := snapshot.assignments.get(row)) is not None and a.moves}
        topics = {topic for topic, _ in moving}
        rule = CancelRule(snapshot.brokers, self._settings((), topics, deadline).min_in_sync_replicas)
        refused = {}
        for row in rows:
            assignment = snapshot.assignments.get(row)
            reason = without_reassignment(row, assignment)
            if not reason and assignment is not None:
                reason = rule.hazard(row, assignment)
            if reason:
                refused[row] = reason
        logs: dict[int, dict[str, list[int]]] = {}
        for (topic, partition), current in moving.items():
            for broker_id in current.adding_replicas:
                logs.setdefault(broker_id, {}).setdefault(topic, []).append(partition)
        sizes = self._sizes(logs, deadline.remaining() / 2)
        return [cancel_effect(row, a, sizes) for row, a in moving.items() if row not in refused], refused

    def current_loads(self, timeout: timedelta) -> Mapping[int, BrokerLoad]:
        """Return broker id -> its load and capacity; empty if the metrics cannot be read in time.

        A source that hangs delays one caller: nothing is read while an earlier read is still running.
        """
        if not self._reading.acquire(blocking=False):
            return {}
        answers = SimpleQueue[Mapping[int, BrokerLoad]]()
        Thread(target=self._read_loads, args=(timeout, answers), name="current-loads", daemon=True).start()
        try:
            return answers.get(timeout=timeout.total_seconds())
        except Empty:
            return {}

    def _read_loads(self, timeout: timedelta, answers: SimpleQueue[Mapping[int, BrokerLoad]]) -> None:
        loads: Mapping[int, BrokerLoad] = {}
        try:
            with suppress(AutothrottleError):
                loads = self.loads.fetch_loads(timeout).brokers
        finally:
            self._reading.release()
            answers.put(loads)

    def _loads(self, deadline: _Deadline) -> tuple[Loads, list[str]]:
        try:
            return self.loads.fetch_loads(deadline.remaining() / 2), []
        except AutothrottleError as error:
            return Loads(), [f"metrics cannot be read; the rates assume no metrics: {error}"]

    def _settings(self, broker_ids: Collection[int], topics: Collection[str], deadline: _Deadline) -> ClusterSettings:
        """The settings of brokers and topics; none if they cannot be read."""
        try:
            return self.settings.fetch_settings(broker_ids, topics, deadline.remaining() / 2)
        except AutothrottleError:
            return ClusterSettings()

    def _sizes(self, logs: Mapping[int, Mapping[str, Collection[int]]], timeout: timedelta) -> LogSizes:
        """The sizes of these logs; none if they cannot be read."""
        try:
            return self.sizes.fetch_log_sizes(logs, min(timeout, _SIZES_TIMEOUT)) if logs else LogSizes()
        except AutothrottleError:
            return LogSizes()

    def _total_partitions(self, snapshot: Snapshot, deadline: _Deadline) -> int:
        """The number of partitions with a replica on a registered broker."""
        request = SnapshotRequest(replicas_of=snapshot.brokers)
        listed = self.snapshots.fetch_snapshot(request, timeout=deadline.remaining())
        return len({(topic, p) for topics in listed.replicas.values() for topic, rows in topics.items() for p in rows})


def _link_sides_of_others(snapshot: Snapshot, own: Collection[TopicPartition]) -> frozenset[LinkSide]:
    """Link sides that other reassignments already use."""
    rows = {
        (reassignment.topic, partition)
        for reassignment in snapshot.reassignments
        for partition in reassignment.partitions
    }
    others = replace(snapshot, reassignments=restricted_to(snapshot.reassignments, rows.difference(own)))
    return others.link_sides


def _which(broker_ids: Collection[int]) -> str:
    return f"{len(broker_ids)} of its brokers" if len(broker_ids) > _SHOWN else f"brokers {sorted(broker_ids)}"


class _Deadline:
    """The deadline of one estimate."""

    def __init__(self, timeout: timedelta) -> None:
        self._deadline = time.monotonic() + timeout.total_seconds()

    def remaining(self) -> timedelta:
        """The remaining time.

        Raises:
            Unavailable: the deadline has passed.
        """
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            raise Unavailable("the estimate timed out; try again with a longer timeout")
        return timedelta(seconds=seconds)
