"""`topicmappr capacity`: how many brokers of which instance type a workload needs, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from autothrottle.core.capacity.sizing import (
    CapacityPlan,
    InstanceType,
    RecoveryGoal,
    UsableShares,
    Workload,
    capacity_plan,
    check_inputs,
)
from autothrottle.core.errors import Invalid
from autothrottle.core.placement.partition_map import PartitionReplicas, TopicPartitionKey, matching_topics
from autothrottle.runtime.configuration_reader import InvalidConfiguration
from autothrottle.runtime.regular_expressions import compile_pattern
from autothrottle.topicmappr.options import CapacityOptions
from autothrottle.topicmappr.sources import measured_cluster
from autothrottle_client.instance_file import read_instance_file
from autothrottle_client.plan_options import capacity_flag, given_workload


def plan_capacity(options: CapacityOptions, workload: Workload, instances: Sequence[InstanceType]) -> CapacityPlan:
    """Return the brokers that a workload needs.

    Raises:
        Invalid: a value is out of its range, or no instance type suffices.
    """
    shares = UsableShares(
        storage=options.storage_share,
        network_in=options.network_share,
        network_out=options.network_share,
        disk=options.disk_share,
        partitions=options.broker_partitions,
    )
    goal = RecoveryGoal(options.survive, options.racks, options.recover_onto, options.recover_within, options.max_rate)
    check_inputs(workload, instances, shares, goal, capacity_flag)
    return capacity_plan(workload, instances, shares, goal)


def workload_of(options: CapacityOptions) -> Workload:
    """Return the workload that the options describe.

    Raises:
        InvalidConfiguration: required options are absent, or two contradict each other.
    """
    workload, problems = given_workload(options)
    if workload is None:
        raise InvalidConfiguration(problems)
    return workload


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
