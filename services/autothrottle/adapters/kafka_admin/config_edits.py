"""A config edit as operations of Kafka's admin API, chosen so that nobody else's entry is lost on the way.

A replica list is changed by its difference: what another operator adds to it at the same moment stays. Kafka takes one
operation for each key in a request, so that an edit may take two requests.

Source: KIP-339 (incremental alter).
"""

from __future__ import annotations

from autothrottle.adapters.kafka_admin.client import ConfigEdit, ConfigOperation
from autothrottle.core.changes import Edit
from autothrottle.core.configs import MAX_VALUE_BYTES, REPLICAS_KEYS, WILDCARD, format_replicas, parse_replicas
from autothrottle.core.errors import Invalid


def operations(edit: Edit, restores: bool) -> tuple[tuple[ConfigEdit, ...], str | None]:
    """Return the operations of an edit, one for each request, and the value that stands after them.

    Args:
        edit: not without effect; `expected` is what stands.
        restores: whether the value is somebody else's, to be put back byte for byte; else the order of a list is free.

    Raises:
        Invalid: when the value is longer than Kafka takes: it would close the connection instead of refusing it.
    """
    if edit.value is None:
        return (ConfigEdit(edit.key, ConfigOperation.DELETE),), None
    if len(edit.value.encode()) > MAX_VALUE_BYTES:
        size = len(edit.value.encode())
        raise Invalid(f"{edit.key} has {size} bytes and Kafka takes {MAX_VALUE_BYTES}; throttle fewer partitions")
    if edit.key in REPLICAS_KEYS:
        steps, value = _difference(edit.key, edit.expected or "", edit.value)
        if steps and (value == edit.value or not restores):
            return steps, value
    return (ConfigEdit(edit.key, ConfigOperation.SET, edit.value),), edit.value


def _difference(key: str, standing: str, value: str) -> tuple[tuple[ConfigEdit, ...], str]:
    """The operations that lead from one list to another, and the text that they make; none: there is no such way."""
    parts = [part for part in standing.split(",") if part]
    try:
        old, new = parse_replicas(standing), parse_replicas(value)
    except Invalid:
        return (), ""
    # Kafka compares entries as text: one with a space, or one that is there twice, it would not find.
    if WILDCARD in old | new or sorted(parts) != sorted(old):
        return (), ""
    steps = []
    if added := new - old:
        steps.append(ConfigEdit(key, ConfigOperation.APPEND, format_replicas(added)))
    if removed := old - new:
        steps.append(ConfigEdit(key, ConfigOperation.SUBTRACT, format_replicas(removed)))
    kept = [part for part in parts if part in new]
    return tuple(steps), ",".join([*kept, *(part for part in format_replicas(added).split(",") if part)])
