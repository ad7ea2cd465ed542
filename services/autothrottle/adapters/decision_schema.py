"""The columns of the decision log as Arrow knows them, made from the records' own fields."""

from __future__ import annotations

import types
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any, Union, get_args, get_origin, get_type_hints

import pyarrow as pa

from autothrottle.core.decisions import DecisionRecord, ReassignmentRecord

_PLAIN: dict[type, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    datetime: pa.timestamp("us", "UTC"),
}


def schema_of(record: type) -> pa.Schema:
    """Return the columns of a kind of record, in the order of its fields; those that may be None are nullable."""
    return pa.schema([_field(name, hint) for name, hint in _hints(record)])


def _hints(record: type) -> list[tuple[str, Any]]:
    hints = get_type_hints(record)
    return [(field.name, hints[field.name]) for field in fields(record)]


def _field(name: str, hint: Any) -> pa.Field:
    if get_origin(hint) in (Union, types.UnionType):
        (given,) = [argument for argument in get_args(hint) if argument is not type(None)]
        return pa.field(name, _type(given), nullable=True)
    return pa.field(name, _type(hint), nullable=False)


def _type(hint: Any) -> pa.DataType:
    if get_origin(hint) is list:
        return pa.list_(_type(get_args(hint)[0]))
    if is_dataclass(hint) and isinstance(hint, type):
        return pa.struct([_field(name, inner) for name, inner in _hints(hint)])
    return _PLAIN[hint]


DECISIONS = schema_of(DecisionRecord)
REASSIGNMENTS = schema_of(ReassignmentRecord)
