"""`topicmappr capacity`: how many brokers of which instance type a workload needs, and what they cost.

`plan_capacity` computes, `capacity_report` prints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from autothrottle.core.capacity.sizing import (
    FACTORS,
    MOST_BROKERS,
    CapacityPlan,
    Dimension,
    InstanceType,
    RecoveryGoal,
    Sizing,
    UsableShares,
    Workload,
    capacity_plan,
)
from autothrottle.core.errors import Invalid
from autothrottle.core.placement.partition_map import PartitionReplicas, TopicPartitionKey, matching_topics
from autothrottle.core.texts import escape_unprintable
from autothrottle.runtime.configuration_reader import InvalidConfiguration
from autothrottle.runtime.regular_expressions import compile_pattern
from autothrottle.topicmappr.options import CapacityOptions
from autothrottle.topicmappr.report import table
from autothrottle.topicmappr.sources import measured_cluster
from autothrottle_client.instance_file import read_instance_file
from autothrottle_client.texts import span

DEFAULT_REPLICATION = 3


def plan_capacity(options: CapacityOptions, workload: Workload, instances: Sequence[InstanceType]) -> CapacityPlan:
    """Return the brokers that a workload needs.

    Raises:
        Invalid: no instance type suffices.
    """
    shares = UsableShares(
        storage=options.storage_share,
        network_in=options.network_share,
        network_out=options.network_share,
        disk=options.disk_share,
        partitions=options.broker_partitions,
    )
    goal = RecoveryGoal(options.survive, options.racks, options.recover_onto, options.recover_within, options.max_rate)
    return capacity_plan(workload, instances, shares, goal)


def given_workload(options: CapacityOptions) -> Workload:
    """Return the workload that the options describe.

    Raises:
        InvalidConfiguration: required options are absent, or two contradict each other.
    """
    problems = [
        f"{name} is not given; it must be {form}. Fix: --{name}={example}, or a line in the file of --config"
        for name, value, form, example in (
            ("bytes-in", options.bytes_in, "the rate at which clients produce at peak", "200MB/s"),
            ("retention", options.retention, "the time for which records are kept", "24 (hours)"),
        )
        if not value
    ]
    if options.bytes_out and options.fan_out is not None:
        problems.append("fan-out and bytes-out are both given. Fix: leave one out")
    if options.mean_bytes_in and options.bytes_in and options.mean_bytes_in > options.bytes_in:
        problems.append("mean-bytes-in is larger than bytes-in, which is the peak. Fix: correct one of them")
    if problems:
        raise InvalidConfiguration(problems)
    fan_out = options.bytes_out / options.bytes_in if options.bytes_out else options.fan_out
    return Workload(
        bytes_in=options.bytes_in,
        retention=options.retention,
        mean_bytes_in=options.mean_bytes_in or None,
        fan_out=1.0 if fan_out is None else fan_out,
        replication=options.replication or DEFAULT_REPLICATION,
        partitions=options.partitions,
        growth=options.growth,
        months=options.months,
    )


def measured_options(options: CapacityOptions) -> tuple[CapacityOptions, tuple[str, ...]]:
    """Return the options with what a running cluster shows, and notes about it. Options that are given stay.

    The brokers report log sizes and not what consumers read.

    Raises:
        Invalid: the options name a cluster file, or no log grew.
        Unavailable, Missing, Incomplete: the cluster cannot be read.
    """
    if options.cluster_file:
        raise Invalid("--from-cluster measures a running cluster, and --cluster-file is an offline one; leave one out")
    cluster, rates, seconds = measured_cluster(options, options.sample)
    topics = frozenset(
        matching_topics({p.topic for p in cluster.partitions}, options.topics or (".*",), compile=compile_pattern)
    )
    return with_measured(options, [entry for entry in cluster.partitions if entry.topic in topics], rates, seconds)


def with_measured(
    options: CapacityOptions,
    partitions: Sequence[PartitionReplicas],
    rates: Mapping[TopicPartitionKey, float],
    seconds: float,
) -> tuple[CapacityOptions, tuple[str, ...]]:
    """Return the options with the workload of some partitions, whose growth was measured for `seconds`, and notes.

    Raises:
        Invalid: no log grew, or no partition has a known size.
    """
    growth = sum(rates.get(partition.key, 0.0) for partition in partitions)
    stored = sum(partition.size or 0 for partition in partitions)
    bytes_in = options.bytes_in or growth
    if not bytes_in or not stored:
        raise Invalid(
            f"no log grew in {seconds:.0f} s, so the workload is unknown. Fix: give --bytes-in, or a longer --sample"
        )
    replicas = [len(partition.replicas) for partition in partitions]
    measured = replace(
        options,
        bytes_in=bytes_in,
        retention=options.retention or timedelta(seconds=stored / (options.mean_bytes_in or bytes_in)),
        replication=options.replication or max(replicas),
        partitions=options.partitions or len(replicas),
    )
    note = (
        f"Measured in {seconds:.0f} s: {len(partitions)} partitions with {stored / 1e9:.2f} GB grew by "
        f"{growth / 1e6:.2f} MB/s. Give --bytes-in for the peak, and --fan-out: brokers do not report it"
    )
    return measured, (note,)


def read_instances(path: str) -> tuple[InstanceType, ...]:
    """Return the instance types of a CSV file.

    Raises:
        InvalidConfiguration: the file cannot be read, or entries are invalid; it has one message for each problem.
    """
    instances, problems = read_instance_file(path)
    if problems:
        raise InvalidConfiguration(problems)
    return instances


def capacity_report(plan: CapacityPlan) -> str:
    """Return the plan as text."""
    workload, best = plan.workload, plan.cheapest
    growth = f", after {workload.months:g} months" if workload.months and workload.growth else ""
    lines = [
        "Workload:",
        f"  {workload.peak / 1e6:.1f} MB/s produced at peak{growth}; consumers read {workload.fan_out:g} times as much",
        f"  {workload.replication} replicas, {_hours(workload.retention)} retention: "
        f"{workload.stored * workload.replication / 1e12:.2f} TB in all",
        *(f"  {note}" for note in plan.notes),
        "Brokers:",
        *table([_HEAD, *map(_row, plan.sizings)]),
        f"Cheapest: {_choice(best)} per month, limited by {best.limit.value}",
        "Cheapest if one input grows:",
        *table([("input", *(f"x{factor:g}" for factor in FACTORS)), *_larger_rows(plan)]),
    ]
    return "\n".join(lines)


_HEAD = ("instance type", *(dimension.value for dimension in Dimension), "brokers", "limit", "copy time", "per month")


def _row(sizing: Sizing) -> tuple[str, ...]:
    counts = (str(sizing.counts[dimension]) for dimension in Dimension)
    copy_time = span(sizing.recovery_seconds) if sizing.recovery_seconds else "-"
    price = f"{sizing.price:,.0f}"
    return escape_unprintable(sizing.instance.name), *counts, str(sizing.brokers), sizing.limit.value, copy_time, price


def _larger_rows(plan: CapacityPlan) -> Iterator[tuple[str, ...]]:
    for name, sizings in plan.larger.items():
        yield name, *map(_choice, sizings)


def _choice(sizing: Sizing | None) -> str:
    if sizing is None:
        return f"more than {MOST_BROKERS:,} brokers"
    return f"{sizing.brokers} x {escape_unprintable(sizing.instance.name)}, {sizing.price:,.0f}"


def _hours(duration: timedelta) -> str:
    return f"{duration.total_seconds() / 3600:g} h"
