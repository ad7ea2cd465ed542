"""The codec of stored values: every stored type is read back, and a faulty part is named by its path."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autothrottle.adapters.kafka_state.records import Commit, CopyHeader, CopyPart, StateEdit
from autothrottle.adapters.state_store.state_copy import StateCopy
from autothrottle.core.cluster.configs import LedgerKey
from autothrottle.core.codec import GIVEN, LEFT_OUT, decode, encode, stored
from autothrottle.core.errors import Invalid
from autothrottle.core.members import Member
from autothrottle.core.operators.audit import StoredAuditRecord
from autothrottle.core.quotas.keys import QuotaKey, TemporaryQuota, stored_value
from autothrottle.core.quotas.yielding import YieldRule
from autothrottle.core.records import CatchUp, Pause
from autothrottle.core.request_quotas import RequestQuotaEntity

PLAIN: Mapping[Any, st.SearchStrategy[Any]] = {
    int: st.integers(0, 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(max_size=9),
    bool: st.booleans(),
    datetime: st.datetimes(timezones=st.just(UTC)),
    Any: st.none() | st.text(max_size=9),
}
SPECIAL: Mapping[tuple[type, str], st.SearchStrategy[Any]] = {
    (StateEdit, "digest"): st.none() | st.tuples(st.integers(0, 2**62), st.text(max_size=9)),
    (TemporaryQuota, "values"): st.dictionaries(st.sampled_from(QuotaKey), st.floats(1, 1e15)).map(
        lambda values: {key: stored_value(key, float(int(value))) for key, value in values.items()}
    ),
}
"""The values of fields that have a form of their own."""


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Generate values that a type hint allows."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return st.integers(arguments[1].start, arguments[1].stop - 1)
    if origin in (Union, UnionType):
        return st.one_of(st.none(), *(values_of(part) for part in arguments if part is not NoneType))
    if origin is Mapping:
        return st.dictionaries(st.text(max_size=9), values_of(arguments[1]), max_size=3)
    if origin in (tuple, Sequence):
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if origin is frozenset:
        return st.frozensets(values_of(arguments[0]), max_size=3)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    if is_dataclass(hint):
        return records_of(hint)
    return PLAIN[hint]


def records_of(kind: Any) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind, include_extras=True)
    parts = {name: SPECIAL[kind, name] if (kind, name) in SPECIAL else values_of(hints[name]) for name in hints}
    return st.builds(kind, **parts)


KINDS = (
    *(CatchUp, Commit, CopyHeader, CopyPart, Member, Pause),
    *(RequestQuotaEntity, StateCopy, StateEdit, StoredAuditRecord, TemporaryQuota, YieldRule),
)
"""`LedgerEntry`, whose fields depend on one another, has a test of its own beside its format."""


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20)
@given(st.data())
def test_every_stored_type_is_read_back(kind: Any, data: st.DataObject) -> None:
    value = data.draw(records_of(kind))
    given_fields = {f.name: getattr(value, f.name) for f in fields(kind) if f.metadata == GIVEN}
    assert decode(kind, json.loads(json.dumps(encode(value))), **given_fields) == value


@dataclass(frozen=True, slots=True)
class Link:
    """A part of a stored value."""

    rate: Annotated[int, range(1, 100)] = field(metadata=stored("rate_mb"))
    time: datetime | None = None


@dataclass(frozen=True, slots=True)
class Fleet:
    """A stored value."""

    name: str = field(metadata=GIVEN)
    links: Mapping[str, tuple[Link, ...]]
    keys: frozenset[QuotaKey] = field(default=frozenset(), metadata=LEFT_OUT)
    share: float = 1.0
    is_new: bool = False


def fleet(**parts: Any) -> object:
    return {"links": {"b1": [{"rate_mb": 7}]}, **parts}


def test_absent_fields_have_their_defaults_and_unknown_names_are_ignored() -> None:
    assert decode(Fleet, fleet(later=[1]), name="a") == Fleet("a", {"b1": (Link(7),)})
    assert encode(Fleet("a", {})) == {"links": {}, "share": 1.0, "is_new": False}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (7, "7 is not an object"),
        ({}, "the field 'links' is missing"),
        (fleet(links=[]), "links: [] is not an object"),
        (fleet(links={"b1": {}}), "links['b1']: {} is not an array"),
        (fleet(links={"b1": [{"rate_mb": 7}, {}]}), "links['b1'][1]: the field 'rate_mb' is missing"),
        (fleet(links={"b1": [{"rate_mb": 100}]}), "links['b1'][0].rate_mb: 100 is not in 1..99"),
        (fleet(links={"b1": [{"rate_mb": True}]}), "links['b1'][0].rate_mb: True is not an integer"),
        (fleet(links={"b1": [{"rate_mb": 7, "time": 5}]}), "links['b1'][0].time: 5 is not a string"),
        (
            fleet(links={"b1": [{"rate_mb": 7, "time": "2026-11-02"}]}),
            "links['b1'][0].time: '2026-11-02' has no zone",
        ),
        (fleet(links={"\ud800": []}), "links['\\ud800']: "),
        (fleet(keys=["size"]), "keys[0]: 'size' is not one of producer_byte_rate"),
        (fleet(share=float("inf")), "share: inf is not a finite number"),
        (fleet(is_new=1), "is_new: 1 is not true or false"),
        (fleet(keys="x" * 10_000), "keys: 'xxxxx"),
    ],
)
def test_a_faulty_part_is_named_by_its_path(value: object, problem: str) -> None:
    with pytest.raises(Invalid) as caught:
        decode(Fleet, value, name="a")
    assert str(caught.value).startswith(problem) and len(str(caught.value).encode()) < 400


def test_a_type_checks_that_its_stored_fields_fit_together() -> None:
    parse: Callable[[object], LedgerKey] = lambda value: decode(LedgerKey, value)  # noqa: E731
    assert parse({"before": None, "written": "5"}) == LedgerKey(None, "5")
    with pytest.raises(Invalid, match="nothing was written"):
        parse({"before": None, "written": None})
