"""Config edits as operations of Kafka's admin API, and their effect on the current list."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autothrottle.adapters.kafka_admin.config_writer import operations
from autothrottle.adapters.kafka_admin.values import ConfigEdit, ConfigOperation
from autothrottle.core.cluster.configs import LEADER_RATE, LEADER_REPLICAS, MAX_VALUE_BYTES, parse_replicas
from autothrottle.core.errors import Invalid
from autothrottle.core.throttles.changes import Edit

SET, DELETE, APPEND, SUBTRACT = (
    ConfigOperation.SET,
    ConfigOperation.DELETE,
    ConfigOperation.APPEND,
    ConfigOperation.SUBTRACT,
)
ENTRIES = st.lists(st.sampled_from(("0:1", "0:2", "1:1", "10:3", "2:1")), unique=True).map(",".join)
TEXTS = st.none() | ENTRIES | st.sampled_from(("*", "", "x", "0:1,,2:1", " 0:1,2:1", "0:1,0:1"))


def value_after(current: str | None, edit: ConfigEdit) -> str | None:
    """The value after Kafka carries out one operation (KIP-339)."""
    if edit.operation is SET:
        return edit.value
    if edit.operation is DELETE:
        return None
    parts = [part for part in (current or "").split(",") if part]
    named = (edit.value or "").split(",")
    if edit.operation is APPEND:
        return ",".join([*parts, *(part for part in named if part not in parts)])
    return ",".join(part for part in parts if part not in named)


@settings(deadline=None)
@given(current=TEXTS, value=st.none() | ENTRIES | st.just("*"), restores=st.booleans())
def test_operations_produce_the_announced_value(current: str | None, value: str | None, restores: bool) -> None:
    steps, text = operations(Edit(LEADER_REPLICAS, current, value), restores)
    found = current
    for step in steps:
        found = value_after(found, step)
    assert found == text
    assert text == value if restores or value is None else parse_replicas(text or "") == parse_replicas(value)


@settings(deadline=None)
@given(current=ENTRIES, value=ENTRIES, others=st.lists(st.sampled_from(("7:7", "8:8")), unique=True))
def test_concurrently_added_entries_stay(current: str, value: str, others: list[str]) -> None:
    steps, _ = operations(Edit(LEADER_REPLICAS, current, value), restores=False)
    found: str | None = current
    for number, step in enumerate(steps):
        if step.operation is SET:  # the same entries in another order
            return
        if number < len(others):
            found = value_after(found, ConfigEdit(LEADER_REPLICAS, APPEND, others[number]))
        found = value_after(found, step)
    assert parse_replicas(found or "") == parse_replicas(value) | set(others[: len(steps)])


@pytest.mark.parametrize(
    ("current", "value", "expected"),
    [
        ("0:1", None, [(DELETE, None)]),
        (None, "0:1,0:2", [(APPEND, "0:1,0:2")]),
        ("0:1", "0:1,0:2", [(APPEND, "0:2")]),
        ("0:1,0:2", "0:1", [(SUBTRACT, "0:2")]),
        ("0:1", "0:2", [(APPEND, "0:2"), (SUBTRACT, "0:1")]),
        ("0:1", "*", [(SET, "*")]),
        ("*", "0:1", [(SET, "0:1")]),
        ("no list", "0:1", [(SET, "0:1")]),
        ("0:1, 0:2", "0:1", [(SET, "0:1")]),
    ],
)
def test_lists_are_edited_by_their_difference_if_possible(
    current: str | None, value: str | None, expected: list[tuple[ConfigOperation, str | None]]
) -> None:
    steps, _ = operations(Edit(LEADER_REPLICAS, current, value), restores=False)
    assert [(step.operation, step.value) for step in steps] == expected


def test_rates_are_set_or_deleted() -> None:
    assert operations(Edit(LEADER_RATE, "5", "6"), False) == ((ConfigEdit(LEADER_RATE, SET, "6"),), "6")
    assert operations(Edit(LEADER_RATE, "5", None), True) == ((ConfigEdit(LEADER_RATE, DELETE),), None)


def test_value_over_kafkas_limit_is_refused_with_its_size() -> None:
    value = ",".join(f"{p}:1" for p in range(6_000))
    with pytest.raises(Invalid, match=f"{len(value)} bytes and Kafka accepts {MAX_VALUE_BYTES}"):
        operations(Edit(LEADER_REPLICAS, None, value), restores=False)
