"""The command `plan`: asks the placement service, writes the changes to a file, and prints the result.

Only this command loads the types of planning. `plan_options` reads the flags, and `plan_report` writes the results.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autothrottle.core.capacity.sizing import Loss, RecoveryGoal, UsableShares
from autothrottle.core.placement.operations import check_options
from autothrottle.core.placement.plan import (
    DecommissionOptions,
    PlanOptions,
    RebalanceOptions,
    RebuildOptions,
    ScaleOptions,
    Strategy,
)
from autothrottle.core.placement.proposal import ProposedPlacement
from autothrottle_client import plan_report
from autothrottle_client.admin import PLAN_TIMEOUT
from autothrottle_client.errors import Invalid
from autothrottle_client.files import write_text
from autothrottle_client.instance_file import read_instance_file
from autothrottle_client.plan_options import FLAGS, flag, given_workload, plan_options
from autothrottle_client.reassignments import Partition, format_targets

if TYPE_CHECKING:
    from autothrottle_client.commands import CommandCall

_OPTIONS: Mapping[str, type[PlanOptions]] = {
    "rebuild": RebuildOptions,
    "rebalance": RebalanceOptions,
    "scale": ScaleOptions,
    "decommission": DecommissionOptions,
}
_FLAGS = {**FLAGS, "force": "force"}


def run_plan(call: CommandCall) -> None:
    """Run an operation of `plan`.

    Raises:
        Invalid: an option has no effect on the operation, or is wrong; the error names its flag.
    """
    arguments = call.arguments
    _refuse_other_options(arguments)
    if arguments.operation in _ANSWERS:
        _ANSWERS[arguments.operation](call)
        return
    placement = call.admin.plan_placement(placement_options(arguments), max(call.timeout, PLAN_TIMEOUT))
    if arguments.out:
        for path, targets in _plan_files(Path(arguments.out), placement):
            _write_targets(path, targets)
    call.show(placement, plan_report.plan_report(placement), placement.warnings)


def placement_options(arguments: argparse.Namespace) -> PlanOptions:
    """Return the options of an operation on replicas.

    Raises:
        Invalid: they are wrong; the error names the flag.
    """
    given: dict[str, Any] = {}
    if arguments.operation == "rebuild":
        strategy = Strategy.STORAGE if arguments.by_storage else Strategy.COUNT
        given = {"strategy": strategy, "partition_size_factor": arguments.partition_size_factor or 1.0}
    options = plan_options(_OPTIONS[arguments.operation], arguments, _FLAGS, **given)
    check_options(options, lambda field: flag(field, _FLAGS))
    return options


def _plan_files(path: Path, plan: ProposedPlacement) -> list[tuple[Path, Mapping[Partition, tuple[int, ...]]]]:
    """Return each file of a plan with its targets: one file, or one per step."""
    if not plan.steps:
        return [(path, plan.targets)]
    return [(path.with_stem(f"{path.stem}-phase{number}"), step) for number, step in enumerate(plan.steps)]


def _write_targets(path: Path, targets: Mapping[Partition, tuple[int, ...]]) -> None:
    try:
        write_text(path, format_targets(targets))
    except OSError as error:
        raise Invalid(f"{path} cannot be written: {error.strerror}; give the path of a new file") from None


def _apply(call: CommandCall) -> None:
    arguments, timeout = call.arguments, max(call.timeout, PLAN_TIMEOUT)
    difference = call.admin.plan_pools(arguments.repair_lost, arguments.allow_fewer_racks, timeout)
    if arguments.out and difference.targets:
        _write_targets(Path(arguments.out), difference.targets)
    value = {**plan_report.difference_value(difference), "targets": difference.targets}
    call.show(value, plan_report.difference_report(difference), difference.warnings)


def _pool_status(call: CommandCall) -> None:
    status = call.admin.get_pool_status(max(call.timeout, PLAN_TIMEOUT))
    value = {"pools": plan_report.status_values(status.pools), "warnings": status.warnings}
    call.show(value, plan_report.status_report(status.pools), status.warnings)


def _capacity(call: CommandCall) -> None:
    arguments = call.arguments
    if not arguments.instances:
        raise Invalid("instances is not given. Fix: --instances=instances.csv")
    workload, problems = given_workload(arguments)
    instances, faults = read_instance_file(arguments.instances)
    if workload is None or problems or faults:
        raise Invalid("; ".join((*problems, *faults)))
    default = RecoveryGoal()
    loss = Loss(arguments.survive) if arguments.survive else default.loss
    goal = RecoveryGoal(loss, within=arguments.recover_within or default.within)
    plan = call.admin.get_capacity(workload, instances, UsableShares(), goal, max(call.timeout, PLAN_TIMEOUT))
    call.show(plan_report.capacity_value(plan), plan_report.capacity_report(plan))


def _forecast(call: CommandCall) -> None:
    answer = call.admin.get_forecast()
    value = {"compute_time": answer.compute_time, "forecasts": plan_report.forecast_values(answer.forecasts)}
    call.show(value, plan_report.forecast_report(answer.forecasts))


_ANSWERS: Mapping[str, Callable[[CommandCall], None]] = {
    "apply": _apply,
    "status": _pool_status,
    "capacity": _capacity,
    "forecast": _forecast,
}

_PLACEMENTS = tuple(_OPTIONS)
_REBUILD_OPTIONS = (
    *("by_storage", "force", "partition_size_factor", "sub_affinity", "leader_evac_brokers", "leader_evac_topics"),
    *("phased_reassignment", "chunk_step_size"),
)
_CAPACITY_OPTIONS = (
    *("instances", "bytes_in", "mean_bytes_in", "retention", "fan_out", "partitions", "survive", "recover_within"),
)

_OPERATIONS_OF: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("topics", "topics_exclude", "brokers"), _PLACEMENTS),
    **dict.fromkeys(("allow_fewer_racks", "out"), (*_PLACEMENTS, "apply")),
    **dict.fromkeys(_REBUILD_OPTIONS, ("rebuild",)),
    **dict.fromkeys(_CAPACITY_OPTIONS, ("capacity",)),
    "leaving": ("decommission",),
    "repair_lost": ("apply",),
    "replication": ("rebuild", "capacity"),
}
"""Option of `plan` -> the operations that it has an effect on."""


def _refuse_other_options(arguments: argparse.Namespace) -> None:
    for name, operations in _OPERATIONS_OF.items():
        if getattr(arguments, name) and arguments.operation not in operations:
            text = f"--{name.replace('_', '-')} has no effect on {arguments.operation}; leave it out, or plan"
            raise Invalid(f"{text} {' or '.join(operations)}")
