"""Columns of the decision log, derived from the fields of its records, and its file system."""

from __future__ import annotations

import types
from dataclasses import fields, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import pyarrow as pa
from pyarrow import fs

from autothrottle.core.scoring.decision_records import DecisionRecord, ReassignmentRecord

_SCALARS: dict[type, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    datetime: pa.timestamp("us", "UTC"),
}


def schema_of(record: type) -> pa.Schema:
    """Return the columns of a record type, in the order of its fields; fields that may be None are nullable."""
    return pa.schema([_field(name, hint) for name, hint in _hints(record)])


def _hints(record: type) -> list[tuple[str, Any]]:
    hints = get_type_hints(record)
    return [(field.name, hints[field.name]) for field in fields(record)]


def _field(name: str, hint: Any) -> pa.Field:
    if get_origin(hint) in (Union, types.UnionType):
        (inner,) = [argument for argument in get_args(hint) if argument is not type(None)]
        return pa.field(name, _type(inner), nullable=True)
    return pa.field(name, _type(hint), nullable=False)


def _type(hint: Any) -> pa.DataType:
    if get_origin(hint) is list:
        return pa.list_(_type(get_args(hint)[0]))
    if is_dataclass(hint) and isinstance(hint, type):
        return pa.struct([_field(name, inner) for name, inner in _hints(hint)])
    return _SCALARS[hint]


DECISIONS = schema_of(DecisionRecord)
REASSIGNMENTS = schema_of(ReassignmentRecord)


def file_system(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a log and its path there, without a trailing slash.

    Args:
        uri: a local path, absolute or relative, or the URI of an object store in pyarrow's format.

    Raises:
        pyarrow.ArrowException, OSError, ValueError: the location does not exist, or its store does not answer.
    """
    files, root = fs.FileSystem.from_uri(uri if "://" in uri else str(Path(uri).absolute()))
    return files, root.rstrip("/")
