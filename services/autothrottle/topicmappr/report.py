"""The report of a plan, in Kafka-Kit's layout or as JSON. Kafka-Kit computes in GiB, 2^30 bytes, and calls them GB."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.operations import PlacementResult
from autothrottle.core.placement.partition_map import changes
from autothrottle.core.placement.plan import (
    PlacementPlan,
    PlacementStatistics,
    PlanOptions,
    RebalanceOptions,
    RebuildOptions,
    StorageSpread,
    explain,
)
from autothrottle.core.texts import escape_unprintable
from autothrottle.topicmappr.map_files import MapFile
from autothrottle.topicmappr.options import GIBIBYTE
from autothrottle_client.plan_report import change_line, change_values

_NONE = "[none]"


def report(result: PlacementResult, explained: bool = False, changed_only: bool = True) -> str:
    """Return everything about a plan, up to its warnings.

    Args:
        result: the plan.
        explained: also why each replica goes where it goes.
        changed_only: count the partitions that do not change, instead of a line for each.
    """
    options = result.options
    blocks = [_section("Topics:", result.topics)]
    if result.topics_excluded:
        blocks.append(_section("Topics excluded:", result.topics_excluded))
    if isinstance(options, RebuildOptions):
        blocks += _rebuild_blocks(result)
    elif result.actions:
        blocks.append(_section("Action:", result.actions))
    else:
        blocks += _rebalance_blocks(options, result)
    blocks.append(_section("Partition map changes:", _changes(result.plan, changed_only)))
    copies, total = result.plan.partitions_to_copy, result.total_partitions
    blocks.append(f"MoveRatio: {result.move_ratio:.3f} ({copies} of {total} partitions have replicas to copy)")
    blocks.append(_section("Broker distribution:", _distribution(result.plan)))
    blocks += _storage(options, result.plan)
    if explained:
        reasons = (f"{reason.topic} p{reason.partition}: {reason.reason}" for reason in explain(result.plan))
        blocks.append(_section("Reasons:", reasons))
    if result.notes:
        blocks.append(_section("Notes:", result.notes))
    blocks.append(_section("WARN:", result.warnings or [_NONE]))
    return "\n".join(blocks)


def files_block(directory: str, files: Sequence[MapFile]) -> str:
    """Return the list of the files that were written."""
    if not files:
        return "No partition reassignments, skipping map generation"
    root = f"{directory.rstrip('/')}/" if directory else ""
    return _section(
        "New partition maps:",
        [f"{root or './'}{file.name} [combined map]" if file.combined else f"{root}{file.name}" for file in files],
    )


def _section(title: str, lines: Iterable[str]) -> str:
    return "\n".join([title, *(f"  {escape_unprintable(line)}" for line in lines)])


def _rebuild_blocks(result: PlacementResult) -> list[str]:
    chosen = result.selection
    total = chosen.added - chosen.replaced
    counts = (
        f"Replacing {chosen.replaced}, added {chosen.added}, missing {chosen.missing + chosen.old_missing}, "
        f"total count changed by {total}"
    )
    summary = [*chosen.messages, "-", counts] if chosen.messages else [counts]
    blocks = [_section("Broker change summary:", summary), _section("Action:", result.actions)]
    if result.plan.affinities:
        lines = [
            f"Substitution affinity: {affinity.leaving} -> {affinity.substitute}"
            f"{' (inferred)' if affinity.inferred else ''}"
            for affinity in result.plan.affinities
        ]
        blocks.append(_section("Substitution affinities:", lines))
    return blocks


def _rebalance_blocks(options: RebalanceOptions, result: PlacementResult) -> Iterator[str]:
    plan, added = result.plan, result.selection.added
    lines = [*result.selection.messages, "-", f"{added} additional brokers added", "OK"] if added else ["OK"]
    yield _section("Validating broker list:", lines)
    yield _section(
        f"Brokers targeted for partition offloading ({_targeted(options)}):", map(str, plan.offload_targets or [_NONE])
    )
    yield _section("Reassignment parameters:", _parameters(options, plan))
    for source, moves in groupby(plan.relocations, lambda relocation: relocation.source):
        rows = [
            f"[{_gibibytes(partition.size)}] {partition.topic} p{partition.partition} -> {destination}"
            for partition, _, destination in moves
        ]
        yield _section(f"Broker {source} relocations planned:", rows)
    if not plan.relocations:
        yield _section("Relocations planned:", [_NONE])
    sizes = [relocation.partition.size for relocation in plan.relocations]
    yield f"Total relocation volume: {_volume(sum(size or 0 for size in sizes), sizes.count(None))}"


def _targeted(options: RebalanceOptions) -> str:
    if options.storage_threshold_bytes:
        return f"< {_gibibytes(options.storage_threshold_bytes)} storage free"
    if options.storage_threshold:
        return f">= {options.storage_threshold:.2%} threshold below hmean"
    return "storage free below the mean"


def _parameters(options: RebalanceOptions, plan: PlacementPlan) -> Iterator[str]:
    if options.partition_size_threshold:
        yield f"Ignoring partitions smaller than {options.partition_size_threshold // 2**20}MiB"
    spread = plan.new_statistics.storage
    if spread:
        yield f"Free storage mean, harmonic mean: {_gibibytes(spread.mean)}, {_gibibytes(spread.harmonic_mean)}"
        yield f"Broker free storage limits (with a {plan.tolerance:.2%} tolerance from mean):"
        yield f"  Sources limited to <= {_gibibytes(spread.mean * (1 + plan.tolerance))}"
        yield f"  Destinations limited to >= {_gibibytes(spread.mean * (1 - plan.tolerance))}"
    volume = _volume(plan.copied_bytes, plan.unsized_partitions)
    yield f"Bytes to copy: {volume} (equal storage needs {_gibibytes(plan.bound_bytes)})"


def _changes(plan: PlacementPlan, changed_only: bool) -> Iterator[str]:
    all_changes = changes(plan.old_map, plan.new_map)
    listed = [change for change in all_changes if change.is_change or not changed_only]
    yield from map(change_line, listed)
    if unchanged := len(all_changes) - len(listed):
        yield f"{unchanged} partition{'s' * (unchanged > 1)} unchanged"


def _distribution(plan: PlacementPlan) -> Iterator[str]:
    yield f"degree [min/max/avg]: {_degree(plan.old_statistics)} -> {_degree(plan.new_statistics)}"
    yield "-"
    for broker, share in plan.new_statistics.shares.items():
        yield f"Broker {broker} - leader: {share.leaders}, follower: {share.followers}, total: {share.total}"


def _degree(statistics: PlacementStatistics) -> str:
    degree = statistics.degree
    return f"{degree.min}/{degree.max}/{degree.average:.2f}"


def _storage(options: PlanOptions, plan: PlacementPlan) -> list[str]:
    """Return the section about free storage; none where it is unknown before or after the plan."""
    old, new = plan.old_statistics.storage, plan.new_statistics.storage
    if old is None or new is None:
        return []
    factor = options.partition_size_factor if isinstance(options, RebuildOptions) else 1
    lines = [f"Partition size factor of {factor:.2f} applied"] if factor != 1 else []
    lines += [
        f"range: {_gibibytes(old.range)} -> {_gibibytes(new.range)}",
        f"range spread: {_spread(old)} -> {_spread(new)}",
        f"std. deviation: {_gibibytes(old.standard_deviation)} -> {_gibibytes(new.standard_deviation)}",
        f"min-max: {_gibibytes(old.min)}, {_gibibytes(old.max)} -> {_gibibytes(new.min)}, {_gibibytes(new.max)}",
        "-",
        *_storage_of_brokers(plan),
    ]
    return [_section("Storage free change estimations:", lines)]


def _storage_of_brokers(plan: PlacementPlan) -> Iterator[str]:
    final = free_after(plan)
    for broker in plan.brokers:
        if broker.storage_free is None:
            continue
        change = final[broker.id] - broker.storage_free
        share = change / broker.storage_free if broker.storage_free else 0.0
        mark = " *marked for replacement" if broker.replace else ""
        yield (
            f"Broker {broker.id}: {broker.storage_free / GIBIBYTE:.2f} -> {final[broker.id] / GIBIBYTE:.2f} "
            f"({change / GIBIBYTE:+.2f}GiB, {share:.2%}){mark}"
        )


def free_after(plan: PlacementPlan) -> Mapping[int, int]:
    """Return broker id -> free bytes after the plan, also of brokers that leave."""
    free = {broker.id: broker.storage_free or 0 for broker in plan.brokers}
    for old, new in zip(plan.old_map, plan.new_map, strict=True):
        for broker in set(old.replicas) - set(new.replicas):
            if broker in free:
                free[broker] += old.size or 0
        for broker in set(new.replicas) - set(old.replicas):
            free[broker] -= old.size or 0
    return free


def _spread(spread: StorageSpread) -> str:
    return "n/a" if spread.range_spread is None else f"{spread.range_spread:.2%}"


def _gibibytes(size: float | None) -> str:
    return "unknown size" if size is None else f"{size / GIBIBYTE:.2f}GiB"


def _volume(size: int, unsized: int) -> str:
    """Return a sum of sizes, of which some may be unknown."""
    if unsized and not size:
        return "unknown"
    return f"at least {_gibibytes(size)}" if unsized else _gibibytes(size)


def result_value(result: PlacementResult, files: Sequence[str], explained: bool) -> dict[str, Any]:
    """Return a plan as a JSON value: the changed partitions, statistics, warnings and files."""
    plan = result.plan
    changed = change_values(c for c in changes(plan.old_map, plan.new_map) if c.is_change)
    value: dict[str, Any] = {
        "topics": list(result.topics),
        "changes": changed,
        "unchanged_partitions": len(plan.old_map) - len(changed),
        "copied_bytes": plan.copied_bytes,
        "unsized_partitions": plan.unsized_partitions,
        "bound_bytes": plan.bound_bytes,
        "move_ratio": result.move_ratio,
        "before": _statistics_value(plan.old_statistics),
        "after": _statistics_value(plan.new_statistics),
        "brokers": [_broker_value(broker) for broker in plan.brokers],
        "actions": list(result.actions),
        "warnings": list(result.warnings),
        "refusals": list(plan.refusals),
        "notes": list(result.notes),
        "files": list(files),
    }
    if explained:
        value["reasons"] = [explanation._asdict() for explanation in explain(plan)]
    return value


def _statistics_value(statistics: PlacementStatistics) -> dict[str, Any]:
    storage = statistics.storage
    return {
        "leader_spread": statistics.leader_spread,
        "replica_spread": statistics.replica_spread,
        "degree": statistics.degree._asdict(),
        "storage_range_bytes": storage.range if storage else None,
        "storage_range_spread": storage.range_spread if storage else None,
        "storage_standard_deviation_bytes": storage.standard_deviation if storage else None,
    }


def _broker_value(broker: PlacementBroker) -> dict[str, Any]:
    flags = [name for name in ("replace", "missing", "new", "cordoned") if getattr(broker, name)]
    return {"id": broker.id, "rack": broker.rack, "flags": flags}
