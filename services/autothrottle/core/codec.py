"""Stored values as JSON values and back. The functions to know are `encode`, `decode` and `stored`.

The type hints of a frozen dataclass are its layout, so that no type has a parser of its own:

- Each field is stored under its name, or under the name that its metadata gives (`stored`).
- A field without a default must be there, another one may be absent. Names of later versions are ignored.
- A value of another type or range is Invalid, and the error names its path in the whole value.
- A classmethod `from_stored` of a type creates the object in place of its constructor, if there is one. It takes the
  fields as keywords, and raises Invalid for fields that do not fit together.

Integers lie in 0 to 2^63-1, or in `r` of `Annotated[int, r]`. Times are texts in UTC, enums the values of their
members, tuples, sequences and (sorted) sets arrays, and mappings of texts objects.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cache, partial
from itertools import starmap
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from autothrottle.core.errors import FIELD_ERRORS, Invalid
from autothrottle.core.texts import encodable

_T = TypeVar("_T")

_FAULTS = (*FIELD_ERRORS, Invalid)
_METADATA = "stored"


class ValueForm(NamedTuple):
    """How values of one type are stored."""

    decode: Callable[[Any], Any]
    """From the JSON value; raises Invalid or one of `FIELD_ERRORS`."""
    encode: Callable[[Any], Any]


class _Storage(NamedTuple):
    name: str = ""
    form: ValueForm | None = None
    is_left_out: bool = False


def stored(name: str = "", form: ValueForm | None = None, is_left_out: bool = False) -> Mapping[str, Any]:
    """Return the metadata of a field: its stored name and form, and whether it is left out while it has its default."""
    return {_METADATA: _Storage(name, form, is_left_out)}


LEFT_OUT = stored(is_left_out=True)

GIVEN: Mapping[str, Any] = {_METADATA: None}
"""Metadata of a field that is not stored: the caller of `decode` gives it, or it has its default."""


class FaultyValue(Invalid):
    """A part of a value that is wrong."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path.removeprefix('.')}: {problem}" if path else problem)
        self.path, self.problem = path, problem


def decode(kind: type[_T], value: object, **given: Any) -> _T:
    """Return the object of a dataclass from its JSON value and from its `GIVEN` fields.

    Raises:
        Invalid: a part of the value is missing, or has another type or range.
    """
    try:
        return _form(kind).decode(value, **given)  # type: ignore[no-any-return]
    except FIELD_ERRORS as error:
        raise _located("", error) from None


def encode(value: Any) -> Any:
    """Return the JSON value of an object of a dataclass."""
    return _form(type(value)).encode(value)


def field_error(error: Exception) -> str:
    """Return what is wrong with a field, in at most 200 characters."""
    if isinstance(error, KeyError):
        return encodable(f"the field {error} is missing", 200)
    return encodable(str(error), 200)


def _located(place: str, error: Exception) -> FaultyValue:
    """Return an error with the path to its value, which lies at this place."""
    if isinstance(error, FaultyValue):
        return FaultyValue(encodable(place + error.path, 200), error.problem)
    return FaultyValue(place, field_error(error))


def _shown(value: object) -> str:
    return encodable(repr(value), 60)


def integer(value: Any, valid: range = range(2**63)) -> int:
    """Return a number from JSON, or raise TypeError or ValueError if it is not an integer in the range."""
    if type(value) is not int:
        raise TypeError(f"{_shown(value)} is not an integer")
    if value not in valid:
        raise ValueError(f"{value} is not in {valid.start}..{valid.stop - 1}")
    return value


def text(value: Any) -> str:
    """Return a text from JSON, or raise TypeError or ValueError if it is none that a message can hold."""
    if type(value) is not str:
        raise TypeError(f"{_shown(value)} is not a string")
    value.isascii() or value.encode()  # JSON may escape half a surrogate pair
    return value


def time_of(value: Any) -> datetime:
    """Return a time from JSON in UTC, or raise TypeError, ValueError or OverflowError if it is none with a zone."""
    time = datetime.fromisoformat(text(value))
    if time.tzinfo is None:
        raise ValueError(f"{_shown(value)} has no zone")
    return time.astimezone(UTC)


def _typed(kind: type, name: str, value: Any) -> Any:
    if type(value) is kind:
        return value
    raise TypeError(f"{_shown(value)} is not {name}")


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{_shown(value)} is not a finite number")
    return float(value)


def _same(value: Any) -> Any:
    return value


_FORMS: Mapping[Any, ValueForm] = {
    int: ValueForm(integer, _same),
    str: ValueForm(text, _same),
    bool: ValueForm(partial(_typed, bool, "true or false"), _same),
    float: ValueForm(_number, _same),
    datetime: ValueForm(time_of, lambda time: time.astimezone(UTC).isoformat()),
    Any: ValueForm(_same, _same),
}


def _derived_form(hint: Any) -> ValueForm:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return ValueForm(partial(integer, valid=arguments[1]), _same)
    if origin in (Union, UnionType):
        (form,) = (_form(part) for part in arguments if part is not NoneType)
        return ValueForm(*(partial(_unless_none, convert) for convert in form))
    if origin is Mapping:
        return _object(_form(arguments[1]))
    if origin in (tuple, Sequence, frozenset):
        return _array(_form(arguments[0]), origin)
    if is_dataclass(hint):
        return _record(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _choice(hint)
    return _FORMS[hint]


_form: Callable[[Any], ValueForm] = cache(_derived_form)


def _unless_none(convert: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else convert(value)


def _choice(kind: type[Enum]) -> ValueForm:
    values = {member.value: member for member in kind}

    def decode_choice(value: Any) -> Enum:
        if type(value) is not str or value not in values:
            raise ValueError(f"{_shown(value)} is not one of {', '.join(values)}")
        return values[value]

    return ValueForm(decode_choice, lambda member: member.value)


def _object(form: ValueForm) -> ValueForm:
    def decode_object(value: Any) -> dict[str, Any]:
        items, entries, name = _typed(dict, "an object", value).items(), {}, ""
        try:
            for name, entry in items:
                entries[name if name.isascii() else text(name)] = form.decode(entry)
        except _FAULTS as error:
            raise _located(f"[{_shown(name)}]", error) from None
        return entries

    return ValueForm(decode_object, lambda entries: {name: form.encode(entry) for name, entry in entries.items()})


def _array(form: ValueForm, kind: Any) -> ValueForm:
    create, order = (frozenset, sorted) if kind is frozenset else (tuple, _same)

    def decode_item(position: int, value: Any) -> Any:
        try:
            return form.decode(value)
        except _FAULTS as error:
            raise _located(f"[{position}]", error) from None

    return ValueForm(
        lambda value: create(starmap(decode_item, enumerate(_typed(list, "an array", value)))),
        lambda items: [form.encode(item) for item in order(items)],
    )


def _record(kind: Any) -> ValueForm:
    hints = get_type_hints(kind, include_extras=True)
    decoded, encoded = [], []
    for field in (field for field in fields(kind) if field.metadata != GIVEN):
        storage = field.metadata.get(_METADATA, _Storage())
        name, form = storage.name or field.name, storage.form or _form(hints[field.name])
        default = field.default if field.default_factory is MISSING else field.default_factory()
        decoded.append((field.name, name, form.decode, default is MISSING))
        encoded.append((field.name, name, form.encode, default if storage.is_left_out else MISSING))
    create = getattr(kind, "from_stored", kind)

    def decode_record(value: Any, **arguments: Any) -> Any:
        _typed(dict, "an object", value)
        for name, key, decode_field, is_required in decoded:
            if key in value:
                try:
                    arguments[name] = decode_field(value[key])
                except _FAULTS as error:
                    raise _located(f".{key}", error) from None
            elif is_required:
                raise KeyError(key)
        return create(**arguments)

    def encode_record(record: Any) -> dict[str, Any]:
        values = {}
        for name, key, encode_field, default in encoded:
            value = getattr(record, name)
            if default is MISSING or value != default:
                values[key] = encode_field(value)
        return values

    return ValueForm(decode_record, encode_record)
