"""The Spark schema of the decision log, derived from the fields of its records."""

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

from autothrottle.core.scoring.decision_records import DecisionRecord, ReassignmentRecord

_PLAIN: dict[type, DataType] = {
    str: StringType(),
    int: LongType(),
    float: DoubleType(),
    bool: BooleanType(),
    datetime: TimestampType(),
}

_DATE = StructField("date", StringType())
"""`YYYY-MM-DD`: the name of the file's folder."""


def schema_of(record: type) -> StructType:
    """Return the schema of a record type; all columns are nullable, because older files lack newer columns."""
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
