"""What the safety rules remember from cycle to cycle: produce rates, stalls, and findings that persist.

The type to know is `GuardState`. `guards` and `deadline` have the rules.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from autothrottle.core.cluster.fetch_settings import ClusterSettings
from autothrottle.core.cluster.flows import LinkSide, Progress
from autothrottle.core.cluster.snapshot import Snapshot, TopicPartition
from autothrottle.core.control import guards
from autothrottle.core.control.deadline import limited_by_deadline
from autothrottle.core.control.plan import Plan
from autothrottle.core.forecast.stalls import StallWatch
from autothrottle.core.policy.limits import Limits

_PRODUCE_RATE_WINDOW = timedelta(minutes=3)
"""The produce rate is the mean over this time."""


@dataclass(frozen=True, slots=True)
class GuardState:
    """The guards' state of one term."""

    samples: tuple[Progress, ...] = ()
    """Progress of the last minutes, the newest last."""
    growth: Mapping[LinkSide, float] = field(default_factory=dict)
    """Link side -> produce rate of its flows, bytes/s."""
    missed_deadline: str = ""
    """The first finding about a deadline that cannot be met; "": it can."""
    stalls: StallWatch = StallWatch()  # noqa: RUF009 (frozen)
    stalled: Mapping[int, str] = field(default_factory=dict)
    """Follower -> finding about its stall."""
    large_fetches: str = ""
    """The first finding about fetches that are too large for the throttles of these participants; "": they fit."""
    checked_fetches: bool = False
    """Whether `large_fetches` was computed with the settings of all participants."""

    def observe(self, progress: Progress | None) -> GuardState:
        """Return the state with a new sample of the progress; a sample that is already known changes nothing."""
        if progress is None or progress.at is None or (self.samples and self.samples[-1].at == progress.at):
            return self
        oldest = progress.at - _PRODUCE_RATE_WINDOW
        samples = (*(s for s in self.samples if s.at is not None and s.at >= oldest), progress)
        return replace(self, samples=samples, growth=guards.link_side_growth(samples))

    def apply(
        self,
        plan: Plan,
        snapshot: Snapshot,
        limits: Limits,
        exempt: Collection[TopicPartition],
        finish_by: datetime | None,
        scheduled: bool,
        now: datetime,
    ) -> tuple[GuardState, guards.Guarded]:
        """Return the plan with all rules applied, in order.

        Args:
            plan: the decisions.
            snapshot: the input of the decisions.
            limits: the operator's limits at this time.
            exempt: partitions below min.insync.replicas, which must not be throttled.
            finish_by: deadline, UTC; None: none.
            scheduled: whether a window of the schedule is active.
            now: UTC.
        """
        freed = guards.with_exempt_partitions(plan, snapshot, limits, exempt)
        reassignments, produced = snapshot.reassignments, dict[LinkSide, guards.Ingress]()
        if finish_by is not None or guards.may_starve(freed.plan, self.growth, reassignments):
            produced.update(guards.ingress(self.samples, reassignments))
        held = guards.Guarded(freed.plan)
        if finish_by is not None:
            held = limited_by_deadline(freed.plan, snapshot, limits, produced, finish_by, now)
        missed = (self.missed_deadline or held.findings[0]) if held.findings else ""
        deadline = missed or _ineffective_deadline(snapshot, finish_by, now)
        fed = guards.without_starvation(held.plan, snapshot, limits, produced, scheduled)
        findings = (*freed.findings, *([deadline] if deadline else []), *fed.findings)
        return replace(self, missed_deadline=missed), guards.Guarded(fed.plan, findings)

    def watch(
        self, plan: Plan, snapshot: Snapshot, scheduled: bool, settings: ClusterSettings | None
    ) -> tuple[GuardState, tuple[str, ...]]:
        """Return the state after a cycle, and its new stalls, a sentence each.

        A finding that persists keeps its text, so that it is logged once.

        Args:
            plan: the cycle's plan.
            snapshot: the input of the decisions.
            scheduled: whether the cycle is the regular one of an interval.
            settings: the brokers' settings; None: those of the participants are still being read.
        """
        stalls = self.stalls.observe(snapshot.progress) if scheduled else self.stalls
        stalled = stalls.stalled(plan, snapshot.progress)
        new = tuple(sentence for follower, sentence in stalled.items() if follower not in self.stalled)
        large, checked = self.large_fetches, self.checked_fetches and settings is not None
        if settings is not None and (scheduled or not checked):
            found = guards.fetch_warning(plan, snapshot, settings)
            large, checked = (large if checked and large and found else found), True
        after = replace(
            self,
            stalls=stalls,
            stalled=_with_first_texts(self.stalled, stalled),
            large_fetches=large,
            checked_fetches=checked,
        )
        return after, new

    @property
    def findings(self) -> tuple[str, ...]:
        """The findings that persist, a sentence each."""
        return (*self.stalled.values(), *([self.large_fetches] if self.large_fetches else []))


def _with_first_texts(before: Mapping[int, str], now: Mapping[int, str]) -> dict[int, str]:
    """The current findings; one that persists keeps its first text."""
    return {broker_id: before.get(broker_id, sentence) for broker_id, sentence in now.items()}


def _ineffective_deadline(snapshot: Snapshot, finish_by: datetime | None, now: datetime) -> str:
    """Why the configured deadline has no effect. Empty: it has one, no deadline is set, or no reassignment runs."""
    if finish_by is None or not snapshot.reassignments:
        return ""
    if now >= finish_by:
        return f"finish-by {finish_by:%Y-%m-%dT%H:%M:%SZ} has passed: rates follow the headroom"
    if snapshot.progress is None:
        return (
            f"finish-by {finish_by:%Y-%m-%dT%H:%M:%SZ} has no effect, since log sizes are unknown: "
            "rates follow the headroom; in ZooKeeper mode set --bootstrap-servers"
        )
    return ""
