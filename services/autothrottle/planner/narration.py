"""What a cycle did, in the words that operators grep for and see on their dashboards: log lines and events.

The lines keep the wording of the original program, "source" and "destination" included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from autothrottle.core.changes import Change, Outcome, OutcomeStatus
from autothrottle.core.configs import ConfigResource, ReplicaRole, ResourceType, parse_rate
from autothrottle.core.errors import Invalid
from autothrottle.core.ledger import LedgerEntry
from autothrottle.core.limits import Limits
from autothrottle.core.loads import MEGABYTE, Port
from autothrottle.core.ownership import ForeignThrottle
from autothrottle.core.pause import Pause
from autothrottle.core.plan import Decision, Plan, Reason
from autothrottle.core.policy.adaptive import OLD_SECONDS
from autothrottle.core.policy.interface import Basis
from autothrottle.core.progress import Remainder
from autothrottle.core.topology import Snapshot, participants
from autothrottle.ports.metrics import Event

GIGABYTE = 1000 * MEGABYTE

_KNOWN_BY = {
    Basis.GROWTH: "now, by the growth of logs",
    Basis.COUNTED: "of the metric's interval, replication counted",
    Basis.GUESSED: "of the metric's interval, replication taken for the throttle",
}
"""How the load of clients is known, in words."""

_TOPICS_SHOWN = 20
"""How many a finding names."""

_FOREIGN_SHOWN = 20
"""How many throttles of others an event names."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What a cycle really changed."""

    rates: Mapping[Port, int | None] = field(default_factory=dict)
    """(broker id, role) -> the new rate in bytes/s; None: the throttle was removed or given back."""
    topics_cleared: tuple[str, ...] = ()
    """Topics whose lists hold nothing of ours any more."""
    steps: frozenset[Port] = frozenset()
    """Those of the new rates that are steps on the way to one that was told before."""

    @property
    def told(self) -> frozenset[Port]:
        """The ports whose new rate is to be told: of a rate that rises in steps the first one."""
        return frozenset(port for port, rate in self.rates.items() if rate is not None) - self.steps

    @staticmethod
    def of(
        changes: Sequence[Change],
        outcomes: Sequence[Outcome],
        ledger: Mapping[ConfigResource, LedgerEntry] | None = None,
    ) -> Applied:
        """Return what of the changes was carried out; `ledger` is as it was before."""
        done = {o.resource for o in outcomes if o.status is OutcomeStatus.APPLIED}
        rates: dict[Port, int | None] = {}
        steps: set[Port] = set()
        cleared = []
        for change in changes:
            if change.resource not in done:
                continue
            if change.resource.type is ResourceType.BROKER:
                rates |= _rates(change)
                steps |= _steps(change, (ledger or {}).get(change.resource))
            elif change.ledger is None:
                cleared.append(change.resource.name)
        return Applied(rates, tuple(cleared), frozenset(steps))


def _rates(change: Change) -> dict[Port, int | None]:
    ours = change.ledger.keys if change.ledger else {}
    edited = {edit.key: edit.value for edit in change.edits if edit.writes}
    return {
        (change.resource.broker_id, role): int(edited[role.rate_key] or 0) if role.rate_key in ours else None
        for role in ReplicaRole
        if role.rate_key in edited
    }


def _steps(change: Change, before: LedgerEntry | None) -> set[Port]:
    """The ports whose rate was on its way before to where it is going now, or has come."""
    old, new = before.keys if before else {}, change.ledger.keys if change.ledger else {}
    return {
        (change.resource.broker_id, role)
        for role in ReplicaRole
        if (was := old.get(role.rate_key)) is not None and was.target is not None
        if (known := new.get(role.rate_key)) is not None and known.aim == was.target
    }


def megabytes(rate: int) -> str:
    """Return a rate in MB/s with two digits.

    >>> megabytes(139_830_000)
    '139.83'
    """
    return f"{rate / MEGABYTE:.2f}"


def _bracketed(items: Iterable[object]) -> str:
    return "[" + " ".join(str(item) for item in items) + "]"


def topic_lines(snapshot: Snapshot) -> list[str]:
    """Return the lines that say what moves between whom."""
    if not snapshot.reassignments:
        return ["No topics undergoing reassignment"]
    roles = participants(snapshot)
    leaders = sorted(b for b, held in roles.items() if ReplicaRole.LEADER in held)
    followers = sorted(b for b, held in roles.items() if ReplicaRole.FOLLOWER in held)
    return [
        f"Topics with ongoing reassignments: {_bracketed(snapshot.topics)}",
        f"Source brokers participating in replication: {_bracketed(leaders)}",
        f"Destination brokers participating in replication: {_bracketed(followers)}",
    ]


def rate_lines(plan: Plan, applied: Applied, limits: Limits) -> list[str]:
    """Return the lines that say which rates were written, and on what they were decided."""
    told, lines = applied.told, []
    for decision in plan.decisions:
        if (decision.broker_id, decision.role) in told:
            where = f"broker {decision.broker_id} [{decision.role.value}]"
            rate = f"{megabytes(decision.rate)}MB/s{_clients(decision)}"
            lines.append(f"Replication throttle rate for {where} ({_basis(decision, limits)}): {rate}")
            lines.append(f"Updated throttle on {where}")
    return lines


def _basis(decision: Decision, limits: Limits) -> str:
    match decision.reason:
        case Reason.BROKER_OVERRIDE:
            return "broker override"
        case Reason.CLUSTER_OVERRIDE:
            return "override"
        case Reason.MINIMUM:
            return "no metrics: the minimum rate"
        case Reason.OVER_CAPACITY:
            return "clients need the link: below the minimum rate"
        case Reason.KEPT:
            return "no metrics: the standing rate"
        case Reason.FINISH_BY:
            return "twice what it needs to be done in time"
        case Reason.STARVATION:
            return "less would never end: more is produced to its partitions"
        case Reason.HEADROOM | Reason.UNCHANGED:
            if decision.basis is Basis.STATIC:
                return "static"
            return f"based on a {limits.max_ratio(decision.role) * 100:g}% max free capacity utilization"


def _clients(decision: Decision) -> str:
    """What the policy counts on of clients, behind the line that the original has too."""
    of_headroom = decision.reason in (Reason.HEADROOM, Reason.UNCHANGED)
    if not of_headroom or decision.basis not in _KNOWN_BY:
        return ""
    load = "" if decision.client is None else f" {megabytes(decision.client)}MB/s"
    age = decision.client_age or 0
    return f"; clients{load}: {_KNOWN_BY[decision.basis]}" + (f", {age}s old" if age > OLD_SECONDS else "")


def removal_lines(plan: Plan, applied: Applied) -> list[str]:
    """Return the lines that say where throttles are gone, a line for each broker and topic."""
    lines = [f"Throttle removed on broker {broker_id}" for broker_id in _unthrottled(plan, applied)]
    return lines + [f"Throttled replicas removed on topic {topic}" for topic in applied.topics_cleared]


def _unthrottled(plan: Plan, applied: Applied) -> list[int]:
    kept = {decision.broker_id for decision in plan.decisions}
    return sorted({b for (b, _), rate in applied.rates.items() if rate is None} - kept)


def done_line(done: Sequence[str]) -> str:
    """Return the line that says which topics have arrived."""
    return f"Topics done reassigning: {_bracketed(done)}"


def events(plan: Plan, snapshot: Snapshot, applied: Applied, done: Sequence[str]) -> list[Event]:
    """Return what is posted for a cycle: nothing when it changed no rate and ended no move."""
    found = [Event("Topics done reassigning", done_line(done))] if done else []
    roles = participants(snapshot)
    written = applied.told
    moving = [d for d in plan.decisions if d.role in roles.get(d.broker_id, ())]
    standalone = [d for d in plan.decisions if d.broker_id not in roles]
    if any((d.broker_id, d.role) in written for d in moving):
        text = (
            "Replication throttles changes for brokers [ID, role, rate]: "
            f"{_listed(moving)}\nTopics currently undergoing replication: {_bracketed(snapshot.topics)}"
        )
        found.append(Event("Broker replication throttle set", text))
    if any((d.broker_id, d.role) in written for d in standalone):
        text = f"Replication throttle overrides for brokers [ID, role, rate]: {_listed(standalone)}"
        found.append(Event("Broker level throttle override(s) configured", text))
    brokers = _unthrottled(plan, applied)
    if brokers or (applied.topics_cleared and not snapshot.reassignments):
        text = (
            f"Replication throttle removed on the following brokers: {_bracketed(brokers)}\n"
            f"Throttled replicas removed on the following topics: {_bracketed(applied.topics_cleared)}"
        )
        found.append(Event("Broker replication throttle removed", text))
    return found


def _listed(decisions: Sequence[Decision]) -> str:
    return ", ".join(f"[{d.broker_id}, {d.role.value}, {megabytes(d.rate)}]" for d in decisions)


UNKNOWN_PROGRESS = (
    "How many bytes are left is unknown: nobody reads the sizes of logs; in ZooKeeper mode give --bootstrap-servers"
)


def sentence(
    snapshot: Snapshot, changes: Sequence[Change], outcomes: Sequence[Outcome], left: Remainder | None = None
) -> str:
    """Return what a cycle did, and what is left to be copied when that is known, in one sentence."""
    count = {status: sum(o.status is status for o in outcomes) for status in OutcomeStatus}
    moves = _moves(snapshot, left)
    if not changes and not outcomes:
        return f"{moves}; what stands is right"
    refused = f", {count[OutcomeStatus.REFUSED]} refused" if count[OutcomeStatus.REFUSED] else ""
    return f"{moves}; {count[OutcomeStatus.APPLIED]} of {len(changes)} changes written{refused}"


def _moves(snapshot: Snapshot, left: Remainder | None) -> str:
    moves = f"{len(snapshot.topics)} topics in reassignment" if snapshot.topics else "nothing moves"
    return moves if left is None else f"{moves}, left: {progress_words(left)}"


def shadow_sentence(snapshot: Snapshot, would: Sequence[Change], left: Remainder | None = None) -> str:
    """Return what a cycle in shadow would have done, in one sentence."""
    deed = f"{len(would)} changes would be written" if would else "what stands is right"
    return f"shadow: {_moves(snapshot, left)}; {deed}"


def paused_sentence(pause: Pause, sentence: str) -> str:
    """Return what a cycle did while it was paused, in one sentence."""
    return f"paused ({pause.mode.value}): {sentence.removesuffix('; what stands is right')}"


def stale_line(topics: Sequence[str]) -> str:
    """Return the line that says where replica lists do not fit what moves, and stay since it is paused."""
    more = f" and {len(topics) - _TOPICS_SHOWN} more" if len(topics) > _TOPICS_SHOWN else ""
    return (
        f"Paused: the replica lists of topics {_bracketed(topics[:_TOPICS_SHOWN])}{more} do not fit what moves (what "
        "is not listed moves unthrottled, what has arrived is throttled still); they stay until it is resumed"
    )


def would_lines(plan: Plan, would: Sequence[Change], limits: Limits) -> list[str]:
    """Return the lines that say what a cycle in shadow would have written."""
    done = Applied.of(would, [Outcome(change.resource, OutcomeStatus.APPLIED) for change in would])
    lines = []
    for decision in plan.decisions:
        if done.rates.get((decision.broker_id, decision.role)) is not None:
            where = f"broker {decision.broker_id} [{decision.role.value}]"
            lines.append(
                f"Shadow: would throttle {where} ({_basis(decision, limits)}) to {megabytes(decision.rate)}MB/s"
            )
    lines += [f"Shadow: would remove the throttle on broker {b}" for b in _unthrottled(plan, done)]
    for change in would:
        if change.resource.type is ResourceType.TOPIC:
            verb = "remove" if change.ledger is None else "set"
            lines.append(f"Shadow: would {verb} the throttled replicas on topic {change.resource.name}")
    return lines


def progress_words(left: Remainder) -> str:
    """Return what is left to be copied, and for how long, in words.

    >>> from datetime import UTC, datetime, timedelta
    >>> noon = datetime(2026, 11, 2, 12, tzinfo=UTC)
    >>> progress_words(Remainder(41_200_000_000, 0, noon + timedelta(minutes=12), noon))
    '41.20 GB, about 12 min'
    >>> low, high = noon + timedelta(minutes=11), noon + timedelta(minutes=14)
    >>> progress_words(Remainder(41_200_000_000, 0, noon + timedelta(minutes=12), noon, low, high))
    '41.20 GB, about 12 min (11 min to 14 min)'
    >>> progress_words(Remainder(41_200_000_000, 0, noon + timedelta(minutes=12), noon, eta_is_static=True))
    '41.20 GB, about 12 min at these throttles'
    """
    if left.unknown_flows:
        return f"at least {gigabytes(left.bytes_left)} ({left.unknown_flows} flows unknown)"
    return gigabytes(left.bytes_left) + (
        "" if left.eta is None else f", about {_span(left.eta - left.at)}{_scatter(left)}"
    )


def _scatter(left: Remainder) -> str:
    """The interval of the ETA, or what it is by."""
    if left.eta_is_static:
        return " at these throttles"
    if left.eta_low is None:
        return ""
    latest = "unknown" if left.eta_high is None else _span(left.eta_high - left.at)
    return f" ({_span(left.eta_low - left.at)} to {latest})"


def progress_lines(left: Remainder | None) -> list[str]:
    """Return the line that says what is left to be copied; none when that is unknown."""
    return [] if left is None else [f"Bytes left to be copied: {progress_words(left)}"]


def gigabytes(size: int) -> str:
    """Return a size in GB with two digits, in MB when it is less than one.

    >>> gigabytes(1_500_000_000), gigabytes(999_999_999)
    ('1.50 GB', '1000.00 MB')
    """
    return f"{size / GIGABYTE:.2f} GB" if size >= GIGABYTE else f"{size / MEGABYTE:.2f} MB"


def _span(time: timedelta) -> str:
    minutes = round(time.total_seconds() / 60)
    if minutes < 2:
        return f"{max(0, round(time.total_seconds()))} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def default_lines(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the lines that say what became of the throttles at Kafka's `<default>` level since the last cycle."""
    lines = []
    for role in ReplicaRole:
        old, new = before.get(role.rate_key), now.get(role.rate_key)
        if new is not None and new != old:
            lines.append(
                f"Kafka's <default> {role.value} throttle is {_shown_rate(new)}: it limits the brokers without a rate "
                "of their own, and autothrottle leaves it; remove it with kafka-configs --entity-default if nobody "
                "wants it"
            )
        elif new is None and old is not None:
            lines.append(f"Kafka's <default> {role.value} throttle of {_shown_rate(old)} is gone")
    return lines


def default_in_force_lines(
    defaults: Mapping[str, str], changes: Sequence[Change], outcomes: Sequence[Outcome]
) -> list[str]:
    """Return the lines that name the brokers which Kafka's `<default>` throttle limits again, our rate being gone."""
    done = {o.resource for o in outcomes if o.status is OutcomeStatus.APPLIED}
    return [
        f"broker {change.resource.broker_id} [{role.value}]: its own throttle is gone, and Kafka's <default> of "
        f"{_shown_rate(defaults[role.rate_key])} is in force again"
        for change in changes
        if change.resource in done and change.resource.type is ResourceType.BROKER
        for role in ReplicaRole
        if role.rate_key in defaults and any(e.key == role.rate_key and e.value is None for e in change.edits)
    ]


def _shown_rate(value: str) -> str:
    """A rate that somebody else set: Kafka keeps in ZooKeeper whatever was written there."""
    try:
        return f"{megabytes(parse_rate(value))}MB/s"
    except Invalid:
        return repr(value)


def foreign_line(found: Mapping[ConfigResource, Mapping[str, str]], cleanup: bool) -> str:
    """Return the line that reports throttles which others left while nothing moves."""
    return f"Throttles that autothrottle did not set stand while nothing moves: {_bracketed(found)}; {_fate(cleanup)}"


def foreign_event(found: Sequence[ForeignThrottle], cleanup: bool) -> Event:
    """Return what is posted when others have left throttles, or other ones than before."""
    shown = [f"{one.resource}, {one.key}: {one.value}" for one in found[:_FOREIGN_SHOWN]]
    more = [f"and {len(found) - _FOREIGN_SHOWN} more"] if len(found) > _FOREIGN_SHOWN else []
    text = "\n".join(
        ["Throttles that autothrottle did not set stand while nothing moves:", *shown, *more, _fate(cleanup)]
    )
    return Event("Throttles of others found", text)


def _fate(cleanup: bool) -> str:
    return "they go after --cleanup-after intervals" if cleanup else "they are left; --cleanup-foreign removes them"
