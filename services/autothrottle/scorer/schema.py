"""The columns of the decision log as Spark knows them, made from the records' own fields."""

from __future__ import annotations

import types
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any, Union, get_args, get_origin, get_type_hints

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from autothrottle.core.decisions import DecisionRecord, ReassignmentRecord

_PLAIN: dict[type, DataType] = {
    str: StringType(),
    int: LongType(),
    float: DoubleType(),
    bool: BooleanType(),
    datetime: TimestampType(),
}

_DATE = StructField("date", StringType())
"""`YYYY-MM-DD`: the folder that a file is in."""


def schema_of(record: type) -> StructType:
    """Return the columns of a kind of record; all may be null, for a file may lack what came later."""
    hints = get_type_hints(record)
    return StructType([StructField(field.name, _type(hints[field.name])) for field in fields(record)])


def _type(hint: Any) -> DataType:
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = [argument for argument in get_args(hint) if argument is not type(None)]
    if get_origin(hint) is list:
        return ArrayType(_type(get_args(hint)[0]))
    return schema_of(hint) if is_dataclass(hint) and isinstance(hint, type) else _PLAIN[hint]


DECISIONS = StructType([*schema_of(DecisionRecord).fields, _DATE])
REASSIGNMENTS = StructType([*schema_of(ReassignmentRecord).fields, _DATE])
