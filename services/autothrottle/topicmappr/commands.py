"""The planning commands as pure functions of their options and a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autothrottle.core.errors import Invalid, Missing
from autothrottle.core.forecast.eta import move_ratio
from autothrottle.core.placement.brokers import ALL_REGISTERED, BrokerSelection, select_brokers
from autothrottle.core.placement.leadership import leadership_evacuation
from autothrottle.core.placement.partition_map import (
    PartitionMap,
    PartitionReplicas,
    TopicPartitionKey,
    matching_topics,
    ordered,
    unmatched_patterns,
    without_no_ops,
)
from autothrottle.core.placement.plan import (
    PlacementPlan,
    RebalanceOptions,
    RebuildOptions,
    Strategy,
    steps,
)
from autothrottle.core.placement.rebalance import decommission, rebalance, relieve, scale
from autothrottle.core.placement.rebuild import rebuild
from autothrottle.ports.services import PlacementCluster
from autothrottle.runtime.regular_expressions import compile_pattern
from autothrottle.topicmappr.options import (
    DecommissionCommandOptions,
    PlanningOptions,
    RebalanceCommandOptions,
    RebuildCommandOptions,
    RelieveCommandOptions,
    ScaleCommandOptions,
)
from autothrottle_client.reassignments import parse_reassignment


@dataclass(frozen=True, slots=True)
class Result:
    """A plan with everything that the report shows."""

    topics: tuple[str, ...]
    topics_excluded: tuple[str, ...]
    selection: BrokerSelection
    plan: PlacementPlan
    maps: tuple[PartitionMap, ...]
    """The maps to execute, in this order; empty maps are left out."""
    actions: tuple[str, ...] = ()
    """What a rebuild does, one phrase each."""
    warnings: tuple[str, ...] = ()
    """Sorted; of the plan and of the brokers."""
    needs_consent: bool = False
    """Some of the warnings need --ignore-warns; those that refuse the plan are in `plan.refusals`."""
    notes: tuple[str, ...] = ()
    """Of the plan, and about patterns that match no topic."""
    total_partitions: int = 0
    """Partitions of the cluster, or of the map if no cluster is in use."""

    @property
    def move_ratio(self) -> float:
        """KIP-73's MoveRatio, in [0, 1]."""
        return move_ratio(self.plan.partitions_to_copy, self.total_partitions)


def needs_metrics(options: PlanningOptions) -> bool:
    """Return whether a command needs partition sizes and free storage."""
    return not isinstance(options, RebuildCommandOptions) or options.placement is Strategy.STORAGE


def needs_cluster(options: PlanningOptions) -> bool:
    """Return whether a command needs a cluster at all."""
    return not isinstance(options, RebuildCommandOptions) or options.use_meta or not options.map_string


def check_plan_options(options: PlanningOptions) -> None:
    """Check the options of a plan, which needs no cluster.

    Raises:
        Invalid: options are missing or contradict each other.
    """
    if isinstance(options, RebuildCommandOptions):
        _check_rebuild(options)
    elif not options.topics:
        raise Invalid("no topic is given; give --topics, '.*' for all topics")
    if not options.brokers:
        raise Invalid("no broker is given; give --brokers, -1 for all brokers of the map")
    repeated = [id for id, count in Counter(options.brokers).items() if count > 1]
    if repeated:
        raise Invalid(f"--brokers names {repeated[0]} twice; name every broker once")


def plan_rebuild(options: RebuildCommandOptions, cluster: PlacementCluster | None) -> Result:
    """Return the result of `rebuild`; cluster None: the map and the brokers of the options are all that is known.

    Raises:
        Invalid: options are missing or contradict each other.
        Missing: no topic matches.
    """
    partitions = _partitions(options, cluster)
    if cluster and options.placement is Strategy.STORAGE:
        cluster.require_clear_sizes({partition.topic for partition in partitions})
    selection = select_brokers(partitions, options.brokers, cluster.brokers if cluster and options.use_meta else None)
    evacuation = leadership_evacuation(
        partitions, options.leader_evac_brokers, options.leader_evac_topics, compile_pattern
    )
    plan = rebuild(
        partitions,
        selection.brokers,
        RebuildOptions(
            strategy=options.placement,
            optimization=options.optimize,
            force=options.force_rebuild,
            replication_factor=options.replication,
            substitution_affinity=options.sub_affinity,
            min_rack_ids=options.min_rack_ids,
            allow_fewer_racks=options.allow_fewer_racks,
            partition_size_factor=options.partition_size_factor,
            optimize_leadership=options.optimize_leadership,
            evacuation=evacuation,
        ),
    )
    maps = _maps(options, plan)
    return _result(options, cluster, selection, plan, maps, _actions(options, selection))


def plan_rebalance(options: RebalanceCommandOptions | ScaleCommandOptions, cluster: PlacementCluster) -> Result:
    """Return the result of `rebalance` or `scale`, whose maps hold only partitions that change.

    Raises:
        Invalid: options are missing, a listed broker is unknown, or a broker of the map is not listed.
        Missing: no topic matches.
    """
    partitions = _partitions(options, cluster)
    cluster.require_clear_sizes({partition.topic for partition in partitions})
    selection = select_brokers(partitions, options.brokers, cluster.brokers)
    if selection.missing or selection.replaced:
        raise Invalid(f"reassignment only allows broker additions: {'; '.join(selection.messages)}")
    rebalance_options = replace(
        _rules(options),
        tolerance=options.tolerance,
        partition_limit=options.partition_limit,
        partition_size_threshold=options.partition_size_threshold,
        locality_scoped=options.locality_scoped,
    )
    if isinstance(options, RebalanceCommandOptions):
        threshold, floor = options.storage_threshold, options.storage_threshold_gb
        rebalance_options = replace(rebalance_options, storage_threshold=threshold, storage_threshold_bytes=floor)
        plan = rebalance(partitions, selection.brokers, rebalance_options)
    else:
        plan = scale(partitions, selection.brokers, rebalance_options)
    return _result(options, cluster, selection, plan, (without_no_ops(plan.old_map, plan.new_map),))


def plan_decommission(options: DecommissionCommandOptions, leaving: Sequence[int], cluster: PlacementCluster) -> Result:
    """Return the result of `decommission`: all topics and all brokers of the cluster unless the options name some.

    Raises:
        Invalid: a leaving broker is unknown, or none would remain.
        Missing: no topic matches.
    """
    options = replace(options, topics=options.topics or (".*",), brokers=options.brokers or (ALL_REGISTERED,))
    partitions = _partitions(options, cluster)
    selection = select_brokers(partitions, (*options.brokers, *leaving), cluster.brokers)
    plan = decommission(partitions, selection.brokers, leaving, _rules(options))
    actions = (f"Moving all replicas away from {len(leaving)} broker(s)",)
    return _result(options, cluster, selection, plan, (without_no_ops(plan.old_map, plan.new_map),), actions)


def plan_relief(
    options: RelieveCommandOptions, full: int, cluster: PlacementCluster, growth: Mapping[TopicPartitionKey, float]
) -> Result:
    """Return the result of `relieve`: all topics and all brokers of the cluster unless the options name some.

    Raises:
        Invalid: the broker, a size, free storage or the storage of the broker is unknown.
        Missing: no topic matches.
    """
    if full not in cluster.storage_total:
        raise Invalid(f"the storage of broker {full} is unknown. Fix: --metrics-source kafka, with Kafka 3.3 or later")
    options = replace(options, topics=options.topics or (".*",), brokers=options.brokers or (ALL_REGISTERED,))
    partitions = _partitions(options, cluster)
    cluster.require_clear_sizes({partition.topic for partition in partitions if full in partition.replicas})
    selection = select_brokers(partitions, (*options.brokers, full), cluster.brokers)
    reserves = {id: round((1 - options.to) * total) for id, total in cluster.storage_total.items()}
    plan = relieve(partitions, selection.brokers, full, reserves, growth, _rules(options))
    actions = (f"Moving replicas away from broker {full} until it uses {options.to:.0%} of its storage",)
    return _result(options, cluster, selection, plan, (without_no_ops(plan.old_map, plan.new_map),), actions)


def _rules(options: PlanningOptions) -> RebalanceOptions:
    """Return what all plans but a rebuild have in common."""
    return RebalanceOptions(
        min_rack_ids=options.min_rack_ids,
        allow_fewer_racks=options.allow_fewer_racks,
        optimize_leadership=options.optimize_leadership,
    )


def _check_rebuild(options: RebuildCommandOptions) -> None:
    if not options.topics and not options.map_string:
        raise Invalid("must specify either --topics or --map-string")
    if options.placement is Strategy.STORAGE and not options.use_meta:
        raise Invalid("--placement=storage requires --use-meta=true")
    if options.force_rebuild and options.sub_affinity:
        raise Invalid("--force-rebuild disables --sub-affinity; leave one of them out")
    if bool(options.leader_evac_brokers) != bool(options.leader_evac_topics):
        raise Invalid("--leader-evac-brokers and --leader-evac-topics must be given together")


def _partitions(options: PlanningOptions, cluster: PlacementCluster | None) -> PartitionMap:
    check_plan_options(options)
    partitions = cluster.partitions if cluster else ()
    if isinstance(options, RebuildCommandOptions) and options.map_string:
        sizes = {partition.key: partition.size for partition in partitions}
        targets = parse_reassignment(options.map_string)
        return ordered(PartitionReplicas(*row, replicas, sizes.get(row)) for row, replicas in targets.items())
    topics = {partition.topic for partition in partitions}
    names = frozenset(matching_topics(topics, options.topics, options.topics_exclude, compile_pattern))
    if not names:
        raise Missing(f"no topic of the cluster matches --topics {','.join(options.topics)}; it has {len(topics)}")
    return ordered(partition for partition in partitions if partition.topic in names)


def _maps(options: RebuildCommandOptions, plan: PlacementPlan) -> tuple[PartitionMap, ...]:
    maps = steps(plan, options.phased_reassignment, options.chunk_step_size)
    if not options.skip_no_ops:
        return maps
    return tuple(without_no_ops(old, new) for old, new in zip((plan.old_map, *maps), maps, strict=False))


def _actions(options: RebuildCommandOptions, selection: BrokerSelection) -> tuple[str, ...]:
    change = selection.added - selection.replaced
    fix = "(this is a no-op unless --force-rebuild is specified)"
    actions = {
        f"Rebuild topic with {selection.replaced} broker(s) marked for replacement": change >= 0 and selection.replaced,
        f"Expanding/rebalancing topic with {change} additional broker(s) {fix}": change > 0 and not selection.replaced,
        f"Shrinking topic by {-change} broker(s)": change < 0,
        "Force rebuilding map": options.force_rebuild,
        f"Setting replication factor to {options.replication}": options.replication,
        "Optimizing leader/follower ratios": options.optimize_leadership,
    }
    return tuple(action for action, applies in actions.items() if applies) or ("no-op",)


def _result(
    options: PlanningOptions,
    cluster: PlacementCluster | None,
    selection: BrokerSelection,
    plan: PlacementPlan,
    maps: Iterable[PartitionMap],
    actions: tuple[str, ...] = (),
) -> Result:
    topics = tuple(sorted({partition.topic for partition in plan.old_map}))
    cluster_topics = {partition.topic for partition in cluster.partitions} if cluster else set()
    patterns = options.topics_exclude
    excluded = matching_topics(cluster_topics, patterns, compile=compile_pattern) if patterns else ()
    unaccepted = [text for text in plan.warnings if text not in (*plan.refusals, *plan.accepted_warnings)]
    if selection.missing:
        unaccepted.append(f"{selection.missing} provided brokers not found in the cluster")
    if selection.rack_missing:
        unaccepted.append(f"{selection.rack_missing} provided broker(s) do(es) not have a rack.id defined")
    nonempty_maps = tuple(partition for partition in maps if partition)
    return Result(
        topics=topics,
        topics_excluded=excluded,
        selection=selection,
        plan=plan,
        maps=nonempty_maps,
        actions=actions,
        warnings=tuple(sorted([*plan.refusals, *plan.accepted_warnings, *unaccepted])),
        needs_consent=bool(unaccepted),
        notes=(*plan.notes, *_unmatched(options, cluster_topics or topics, topics)),
        total_partitions=len(cluster.partitions) if cluster else len(plan.old_map),
    )


def _unmatched(options: PlanningOptions, cluster_topics: Collection[str], topics: Collection[str]) -> Iterator[str]:
    """Return a sentence for each pattern without a topic; evacuations are compared with the topics of the plan."""
    lists = [("topics", options.topics, cluster_topics), ("topics-exclude", options.topics_exclude, cluster_topics)]
    if isinstance(options, RebuildCommandOptions):
        evacuated = ("leader-evac-topics", options.leader_evac_topics, topics)
        lists = [evacuated] if options.map_string else [*lists, evacuated]
    for name, patterns, names in lists:
        for pattern in unmatched_patterns(names, patterns, compile_pattern):
            yield f"--{name} {pattern!r} matches no topic"
