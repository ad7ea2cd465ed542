"""What is wrong with a deployment before its first reassignment: findings and facts from readings.

The command `check` reads, and these functions judge. Each function judges every resource on its own. Sentences of the
metrics source and of the planner stay as they are: `finding` splits them into subject, value and fix. The type to know
is `Finding`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from autothrottle.core.cluster.configs import ClusterSettings, ReplicaRole
from autothrottle.core.cluster.snapshot import Snapshot, TopicReassignment
from autothrottle.core.placement.partition_map import PartitionReplicas
from autothrottle.core.policy.adaptive import OLD_SECONDS
from autothrottle.core.policy.headroom import headroom
from autothrottle.core.policy.interface import Limits, Policy
from autothrottle.core.texts import excerpt, id_ranges, without_numbers
from autothrottle.core.throttles.guards import large_responses
from autothrottle.core.throttles.ownership import foreign_throttles
from autothrottle.core.throttles.plan import plan
from autothrottle.core.traffic.loads import BrokerLoad, Loads
from autothrottle.core.units import BytesPerSecond, megabytes_per_second

_DIRECTIONS = {ReplicaRole.LEADER: "outbound", ReplicaRole.FOLLOWER: "inbound"}
_SUBJECT = re.compile(r"broker (\d+)(?: \[(?:leader|follower)\])?:? (?=\S)")
_FIX = re.compile(r"[.;,]? Fix: |\. (?=If )")
_TOPICS_SHOWN = 3
_EXAMPLE = re.compile(", such as |(?<=although nothing moves): ")
"""What follows differs between resources with the same finding."""
_FACTS_SHOWN = 20
"""Brokers or topics with facts of one kind that the text lists, one line each."""
_LEAST_GROWTH, _LEAST_SURPLUS = 1_000_000, 10_000_000
"""Smaller rates, bytes/s, are not compared with the growth of the logs."""
_LEAST_SHARE_OF_GROWTH, _MOST_OF_GROWTH = 2 / 3, 3
"""A load outside of these multiples of the growth of the logs does not fit it."""
_RANGES_SHOWN, _NAMES_SHOWN = 10, 5


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `autothrottle check`."""

    subject: str
    """The resource, such as `broker 1003`, `topic payments`, `metrics` or `/config/changes`."""
    value: str
    """What is wrong with it, or a fact about it."""
    fix: str = ""
    """What the operator can do; "": the value is a fact, and nothing is wrong."""


def finding(subject: str, sentence: str, otherwise: str = "see docs/runbook.md") -> Finding:
    """Return the finding in a sentence of the product. The subject is the broker with which the sentence begins.

    `otherwise` is the fix of a sentence without one.

    >>> finding("metrics", "broker 7 has no sample; check --scrape-url")
    Finding(subject='broker 7', value='has no sample', fix='check --scrape-url')
    """
    if broker := _SUBJECT.match(sentence):
        subject, sentence = f"broker {broker[1]}", sentence[broker.end() :]
    text = sentence.strip().rstrip(".")
    parts = _FIX.split(text, maxsplit=1)
    if len(parts) == 1:
        parts = text.rsplit("; ", 1)
    fix = re.sub("^If ", "if ", parts[1]) if len(parts) == 2 else otherwise
    return Finding(subject, parts[0].rstrip("."), fix)


def one_line_per_cause(lines: Iterable[Finding]) -> list[Finding]:
    """Return the findings of several brokers or topics with one cause as one finding, at the place of the first.

    Two findings have one cause if they differ only in numbers, in the name of their resource, and in what follows "such
    as". The first one stands for all. Facts of brokers or topics are joined if they are equal. Of facts that differ,
    the first 20 of a kind are kept.

    >>> [line] = one_line_per_cause(Finding(f"broker {b}", f"has {b} GB", "buy more") for b in (7, 8, 9, 12))
    >>> line.subject, line.value
    ('each of 4 brokers [7-9 12], such as 7', 'has 7 GB')
    """
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for line in lines:
        groups.setdefault(_cause(line), []).append(line)
    facts: Counter[tuple[str, ...]] = Counter()
    shown: list[Finding] = []
    for group in groups.values():
        first = group[0]
        if first.fix or not _is_of_many(first):
            shown.append(_joined(group))
            continue
        kind = (first.subject.split()[0], without_numbers(first.value))
        facts[kind] += 1
        if facts[kind] <= _FACTS_SHOWN:
            shown.append(_joined(group))
    more = sum(max(0, count - _FACTS_SHOWN) for count in facts.values())
    if more:
        shown.append(Finding("brokers", f"{more} more facts that differ only in numbers; --output json has all"))
    return shown


def _is_of_many(line: Finding) -> bool:
    return line.subject.startswith(("broker ", "topic "))


def _cause(line: Finding) -> tuple[str, ...]:
    if not _is_of_many(line):
        return line.subject, line.value, line.fix
    kind, _, name = line.subject.partition(" ")
    if not line.fix:
        return kind, line.value, ""
    texts = (t.replace(re.escape(name), "#").replace(name, "#") for t in (_EXAMPLE.split(line.value)[0], line.fix))
    return kind, *map(without_numbers, texts)


def _joined(group: Sequence[Finding]) -> Finding:
    """Return one finding for all resources of a group."""
    first = group[0]
    if len(group) == 1:
        return first
    kind, _, name = first.subject.partition(" ")
    names = list(dict.fromkeys(line.subject.partition(" ")[2] for line in group))
    ids = [int(number) for number in names if number.isdecimal()]
    listed = id_ranges(ids, _RANGES_SHOWN) if len(ids) == len(names) else excerpt(names, _NAMES_SHOWN, " ")
    differ = len({(line.value, line.fix) for line in group}) > 1
    example = f", such as {name}" if differ and len(names) > 1 else ""
    subject = f"each of {len(names)} {kind}s [{listed}]{example}" if len(names) > 1 else first.subject
    return Finding(subject, first.value, first.fix)


def loads_inspected(loads: Loads, registered: Collection[int], limits: Limits, now: datetime) -> Iterator[Finding]:
    """Yield what the metrics source reports of each broker: its load and age, capacity and devices, or what is missing.

    Args:
        loads: the newest sample.
        registered: ids of the brokers in Kafka; (): unknown.
        limits: the operator's limits.
        now: UTC.
    """
    for broker_id in sorted({*registered, *loads.brokers, *loads.problems}):
        if load := loads.brokers.get(broker_id):
            yield from _load(load, limits, now)
        elif broker_id in loads.problems:
            yield finding(f"broker {broker_id}", loads.problems[broker_id])
        else:
            fix = "check that it runs, and that its host has the tag or label with its id, see docs/metrics-sources.md"
            yield Finding(f"broker {broker_id}", "has no series in the metrics source", fix)
        if devices := loads.devices.get(broker_id):
            yield Finding(f"broker {broker_id}", f"network devices that count: {', '.join(devices)}")
    yield from (finding("metrics", warning) for warning in loads.warnings)


def growth_compared(loads: Loads, growth: Loads) -> Iterator[Finding]:
    """Yield brokers whose load in the metrics source does not fit the growth of their logs.

    What a log gains has crossed the link of its broker, and that of the leader for a follower. So a load below it is
    not that of the link. One far above it may be right, if other programs of the host receive much.

    Args:
        loads: the newest sample of the metrics source.
        growth: loads from the growth of the logs, without consumers.
    """
    fix = (
        "compare both again under a steady load, and check that the series are those of this broker, and whether they "
        "are counters or rates, see --broker-series-kind"
    )
    for broker_id in sorted(loads.brokers.keys() & growth.brokers.keys()):
        load, grown = loads.brokers[broker_id], growth.brokers[broker_id]
        for role, way in _DIRECTIONS.items():
            measured, least = load.of(role).rate, grown.of(role).rate
            if least >= _LEAST_GROWTH and measured < _LEAST_SHARE_OF_GROWTH * least:
                value = f"{way} load is {megabytes_per_second(measured)}, and the growth of the logs shows at least"
                yield Finding(f"broker {broker_id}", f"{value} {megabytes_per_second(least)}", fix)
        measured, gained = load.inbound.rate, grown.inbound.rate
        if measured >= _LEAST_SURPLUS and measured > _MOST_OF_GROWTH * gained:
            value = (
                f"inbound load is {megabytes_per_second(measured)}, and its logs grow by {megabytes_per_second(gained)}"
            )
            devices = "check which devices and series count; if other programs of its host receive so much, it is right"
            yield Finding(f"broker {broker_id}", value, devices)


def _load(load: BrokerLoad, limits: Limits, now: datetime) -> Iterator[Finding]:
    subject = f"broker {load.broker_id}"
    age = max((now - max(load.outbound.end, load.inbound.end)) / timedelta(seconds=1), 0)
    rates = {role: load.of(role).rate for role in ReplicaRole}
    yield Finding(subject, f"load {_both(rates)}, measured until {age:.0f} s ago")
    yield Finding(subject, f"capacity {_both({role: load.capacity.of(role) for role in ReplicaRole})}{_origin(load)}")
    # The original's formula, for a load without replication. The link limits a floor above its capacity.
    free = {
        role: min(
            headroom(rate, 0, load.capacity.of(role), limits.max_ratio[role], limits.floor), load.capacity.of(role)
        )
        for role, rate in rates.items()
    }
    yield Finding(subject, f"if this is the load of clients, replication gets {_both(free)}")
    if age > OLD_SECONDS:
        fix = "let the metrics source deliver newer samples, or choose --metrics-source scrape"
        yield Finding(subject, f"the load was measured {age:.0f} s ago; the margins for clients grow with the age", fix)
    yield from _implausible_capacity(load, limits, rates)


def _implausible_capacity(
    load: BrokerLoad, limits: Limits, rates: Mapping[ReplicaRole, BytesPerSecond]
) -> Iterator[Finding]:
    """Yield capacities below the load or below the lowest throttle; both directions of a common one are one finding."""
    subject, origin = f"broker {load.broker_id}", load.capacity.origin
    option = origin.split()[0] if origin.startswith("--") else "--broker-cap-map"
    fix = f"correct the capacity with {option}, or name the devices of the link with --net-devices"
    roles_of_capacity: dict[BytesPerSecond, list[ReplicaRole]] = {}
    for role in _DIRECTIONS:
        roles_of_capacity.setdefault(load.capacity.of(role), []).append(role)
    for capacity, roles in roles_of_capacity.items():
        way = "" if len(roles) > 1 else f"{_DIRECTIONS[roles[0]]} "
        shown = f"{way}capacity of {megabytes_per_second(capacity)}{_origin(load)}"
        if above := [f"{megabytes_per_second(rates[r])} {_DIRECTIONS[r]}" for r in roles if rates[r] > capacity]:
            yield Finding(subject, f"carries {' and '.join(above)}, more than its {shown}", fix)
        elif capacity < limits.min_rate:
            value = f"its {shown}{',' * bool(origin)} is below --min-rate, {megabytes_per_second(limits.min_rate)}"
            yield Finding(subject, value, f"{fix}, or lower --min-rate")


def _origin(load: BrokerLoad) -> str:
    return f", from {load.capacity.origin}" if load.capacity.origin else ""


def _both(rates: Mapping[ReplicaRole, BytesPerSecond]) -> str:
    """Return the rates of both directions; a common one once."""
    shown = {role: megabytes_per_second(rate) for role, rate in rates.items()}
    if len({*shown.values()}) == 1:
        return next(iter(shown.values()))
    return ", ".join(f"{shown[role]} {way}" for role, way in _DIRECTIONS.items())


def registrations_inspected(registered: Collection[int], partitions: Iterable[PartitionReplicas]) -> Iterator[Finding]:
    """Yield brokers that have replicas and are not registered: they are down, or were removed.

    Args:
        registered: ids of the brokers in Kafka.
        partitions: the partitions of the cluster.
    """
    counts = Counter(broker_id for entry in partitions for broker_id in entry.replicas if broker_id >= 0)
    for broker_id in sorted(counts.keys() - registered):
        fix = "start it, or move its replicas away with topicmappr rebuild"
        yield Finding(f"broker {broker_id}", f"is not registered and has {counts[broker_id]} replicas", fix)


def racks_inspected(racks: Mapping[int, str], partitions: Iterable[PartitionReplicas]) -> Iterator[Finding]:
    """Yield brokers without a rack while others have one, and topics whose replicas share racks without need.

    Args:
        racks: broker id -> its rack; "": it has none.
        partitions: the partitions of the cluster.
    """
    names = {rack for rack in racks.values() if rack}
    if not racks:
        return
    if not names:
        yield Finding("racks", "no broker has a rack, so placement plans do not separate replicas by rack")
        return
    shown = excerpt(sorted(names), _TOPICS_SHOWN)
    yield Finding("racks", f"{sum(map(bool, racks.values()))} of {len(racks)} brokers are in racks: {shown}")
    for broker_id in sorted(broker_id for broker_id, rack in racks.items() if not rack):
        value = "has no rack, although other brokers have one; a plan may put all replicas of its partitions into one"
        yield Finding(f"broker {broker_id}", value, "set broker.rack in its server.properties, and restart it")
    counts: dict[str, int] = {}
    shared: dict[str, list[PartitionReplicas]] = {}
    for entry in partitions:
        counts[entry.topic] = counts.get(entry.topic, 0) + 1
        if _shares_a_rack(entry.replicas, racks, len(names)):
            shared.setdefault(entry.topic, []).append(entry)
    for topic, entries in sorted(shared.items()):
        first = entries[0]
        where = ", ".join(f"{broker_id} in {racks.get(broker_id) or 'none'}" for broker_id in first.replicas)
        value = f"{len(entries)} of {counts[topic]} partitions have replicas that share a rack"
        fix = f"topicmappr rebuild --topics '^{re.escape(topic)}$' --brokers -2 --force-rebuild"
        yield Finding(f"topic {topic}", f"{value}, such as partition {first.partition} on brokers {where}", fix)


def _shares_a_rack(replicas: Collection[int], racks: Mapping[int, str], rack_count: int) -> bool:
    """Return whether replicas share a rack although there are racks without one of them."""
    named = [racks[broker_id] for broker_id in replicas if racks.get(broker_id)]
    return len({*named}) < min(len(named), rack_count)


def fetches_inspected(
    partitions: Iterable[PartitionReplicas],
    loads: Loads,
    settings: ClusterSettings,
    limits: Limits,
    policy: Policy,
) -> Iterator[Finding]:
    """Yield the brokers whose fetch responses would be too large if all their replicas were copied now.

    Each follower copies from the preferred leaders of its partitions, at the rates that the planner would give. This
    is the load of a broker that is replaced. Brokers without settings or without a load are left out.

    Args:
        partitions: the partitions of the cluster.
        loads: the newest sample of the metrics source.
        settings: the brokers' settings.
        limits: the operator's limits.
        policy: a policy without learned state.
    """
    judged = settings.brokers.keys() & (loads.brokers if policy.fixed_rate is None else settings.brokers).keys()
    pairs = sorted(
        {(e.replicas[0], b) for e in partitions for b in e.replicas[1:] if b in judged and e.replicas[0] >= 0}
    )
    leaders, followers = tuple(leader for leader, _ in pairs), tuple((follower,) for _, follower in pairs)
    isr, removing = tuple((leader,) for leader in leaders), ((),) * len(pairs)
    copies = TopicReassignment("all", tuple(range(len(pairs))), leaders, isr, followers, removing)
    snapshot = Snapshot(1, frozenset(leaders), (copies,) if pairs else ())
    decided = plan(snapshot, loads, limits, policy=policy)
    for response in large_responses(decided, snapshot, settings):  # the first one fits all
        answer = finding("fetch sizes", response.warning())
        yield Finding(answer.subject, f"if all its replicas were copied now, {answer.value}", answer.fix)


def snapshot_inspected(snapshot: Snapshot) -> Iterator[Finding]:
    """Yield what the planner finds in the cluster: unreadable parts, and throttles that other parties left."""
    for problem in (*snapshot.problems, *snapshot.unreadable_configs.values()):
        yield finding(_resource(problem.path), problem.reason)
    moving = len(snapshot.reassignments)
    yield Finding("Kafka", f"{len(snapshot.brokers)} brokers; topics in reassignment: {moving}")
    for resource, keys in foreign_throttles(snapshot).items() if not moving else ():
        shown = ", ".join(f"{key}={value[:60]}" for key, value in keys.items())
        fix = "remove it, or give --cleanup-foreign, which removes it after --cleanup-after intervals"
        yield Finding(
            _resource(resource.path),
            f"a throttle of another party is set, although nothing moves: {shown}",
            fix,
        )
    for key, value in snapshot.default_throttles.items():
        fix = "remove it from the default broker config, unless it is intended"
        yield Finding("broker <default>", f"a throttle of another party is set: {key}={value[:60]}", fix)


def _resource(path: str) -> str:
    """Return `broker 1003` for the entity path `brokers/1003`; a znode stays as it is."""
    return re.sub(r"^(broker|topic)s/", r"\1 ", path)
