"""Why partitions of a plan are refused before anything is submitted.

A plan is refused for what would take data or availability away: fewer replicas or racks than now, a new replica on a
broker that is down, cordoned or full, no live replica to copy from. Some reasons can be allowed; see `RefusalKind`.
Every way to submit or estimate a plan judges it with `refusals`. The types to know are `PlanCluster` and `PlanRefusal`.

Source: KIP-455 (reassignments), KIP-1066 (cordons).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import LinkTraffic
from autothrottle.core.cluster.snapshot import NO_LEADER, Assignment, Snapshot, TopicPartition, named
from autothrottle.core.errors import AutothrottleError, Conflict, Invalid, Missing
from autothrottle.core.records import STRICT, Allowances, LeftOut
from autothrottle.core.texts import escape_unprintable, excerpt, first_lines

_SHOWN_PARTITIONS = 3
"""Number of partitions that a line names; `PlanRefusal.partitions` has all of them."""

_SHOWN_BROKERS = 10
_SHOWN_LINES = 12
"""Number of lines of an error: gRPC sends it in a header of 8 kB."""

_GIGABYTE = 10**9


class RefusalKind(Enum):
    """A kind of reason. Its value: (the error of a refused plan, the option that allows it or "", the fix)."""

    NO_PARTITION = Missing, "", "give a partition's name"
    DEAD_BROKER = Invalid, "", "start the broker, or name another"
    MOVES_ELSEWHERE = Conflict, "", "wait until it is done, or cancel it first"
    NO_LIVE_REPLICA = Conflict, "", "start one of these brokers first"
    FEWER_REPLICAS = Conflict, "allow_fewer_replicas", ""
    FEWER_RACKS = Conflict, "allow_fewer_racks", ""
    CORDONED = Conflict, "allow_cordoned", ""
    FULL = Conflict, "allow_full", ""

    @property
    def option(self) -> str:
        """The field of `Allowances` that allows it; "": nothing does."""
        option: str = self.value[1]
        return option

    @property
    def fix(self) -> str:
        """What an operator can do."""
        return self.value[2] or f"to submit it nevertheless: {flag(self.option)}"


def flag(option: str) -> str:
    """Return an option as the command lines spell it.

    >>> flag("allow_full")
    '--allow-full'
    """
    return f"--{option.replace('_', '-')}"


PERMISSIVE = Allowances(True, True, True, True)
"""Only what nothing allows is refused."""


@dataclass(frozen=True, slots=True)
class PlanCluster:
    """The state of the cluster that the plan is checked against. Unknown values never refuse a partition."""

    snapshot: Snapshot
    """With the assignments of all partitions of the plan."""
    racks: Mapping[int, str] = field(default_factory=dict)
    """Broker id -> its rack; "" or absent: unknown, or it has none."""
    cordoned: Collection[int] = frozenset()
    """Brokers whose log directories are all cordoned."""
    storage_free: Mapping[int, int] = field(default_factory=dict)
    """Broker id -> free bytes; absent: unknown."""
    sizes: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Partition -> bytes of one replica; absent: unknown."""
    min_in_sync_replicas: Mapping[str, int] = field(default_factory=dict)
    """Topic -> its `min.insync.replicas`; absent: unknown."""


@dataclass(frozen=True, slots=True)
class PlanRefusal(LeftOut):
    """One reason, and the partitions of the plan that share it."""

    kind: RefusalKind


def refusals(
    cluster: PlanCluster, targets: Mapping[TopicPartition, tuple[int, ...]], allowances: Allowances = STRICT
) -> tuple[PlanRefusal, ...]:
    """Return why partitions of a plan are refused, one entry for each reason; empty: nothing is refused.

    Partitions that already are on their targets or move there are accepted, since nothing is submitted for them. A
    current replica that is down and stays refuses nothing.

    Args:
        cluster: its state.
        targets: partition -> broker ids of its target replicas, each broker at most once.
        allowances: what the author of the plan allows.
    """
    rows_of_reasons: dict[tuple[RefusalKind, str], list[TopicPartition]] = {}
    moved: dict[TopicPartition, tuple[int, ...]] = {}
    for row, target in targets.items():
        assignment = cluster.snapshot.assignments.get(row)
        if assignment is None:
            rows_of_reasons.setdefault((RefusalKind.NO_PARTITION, "{} {do} not exist"), []).append(row)
        elif assignment.moves:
            if assignment.target != target:
                reason = f"{{}} {{are}} already being reassigned to {list(assignment.target)}"
                rows_of_reasons.setdefault((RefusalKind.MOVES_ELSEWHERE, reason), []).append(row)
        elif assignment.replicas != target:
            reasons = list(_reasons(cluster, row, assignment, target))
            for kind, reason in reasons:
                rows_of_reasons.setdefault((kind, reason), []).append(row)
            if all(kind.option for kind, _ in reasons):
                moved[row] = tuple(b for b in target if b not in assignment.replicas)
    for reason, rows in _full(cluster, moved):
        rows_of_reasons.setdefault((RefusalKind.FULL, reason), []).extend(rows)
    kinds = list(RefusalKind)
    registered = excerpt(sorted(cluster.snapshot.brokers), _SHOWN_BROKERS) or "none"
    notes = {RefusalKind.DEAD_BROKER: f"; the registered brokers are [{registered}]"}
    return tuple(
        PlanRefusal(f"{_sentence(reason, rows)}{notes.get(kind, '')}; {kind.fix}", tuple(rows), kind.option, kind)
        for (kind, reason), rows in sorted(rows_of_reasons.items(), key=lambda item: kinds.index(item[0][0]))
        if not (kind.option and getattr(allowances, kind.option))
    )


def _reasons(
    cluster: PlanCluster, row: TopicPartition, assignment: Assignment, target: tuple[int, ...]
) -> Iterator[tuple[RefusalKind, str]]:
    """Yield the reasons against the target of one partition, except the room on its brokers.

    The partitions stand as {} in a reason, and {do}, {are} and {have} for the verb in their number.
    """
    current, live = assignment.replicas, cluster.snapshot.brokers
    adding = [b for b in target if b not in current]
    for broker_id in adding:
        if broker_id not in live:
            yield RefusalKind.DEAD_BROKER, f"broker {broker_id}, a target replica of {{}}, is unknown or down"
    if adding and live.isdisjoint(assignment.isr) and (assignment.isr or assignment.leader == NO_LEADER):
        in_sync = list(assignment.isr) if assignment.isr else "none"
        yield RefusalKind.NO_LIVE_REPLICA, f"{{}} {{have}} no live replica to copy from (in sync: {in_sync})"
    if not adding and live.isdisjoint(target) and not live.isdisjoint(current):
        yield RefusalKind.NO_LIVE_REPLICA, f"{{}} would keep only replicas that are down, {list(target)}"
    if len(target) < len(current):
        cut = f"{{}} would have {len(target)} replica{'s' * (len(target) > 1)} instead of {len(current)}"
        yield RefusalKind.FEWER_REPLICAS, cut + _below_minimum(cluster, row[0], target)
    racks_before, racks_after = _racks(cluster.racks, current, target), _racks(cluster.racks, target, target)
    if racks_after < min(racks_before, len(target)):
        plural = "s" * (racks_after > 1)
        reason = f"{{}} would be in {racks_after} rack{plural} instead of {min(racks_before, len(target))}"
        yield RefusalKind.FEWER_RACKS, reason
    for broker_id in adding:
        if broker_id in cluster.cordoned:
            yield RefusalKind.CORDONED, f"broker {broker_id}, a target replica of {{}}, is cordoned"


def _below_minimum(cluster: PlanCluster, topic: str, target: tuple[int, ...]) -> str:
    """Return what `min.insync.replicas` means for the producers of a topic with fewer replicas; "": nothing."""
    minimum = cluster.min_in_sync_replicas.get(topic, 1)
    down = [b for b in target if b not in cluster.snapshot.brokers]
    if len(target) - len(down) >= minimum:
        return ""
    of_which = f" with {list(down)} down" if down and len(target) >= minimum else ""
    return f"{of_which}, below min.insync.replicas={minimum}, so that producers with acks=all fail"


def _racks(racks: Mapping[int, str], replicas: Sequence[int], target: Sequence[int]) -> int:
    """Return in how many racks replicas are.

    A broker of unknown rack counts as a rack of its own if it is in the target, and else as none: that never refuses.
    """
    return len({racks.get(b) or b for b in replicas if racks.get(b) or b in target})


def _full(
    cluster: PlanCluster, moved: Mapping[TopicPartition, Sequence[int]]
) -> Iterator[tuple[str, list[TopicPartition]]]:
    """Yield each broker with too little room, and the partitions that do not fit behind the others of the plan.

    What the plan removes is not counted: Kafka deletes a replica after all new ones are in sync. What running
    reassignments still copy is counted.
    """
    traffic = cluster.snapshot.progress.link_traffic if cluster.snapshot.progress is not None else {}
    rows_of_brokers: dict[int, list[TopicPartition]] = {}
    for row, adding in moved.items():
        for broker_id in adding:
            if broker_id in cluster.storage_free and cluster.sizes.get(row):
                rows_of_brokers.setdefault(broker_id, []).append(row)
    for broker_id, rows in sorted(rows_of_brokers.items()):
        pending = traffic.get((broker_id, ReplicaRole.FOLLOWER), LinkTraffic()).bytes_left
        room = max(cluster.storage_free[broker_id] - pending, 0)
        needed, used, rows_without_room = sum(cluster.sizes[row] for row in rows), 0, []
        for row in rows:
            if used + cluster.sizes[row] > room:
                rows_without_room.append(row)
            else:
                used += cluster.sizes[row]
        if rows_without_room:
            copied = f"the plan copies {_gigabytes(needed)} to broker {broker_id}, which has room for "
            yield f"{copied}{_gigabytes(room)}: {{}} {{do}} not fit", rows_without_room


def without_refused(
    targets: Mapping[TopicPartition, tuple[int, ...]], refused: Collection[PlanRefusal]
) -> Mapping[TopicPartition, tuple[int, ...]]:
    """Return the targets without the refused partitions."""
    rows = {row for refusal in refused for row in refusal.partitions}
    return {row: target for row, target in targets.items() if row not in rows}


def refusal_error(refused: Sequence[PlanRefusal], others: int) -> AutothrottleError:
    """Return the error of a plan that is refused: a line for each reason, and how to submit the others.

    Args:
        refused: at least one.
        others: number of partitions of the plan that are not refused and could be submitted without these; 0: none.
    """
    lines = first_lines([refusal.reason for refusal in refused], _SHOWN_LINES, "reason")
    if len(lines) > 1:
        count = len({row for refusal in refused for row in refusal.partitions})
        lines.insert(0, f"{count} {'partitions are' if count > 1 else 'partition is'} refused:")
    if others:
        rest = f"{others} other partition{'s' * (others > 1)}"
        lines.append(f"to leave refused partitions out and submit the {rest}: {flag('skip_refused')}")
    error: type[AutothrottleError] = refused[0].kind.value[0]
    return error("\n".join(lines))


def _sentence(reason: str, rows: Sequence[TopicPartition]) -> str:
    is_one = len(rows) == 1
    verbs = {"do": "does", "are": "is", "have": "has"} if is_one else {"do": "do", "are": "are", "have": "have"}
    names = excerpt([named(row) for row in rows], _SHOWN_PARTITIONS)
    return reason.format(escape_unprintable(names), **verbs)


def _gigabytes(size: int) -> str:
    return f"{size / _GIGABYTE:.2f} GB"
