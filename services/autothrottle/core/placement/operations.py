"""The operations of an operator on a cluster. `topicmappr` runs them, and the placement service does.

`check_options` checks options before a cluster is read; `plan_placement` plans. The type to know is `PlacementResult`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from autothrottle.core.errors import Invalid, Missing
from autothrottle.core.placement.brokers import ALL_REGISTERED, BrokerSelection, select_brokers
from autothrottle.core.placement.cluster import PlacementCluster
from autothrottle.core.placement.leadership import leadership_evacuation
from autothrottle.core.placement.partition_map import (
    Compile,
    PartitionMap,
    PartitionReplicas,
    TopicPartitionKey,
    matching_topics,
    ordered,
    unmatched_patterns,
    without_no_ops,
)
from autothrottle.core.placement.plan import (
    DecommissionOptions,
    Optimization,
    PlacementPlan,
    PlacementStatistics,
    PlanOptions,
    RebalanceOptions,
    RebuildOptions,
    ReliefOptions,
    ScaleOptions,
    Strategy,
    steps,
)
from autothrottle.core.placement.proposal import PlacementFigures, ProposedPlacement
from autothrottle.core.placement.rebalance import decommission, rebalance, relieve, scale
from autothrottle.core.placement.rebuild import rebuild

MAX_BROKERS = 10_000
"""Limit of the listed brokers of one plan."""
MAX_SIZE_FACTOR = 1000

Naming = Callable[[str], str]
"""Returns how the caller spells a field of the options, such as `--brokers`."""


@dataclass(frozen=True, slots=True)
class PlacementResult:
    """A plan, and everything that an operator reads about it."""

    options: PlanOptions
    plan: PlacementPlan
    selection: BrokerSelection
    steps: tuple[PartitionMap, ...]
    """The complete maps that lead to the plan, in this order; the last one is its own."""
    topics: tuple[str, ...]
    topics_excluded: tuple[str, ...]
    actions: tuple[str, ...]
    """What the operation does, one phrase each; empty for `rebalance` and `scale`."""
    warnings: tuple[str, ...]
    """Sorted; of the plan and of the brokers."""
    needs_consent: bool
    """An operator must accept some of the warnings; those that refuse the plan are in `plan.refusals`."""
    notes: tuple[str, ...]
    """Of the plan, about patterns that match no topic, and about unknown sizes."""
    total_partitions: int
    """Partitions of the cluster, or of the map if no cluster is in use."""

    @property
    def move_ratio(self) -> float:
        """KIP-73's MoveRatio, in [0, 1]."""
        return self.plan.partitions_to_copy / self.total_partitions if self.total_partitions else 0.0

    @property
    def changes(self) -> tuple[PartitionMap, ...]:
        """The partitions that change in each step; steps without a change are left out."""
        maps = zip((self.plan.old_map, *self.steps), self.steps, strict=False)
        return tuple(changed for old, new in maps if (changed := without_no_ops(old, new)))


def proposal(result: PlacementResult) -> ProposedPlacement:
    """Return what a caller of the placement service learns about a plan; only a plan that is divided has steps."""
    plan, options = result.plan, result.options
    is_divided = isinstance(options, RebuildOptions) and (options.phased or options.brokers_per_step > 0)
    targets = _targets(without_no_ops(plan.old_map, plan.new_map))
    return ProposedPlacement(
        before=_figures(plan.old_statistics),
        after=_figures(plan.new_statistics),
        targets=targets,
        unchanged_partitions=len(plan.old_map) - len(targets),
        copied_bytes=plan.copied_bytes,
        bound_bytes=plan.bound_bytes,
        warnings=result.warnings,
        steps=tuple(map(_targets, result.changes)) if is_divided else (),
        notes=result.notes,
        move_ratio=result.move_ratio,
        unsized_partitions=plan.unsized_partitions,
    )


def _targets(partitions: PartitionMap) -> Mapping[TopicPartitionKey, tuple[int, ...]]:
    return {partition.key: partition.replicas for partition in partitions}


def _figures(statistics: PlacementStatistics) -> PlacementFigures:
    spread = statistics.storage
    return PlacementFigures(
        statistics.leader_spread,
        statistics.replica_spread,
        spread.range_spread if spread else None,
        spread.standard_deviation if spread else None,
    )


def needs_storage(options: PlanOptions) -> bool | None:
    """Return whether an operation needs partition sizes and free storage; None: it uses them if they are known."""
    if isinstance(options, RebuildOptions):
        return options.strategy is Strategy.STORAGE
    return None if isinstance(options, DecommissionOptions) else True


def check_options(options: PlanOptions, name: Naming = str) -> None:
    """Check the options of a plan, which needs no cluster.

    Raises:
        Invalid: options are missing, out of their range or contradict each other.
    """
    _check_scope(options, name)
    if isinstance(options, RebuildOptions):
        _check_rebuild(options, name)
        return
    for field in ("storage_threshold", "tolerance"):
        share = getattr(options, field)
        if share is not None and not 0 < share < 1:
            raise Invalid(f"{name(field)} {share} must be above 0 and below 1; give 0.2 for 20 %")
    if isinstance(options, DecommissionOptions) and not options.leaving:
        raise Invalid(f"{name('leaving')} names no broker; list the brokers to empty")


def _check_scope(options: PlanOptions, name: Naming) -> None:
    field, ids = name("brokers"), options.scope.brokers
    if not options.scope.topics and not (isinstance(options, RebuildOptions) and options.replicas):
        raise Invalid(f"no topic is given; give {name('topics')}, '.*' for all topics")
    if not ids and not isinstance(options, DecommissionOptions | ReliefOptions):
        raise Invalid(f"no broker is given; give {field}, -1 for all brokers of the topics")
    if len(ids) > MAX_BROKERS:
        raise Invalid(f"{field} has {len(ids)} entries; list at most {MAX_BROKERS}, -1 for all brokers of the topics")
    if min(ids, default=0) < ALL_REGISTERED:
        raise Invalid(f"{field} has broker id {min(ids)}; it must be >= {ALL_REGISTERED}")
    if repeated := [id for id, count in Counter(ids).items() if count > 1]:
        raise Invalid(f"{field} names {repeated[0]} twice; name every broker once")


def _check_rebuild(options: RebuildOptions, name: Naming) -> None:
    for field, meaning in (("replication_factor", "0 keeps it"), ("brokers_per_step", "0 is one step")):
        if getattr(options, field) < 0:
            raise Invalid(f"{name(field)} {getattr(options, field)} must be >= 0; {meaning}")
    factor = options.partition_size_factor
    if not 0 < factor <= MAX_SIZE_FACTOR:
        field = name("partition_size_factor")
        raise Invalid(f"{field} {factor} must be in (0, {MAX_SIZE_FACTOR}]; give 1.2 for 20 % of growth")
    if options.force and options.substitution_affinity:
        affinity = name("substitution_affinity")
        raise Invalid(f"{affinity} has no effect with {name('force')}; leave one of them out")
    if options.optimization is Optimization.MINIMAL and not options.force:
        minimal, force = name("optimization"), name("force")
        raise Invalid(f"{minimal} minimal needs {force}; a rebuild without it already moves as little as it can")
    if bool(options.leader_evacuation_brokers) != bool(options.leader_evacuation_topics):
        brokers, topics = name("leader_evacuation_brokers"), name("leader_evacuation_topics")
        raise Invalid(f"{brokers} and {topics} belong together; give both or neither")


def plan_placement(
    options: PlanOptions,
    cluster: PlacementCluster | None,
    compile: Compile = re.compile,
    name: Naming = str,
    why_unsized: str | None = None,
) -> PlacementResult:
    """Return the result of the operation that the options belong to.

    Args:
        options: of `rebuild`, `rebalance`, `scale`, `decommission` or `relieve`.
        cluster: None: the map and the brokers of the options of a rebuild are all that is known.
        compile: compiles the patterns of topics.
        name: how the caller spells the fields of the options.
        why_unsized: why sizes of partitions are unknown, for a note; None: no note.

    Raises:
        Invalid: options are missing or contradict each other, or the cluster or its storage does not allow the plan.
        Missing: no topic matches.
    """
    check_options(options, name)
    partitions = _partitions(options, cluster, compile)
    if isinstance(options, RebuildOptions):
        selection, plan = _rebuilt(options, cluster, partitions, compile)
        maps = steps(plan, options.phased, options.brokers_per_step)
    else:
        assert cluster is not None
        selection, plan = _levelled(options, cluster, partitions)
        maps = (plan.new_map,)
    topics = {partition.topic for partition in partitions}
    cluster_topics = {partition.topic for partition in cluster.partitions} if cluster else topics
    excluded = options.scope.topics_exclude if cluster else ()
    accepted = (*plan.refusals, *plan.accepted_warnings)
    unaccepted = [warning for warning in plan.warnings if warning not in accepted]
    if count := selection.missing:
        unaccepted.append(f"{count} listed broker{'s are' if count > 1 else ' is'} not in the cluster")
    if count := selection.rack_missing:
        unaccepted.append(f"{count} listed broker{'s have' if count > 1 else ' has'} no rack")
    return PlacementResult(
        options=options,
        plan=plan,
        selection=selection,
        steps=maps,
        topics=tuple(sorted(topics)),
        topics_excluded=matching_topics(cluster_topics, excluded, compile=compile) if excluded else (),
        actions=tuple(_actions(options, selection, name)),
        warnings=tuple(sorted([*accepted, *unaccepted])),
        needs_consent=bool(unaccepted),
        notes=(
            *plan.notes,
            *_unmatched(options, cluster_topics, topics, compile, name),
            *(unsized_notes(plan, why_unsized) if why_unsized is not None else ()),
        ),
        total_partitions=len(cluster.partitions) if cluster else len(partitions),
    )


def _partitions(options: PlanOptions, cluster: PlacementCluster | None, compile: Compile) -> PartitionMap:
    partitions = cluster.partitions if cluster else ()
    if isinstance(options, RebuildOptions) and options.replicas:
        sizes = {partition.key: partition.size for partition in partitions}
        return ordered(PartitionReplicas(*row, ids, sizes.get(row)) for row, ids in options.replicas.items())
    topics, scope = {partition.topic for partition in partitions}, options.scope
    names = frozenset(matching_topics(topics, scope.topics, scope.topics_exclude, compile))
    if not names:
        raise Missing(f"no topic matches {', '.join(scope.topics)[:200]}; the cluster has {len(topics)} topics")
    return ordered(partition for partition in partitions if partition.topic in names)


def _rebuilt(
    options: RebuildOptions, cluster: PlacementCluster | None, partitions: PartitionMap, compile: Compile
) -> tuple[BrokerSelection, PlacementPlan]:
    if cluster and options.strategy is Strategy.STORAGE:
        cluster.require_clear_sizes({partition.topic for partition in partitions})
    registered = cluster.brokers if cluster and options.use_metadata else None
    selection = select_brokers(partitions, options.scope.brokers, registered)
    brokers, patterns = options.leader_evacuation_brokers, options.leader_evacuation_topics
    evacuation = leadership_evacuation(partitions, brokers, patterns, compile)
    return selection, rebuild(partitions, selection.brokers, replace(options, evacuation=evacuation))


def _levelled(
    options: RebalanceOptions, cluster: PlacementCluster, partitions: PartitionMap
) -> tuple[BrokerSelection, PlacementPlan]:
    ids = options.scope.brokers
    if isinstance(options, DecommissionOptions):
        selection = select_brokers(partitions, (*(ids or (ALL_REGISTERED,)), *options.leaving), cluster.brokers)
        return selection, decommission(partitions, selection.brokers, options.leaving, options)
    if isinstance(options, ReliefOptions):
        full, totals = options.broker, cluster.storage_total
        if full not in totals:
            raise Invalid(
                f"the storage of broker {full} is unknown. Fix: --metrics-source kafka, with Kafka 3.3 or later"
            )
        cluster.require_clear_sizes({partition.topic for partition in partitions if full in partition.replicas})
        selection = select_brokers(partitions, (*(ids or (ALL_REGISTERED,)), full), cluster.brokers)
        reserves = {id: round((1 - options.used_share) * total) for id, total in totals.items()}
        return selection, relieve(partitions, selection.brokers, full, reserves, options.growth, options)
    cluster.require_clear_sizes({partition.topic for partition in partitions})
    selection = select_brokers(partitions, ids, cluster.brokers)
    if selection.missing or selection.replaced:
        raise Invalid(f"reassignment only allows broker additions: {'; '.join(selection.messages)}")
    operation = scale if isinstance(options, ScaleOptions) else rebalance
    return selection, operation(partitions, selection.brokers, options)


def _actions(options: PlanOptions, selection: BrokerSelection, name: Naming) -> Iterator[str]:
    if isinstance(options, DecommissionOptions):
        yield f"Moving all replicas away from {len(options.leaving)} broker(s)"
    elif isinstance(options, ReliefOptions):
        share = f"{options.used_share:.0%}"
        yield f"Moving replicas away from broker {options.broker} until it uses {share} of its storage"
    elif isinstance(options, RebuildOptions):
        change = selection.added - selection.replaced
        fix = f"(this is a no-op unless {name('force')} is specified)"
        replaced = f"Rebuild topic with {selection.replaced} broker(s) marked for replacement"
        actions = {
            replaced: change >= 0 and selection.replaced,
            f"Expanding/rebalancing topic with {change} additional broker(s) {fix}": change > 0
            and not selection.replaced,
            f"Shrinking topic by {-change} broker(s)": change < 0,
            "Force rebuilding map": options.force,
            f"Setting replication factor to {options.replication_factor}": options.replication_factor,
            "Optimizing leader/follower ratios": options.optimize_leadership,
        }
        yield from [action for action, applies in actions.items() if applies] or ["no-op"]


def _unmatched(
    options: PlanOptions, cluster_topics: set[str], topics: set[str], compile: Compile, name: Naming
) -> Iterator[str]:
    """Yield a sentence for each pattern without a topic; evacuations are compared with the topics of the plan."""
    scope = options.scope
    lists = [("topics", scope.topics, cluster_topics), ("topics_exclude", scope.topics_exclude, cluster_topics)]
    if isinstance(options, RebuildOptions):
        evacuated = ("leader_evacuation_topics", options.leader_evacuation_topics, topics)
        lists = [evacuated] if options.replicas else [*lists, evacuated]
    for field, patterns, names in lists:
        for pattern in unmatched_patterns(names, patterns, compile):
            yield f"{name(field)} {pattern!r} matches no topic"


def unsized_notes(plan: PlacementPlan, why: str) -> Iterator[str]:
    """Yield why the size of a plan's copies is unknown, or only a lower bound; nothing if all sizes are known."""
    if count := plan.unsized_partitions:
        is_one = count == 1
        which = "size of 1 partition" if is_one else f"sizes of {count} partitions"
        yield f"The {which} to copy {'is' if is_one else 'are'} unknown{why and f': {why}'}"
