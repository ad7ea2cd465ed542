"""Conversion of generated messages to the dataclasses of results, by the names and types of their fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cache, partial
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

_T = TypeVar("_T")


def from_message(kind: Callable[..., _T], message: Message, /, **given: object) -> _T:
    """Return a dataclass with the values of the message's fields of the same names.

    An absent field is None where the dataclass allows it. A number that an enum of this version does not have is
    its `UNKNOWN`.

    Args:
        kind: the dataclass. Its fields are scalars, times, enums, dataclasses, tuples of these, or maps of scalars.
        message: the message to convert.
        given: values of fields that the message names or represents differently.
    """
    readers = _readers(kind, message.DESCRIPTOR)
    return kind(**given, **{name: read(message) for name, read in readers.items() if name not in given})


@cache
def _readers(kind: Callable[..., object], message: Descriptor) -> dict[str, Callable[[Message], Any]]:
    """Return name -> reader of the value, for each field of the dataclass that the message has."""
    fields = message.fields_by_name
    return {name: _reader(fields[name], wanted) for name, wanted in get_type_hints(kind).items() if name in fields}


def _reader(field: FieldDescriptor, wanted: Any) -> Callable[[Message], Any]:
    name = field.name
    if get_origin(wanted) is not UnionType:
        convert = _converter(field, wanted)
        return lambda message: convert(getattr(message, name))
    present = _converter(field, get_args(wanted)[0])
    if field.has_presence:
        return lambda message: present(getattr(message, name)) if message.HasField(name) else None
    return lambda message: present(getattr(message, name)) if getattr(message, name) else None


def _converter(field: FieldDescriptor, wanted: Any) -> Callable[[Any], Any]:
    """Return the conversion of a value of a field to the wanted type."""
    if get_origin(wanted) is tuple:
        convert = _converter(field, get_args(wanted)[0])
        return lambda values: tuple(map(convert, values))
    if get_origin(wanted) is Mapping:
        return dict
    if wanted is datetime:
        return lambda time: time.ToDatetime(tzinfo=UTC)
    assert isinstance(wanted, type)
    if is_dataclass(wanted):
        return partial(from_message, wanted)
    if issubclass(wanted, Enum):
        numbers = _numbers(field, wanted)
        return lambda number: numbers.get(number, wanted["UNKNOWN"])
    return wanted  # int, str, bool or float


def _numbers(field: FieldDescriptor, wanted: type[Enum]) -> dict[int, Enum]:
    """Return number -> member of an enum: `REASON_KEPT` of a message is the member `KEPT`."""
    assert field.enum_type is not None
    unset, *values = field.enum_type.values
    prefix = unset.name.removesuffix("UNSPECIFIED")
    known = wanted.__members__
    return {value.number: known[name] for value in values if (name := value.name.removeprefix(prefix)) in known}
