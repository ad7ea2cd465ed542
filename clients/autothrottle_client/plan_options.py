"""The flags of `topicmappr` and of `throttlectl plan` as options of an operation, and the names for its errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from autothrottle.core.placement.plan import PlanOptions, PlanScope

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


def flag(field: str, flags: Mapping[str, str] = FLAGS) -> str:
    """Return the flag of a field.

    >>> flag("brokers_per_step"), flag("partition_limit")
    ('--chunk-step-size', '--partition-limit')
    """
    return f"--{flags.get(field, field).replace('_', '-')}"


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
