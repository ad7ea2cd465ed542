"""The flags of `topicmappr` and of `throttlectl plan` as inputs of an operation, and the names for its errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from autothrottle.core.capacity.sizing import InstanceType, RecoveryGoal, UsableShares, Workload
from autothrottle.core.placement.plan import PlanOptions, PlanScope

DEFAULT_REPLICATION = 3
"""Replication factor of a workload without one."""

_Options = TypeVar("_Options", bound=PlanOptions)

FLAGS: Mapping[str, str] = {
    "strategy": "placement",
    "optimization": "optimize",
    "force": "force_rebuild",
    "replication_factor": "replication",
    "substitution_affinity": "sub_affinity",
    "leader_evacuation_brokers": "leader_evac_brokers",
    "leader_evacuation_topics": "leader_evac_topics",
    "phased": "phased_reassignment",
    "brokers_per_step": "chunk_step_size",
    "use_metadata": "use_meta",
    "storage_threshold_bytes": "storage_threshold_gb",
    "used_share": "to",
}
"""Field of the options -> its flag, with underscores, where the names differ."""

_CAPACITY_FLAGS: Mapping[type, Mapping[str, str]] = {
    UsableShares: {
        "storage": "storage-share",
        "network_in": "network-share",
        "network_out": "network-share",
        "disk": "disk-share",
        "partitions": "broker-partitions",
    },
    RecoveryGoal: {"within": "recover-within", "max_ratio": "max-rate"},
}


def flag(field: str, flags: Mapping[str, str] = FLAGS) -> str:
    """Return the flag of a field.

    >>> flag("brokers_per_step"), flag("partition_limit")
    ('--chunk-step-size', '--partition-limit')
    """
    return f"--{flags.get(field, field).replace('_', '-')}"


def capacity_flag(kind: type, field: str) -> str:
    """Return the flag of a field of a capacity plan's inputs, or the column of the file of instance types."""
    return field if kind is InstanceType else flag(field, _CAPACITY_FLAGS.get(kind, {}))


def plan_options(kind: type[_Options], values: object, flags: Mapping[str, str] = FLAGS, **given: Any) -> _Options:
    """Return the options of an operation.

    Args:
        kind: their type.
        values: has an attribute for each flag of the command; other fields of the options have their defaults.
        flags: as `FLAGS`.
        given: fields that no flag has.
    """
    scope = PlanScope(**_values(PlanScope, values, flags))
    return kind(**{**_values(kind, values, flags), "scope": scope, **given})


def _values(kind: Any, values: object, flags: Mapping[str, str]) -> dict[str, Any]:
    attributes = {field.name: flags.get(field.name, field.name) for field in fields(kind)}
    return {name: getattr(values, attribute) for name, attribute in attributes.items() if hasattr(values, attribute)}


def given_workload(values: Any) -> tuple[Workload | None, tuple[str, ...]]:
    """Return the workload that the flags of a command describe, or one sentence for each problem.

    Args:
        values: has an attribute for each flag of the command; what is absent, None or 0 has its default.
    """
    bytes_in, mean, retention = values.bytes_in, values.mean_bytes_in, values.retention
    bytes_out, fan_out = getattr(values, "bytes_out", 0.0), values.fan_out
    problems = [
        f"{name} is not given. Fix: give --{name}, {meaning}"
        for name, value, meaning in (
            ("bytes-in", bytes_in, "the rate at which clients produce at peak, such as 200MB/s"),
            ("retention", retention, "the time for which records are kept, such as a day"),
        )
        if not value
    ]
    if bytes_out and fan_out is not None:
        problems.append("fan-out and bytes-out are both given. Fix: leave one out")
    if mean and bytes_in and mean > bytes_in:
        problems.append("mean-bytes-in is larger than bytes-in, which is the peak. Fix: correct one of them")
    if problems:
        return None, tuple(problems)
    if bytes_out:
        fan_out = bytes_out / bytes_in
    return Workload(
        bytes_in=bytes_in,
        retention=retention,
        mean_bytes_in=mean or None,
        fan_out=1.0 if fan_out is None else fan_out,
        replication=values.replication or DEFAULT_REPLICATION,
        partitions=values.partitions,
        growth=getattr(values, "growth", 0.0),
        months=getattr(values, "months", 0.0),
    ), ()
