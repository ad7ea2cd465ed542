"""Translates a config edit into operations of Kafka's admin API without losing concurrent edits by others.

A replica list is edited by its difference, so entries that another operator adds at the same time stay. Kafka accepts
one operation per key in a request, so an edit may take two requests.

Source: KIP-339 (incremental alter).
"""

from __future__ import annotations

from autothrottle.adapters.kafka_admin.values import ConfigEdit, ConfigOperation
from autothrottle.core.cluster.configs import MAX_VALUE_BYTES, REPLICAS_KEYS, WILDCARD, format_replicas, parse_replicas
from autothrottle.core.errors import Invalid
from autothrottle.core.throttles.changes import Edit


def operations(edit: Edit, restores: bool) -> tuple[tuple[ConfigEdit, ...], str | None]:
    """Return the operations of an edit, one per request, and the value after them.

    Args:
        edit: an edit with an effect; `expected` is the current value.
        restores: True if the value belongs to another party and is restored byte for byte. Otherwise the order of a
            list does not matter.

    Raises:
        Invalid: the value is longer than Kafka accepts. Kafka would close the connection instead of refusing it.
    """
    if edit.value is None:
        return (ConfigEdit(edit.key, ConfigOperation.DELETE),), None
    if len(edit.value.encode()) > MAX_VALUE_BYTES:
        size = len(edit.value.encode())
        raise Invalid(f"{edit.key} has {size} bytes and Kafka accepts {MAX_VALUE_BYTES}; throttle fewer partitions")
    if edit.key in REPLICAS_KEYS:
        steps, value = _difference(edit.key, edit.expected or "", edit.value)
        if steps and (value == edit.value or not restores):
            return steps, value
    return (ConfigEdit(edit.key, ConfigOperation.SET, edit.value),), edit.value


def _difference(key: str, current: str, value: str) -> tuple[tuple[ConfigEdit, ...], str]:
    """The operations that turn one list into another, and the resulting text; no operations: it is impossible."""
    parts = [part for part in current.split(",") if part]
    try:
        old, new = parse_replicas(current), parse_replicas(value)
    except Invalid:
        return (), ""
    # Kafka compares entries as text, so it would not find an entry with a space or a duplicate.
    if WILDCARD in old | new or sorted(parts) != sorted(old):
        return (), ""
    steps = []
    if added := new - old:
        steps.append(ConfigEdit(key, ConfigOperation.APPEND, format_replicas(added)))
    if removed := old - new:
        steps.append(ConfigEdit(key, ConfigOperation.SUBTRACT, format_replicas(removed)))
    remaining = [part for part in parts if part in new]
    return tuple(steps), ",".join([*remaining, *(part for part in format_replicas(added).split(",") if part)])
