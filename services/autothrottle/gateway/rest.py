"""The routes of /v1, derived from the annotations of a service's proto: JSON to messages and back.

Source: google/api/http.proto. Supported are unary calls whose path templates match whole path segments.
The type to know is `Binding`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from google.api import annotations_pb2, http_pb2
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from autothrottle.core.errors import FIELD_ERRORS, Invalid
from autothrottle.gateway.answers import ADMIN_TIMEOUT, SUBMIT_TIMEOUT, Answer, Call, document, parameters

_PLANS = ("Rebuild", "Rebalance", "Scale", "Decommission", "PlanPools", "GetPoolStatus", "GetCapacity")
_TIMEOUTS = dict.fromkeys(("SubmitReassignment", "EstimateReassignment", *_PLANS), SUBMIT_TIMEOUT)
"""Method -> timeout, if longer than the default."""

_TEMPLATE = re.compile(r"\{([a-z0-9_.]+)\}")
_QUOTED = re.compile(r'"([^"]{1,60})"')
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})", re.ASCII)
_RENAMED = {"iMeanIt": "force", "i_mean_it": "force"}
"""Parameter of an earlier version -> its name now."""

_BITS = {FieldDescriptor.CPPTYPE_INT32: 31, FieldDescriptor.CPPTYPE_INT64: 63}

_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|-?Infinity|NaN", re.ASCII)

_PLAIN: Mapping[str | int, re.Pattern[str]] = {
    **dict.fromkeys((*_BITS, FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64), _INTEGER),
    **dict.fromkeys((FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT), _NUMBER),
    FieldDescriptor.CPPTYPE_ENUM: re.compile(r"[A-Z][A-Z0-9_]*|[0-9]+", re.ASCII),
    "google.protobuf.Timestamp": re.compile(r"[0-9TtZz:.+-]+", re.ASCII),
    "google.protobuf.Duration": re.compile(r"-?[0-9]+(?:\.[0-9]+)?s", re.ASCII),
}
"""Type of a field -> the form of its values in strings. The conversion checks the rest."""


@dataclass(frozen=True, slots=True)
class Binding:
    """An HTTP verb and path that call one method."""

    verb: str
    """GET, PUT, POST, PATCH or DELETE."""
    path: str
    """With parameters in JSON's spelling: `/v1/brokers/{brokerId}/override`."""
    fields: Mapping[str, str]
    """Path parameter -> field of the request: `brokerId` -> `override.broker_id`."""
    body: str
    """Request field in the body; "*": the whole request; "": no body."""
    method: MethodDescriptor

    @property
    def in_query(self) -> tuple[FieldDescriptor, ...]:
        """Request fields that are neither in the path nor in the body."""
        if self.body == "*":
            return ()
        other_fields = {self.body, *self.fields.values()}
        return tuple(f for f in self.method.input_type.fields if f.name not in other_fields and _is_plain(f))

    @property
    def etag(self) -> str:
        """Request field that `If-Match` sets: the etag of the version to change; "": none."""
        inside = f"{self.body}.etag" if self.body not in ("", "*") and "etag" in body_of(self).fields_by_name else ""
        return "etag" if "etag" in self.method.input_type.fields_by_name else inside


def bindings(service: ServiceDescriptor) -> tuple[Binding, ...]:
    """Return all routes of a service, in the order of its proto."""
    return tuple(binding for method in service.methods for binding in _of(method))


def answer(
    binding: Binding, call: Call, in_path: Mapping[str, str], query: str, body: bytes, if_match: str | None = None
) -> Answer:
    """Call the method and return its response as JSON. The ETag header repeats the etag of an override or quota.

    Raises:
        Invalid: the request does not fit the route.
        AutothrottleError: the admin service answered with an error.
    """
    timeout = _TIMEOUTS.get(binding.method.name, ADMIN_TIMEOUT)
    response = call(binding.method.name, request(binding, in_path, query, body, if_match), timeout)
    made = document(200, json_format.MessageToDict(response, always_print_fields_with_no_presence=True))
    changed = getattr(response, "override", None) or getattr(response, "quota", None)
    etag = getattr(changed, "etag", "")
    return replace(made, headers={"etag": f'"{etag}"'}) if etag else made


def request(
    binding: Binding, in_path: Mapping[str, str], query: str, body: bytes, if_match: str | None = None
) -> Message:
    """Convert an HTTP request to a message.

    Args:
        binding: the route.
        in_path: path parameter -> text.
        query: raw URL query.
        body: request body.
        if_match: the If-Match header of a changing request; None: absent.

    Raises:
        Invalid: a parameter or field is unknown, repeated or malformed, or the body is not a JSON object.
    """
    message: Message = GetMessageClass(binding.method.input_type)()
    _read_body(message, binding, body)
    query_fields = {name: f for f in binding.in_query for name in (f.name, f.json_name)}
    given: dict[str, str] = {}
    for name, text in parameters(query).items():
        if name not in query_fields:
            if (renamed := _RENAMED.get(name)) in query_fields:
                raise Invalid(f"parameter {name!r} is {renamed!r} now; give {renamed}={text}")
            raise Invalid(f"unknown parameter {name!r}; {_knows(binding)}")
        if given.setdefault(query_fields[name].name, text) is not text:
            raise Invalid(f"{query_fields[name].json_name} is given twice, in both of its spellings; give it once")
    for parameter, name in binding.fields.items():
        given[name] = in_path[parameter]
    if if_match is not None:
        name, text = binding.etag, _etag(binding, if_match)
        if given.setdefault(name, text) != text:
            raise Invalid(f"etag is {given[name]} in the URL and {text} in If-Match; give it once")
    for name, text in given.items():
        _set(message, field_at(binding.method.input_type, name), name, text)
    return message


def _of(method: MethodDescriptor) -> Iterator[Binding]:
    rule = method.GetOptions().Extensions[annotations_pb2.http]
    for binding in (rule, *rule.additional_bindings) if rule.WhichOneof("pattern") else ():
        yield _binding(method, binding)


def _binding(method: MethodDescriptor, rule: http_pb2.HttpRule) -> Binding:
    verb = str(rule.WhichOneof("pattern"))
    path: str = getattr(rule, verb)
    fields = {field_at(method.input_type, name).json_name: name for name in _TEMPLATE.findall(path)}
    spelled = _TEMPLATE.sub(lambda match: f"{{{field_at(method.input_type, match[1]).json_name}}}", path)
    return Binding(verb.upper(), spelled, fields, rule.body, method)


def field_at(message: Descriptor, path: str) -> FieldDescriptor:
    """Return the field at a path like `override.broker_id`."""
    first, _, rest = path.partition(".")
    field = message.fields_by_name[first]
    return field_at(message_of(field), rest) if rest else field


def message_of(field: FieldDescriptor) -> Descriptor:
    """Return the message type of a field."""
    assert field.message_type is not None, f"{field.full_name} is not a message"
    return field.message_type


def body_of(binding: Binding) -> Descriptor:
    """Return the message type of a route's body."""
    whole = binding.method.input_type
    return whole if binding.body == "*" else message_of(field_at(whole, binding.body))


def _is_plain(field: FieldDescriptor) -> bool:
    plain = (*_BITS, FieldDescriptor.CPPTYPE_BOOL, FieldDescriptor.CPPTYPE_STRING)
    return field.cpp_type in plain and not field.is_repeated


def _knows(binding: Binding) -> str:
    names = [f.json_name for f in binding.in_query]
    route = f"{binding.verb} {binding.path}"
    return f"{route} takes {', '.join(names)}" if names else f"{route} takes no parameters"


def _read_body(message: Message, binding: Binding, body: bytes) -> None:
    if not binding.body:
        if body:
            raise Invalid(f"{binding.verb} {binding.path} takes no body; {_knows(binding)}")
        return
    target: Message = message if binding.body == "*" else getattr(message, binding.body)
    if not body and binding.body == "*":
        return
    try:
        text = body.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_without_duplicates)
        if "\\u" in text:  # half of a surrogate pair is not text: neither a message nor a response can contain it
            json.dumps(value, ensure_ascii=False).encode()
        if not isinstance(value, dict):
            raise Invalid("the body is not a JSON object; /openapi.json shows the allowed fields")
        _refuse_loose_values(value, body_of(binding))
        target.SetInParent()
        json_format.ParseDict(value, target)
    except (*FIELD_ERRORS, json_format.ParseError) as error:
        raise Invalid(f"the body cannot be read: {error}; give a JSON object as in /openapi.json") from None


def _refuse_loose_values(value: Any, message: Descriptor) -> None:
    """Refuse what Python's own conversion of JSON accepts beyond proto3's format.

    Numbers and times in strings may otherwise have any digits of Unicode, underscores and spaces.

    Raises:
        Invalid: a field is given in both of its spellings, or such a string is not plain.
    """
    fields = {name: field for field in message.fields for name in (field.name, field.json_name)}
    given: set[str] = set()
    for name, inner in value.items() if isinstance(value, dict) else ():
        field = fields.get(name)
        if field is None:
            continue  # the conversion names it
        if field.name in given:
            raise Invalid(f"the body gives {field.json_name} twice, in both of its spellings; give it once")
        given.add(field.name)
        for item in inner if field.is_repeated and isinstance(inner, list) else (inner,):
            _refuse_loose_value(item, field)


def _refuse_loose_value(value: Any, field: FieldDescriptor) -> None:
    pattern = _PLAIN.get(field.message_type.full_name if field.message_type else field.cpp_type)
    if pattern and isinstance(value, str) and not pattern.fullmatch(value):
        raise Invalid(f"{field.json_name} {value[:60]!r} is not plain; give it as /openapi.json shows, in ASCII digits")
    if field.message_type and not pattern:
        _refuse_loose_values(value, field.message_type)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise Invalid(f"the body gives {twice!r} twice; give it once")
    return values


def _etag(binding: Binding, if_match: str) -> str:
    match = _QUOTED.fullmatch(if_match)
    if match is None or not binding.etag:
        takes = "one etag in quotes, as a header ETag shows it" if binding.etag else "none"
        raise Invalid(f"If-Match {if_match[:60]!r}: {binding.verb} {binding.path} takes {takes}")
    return match[1]


def _set(message: Message, field: FieldDescriptor, path: str, text: str) -> None:
    """Set a field from the URL. A different value in the body is a contradiction."""
    *parents, name = path.split(".")
    for parent in parents:
        message = getattr(message, parent)
    value = _scalar(field, text)
    current = getattr(message, name)
    given = message.HasField(name) if field.has_presence else bool(current)
    if given and current != value:
        raise Invalid(f"{field.json_name} is {text} in the URL and {current} in the body; give it once")
    setattr(message, name, value)


def _scalar(field: FieldDescriptor, text: str) -> int | bool | str:
    bits = _BITS.get(field.cpp_type)
    if bits:
        if not _INTEGER.fullmatch(text) or not -(2**bits) <= int(text) < 2**bits:
            raise Invalid(f"{field.json_name} {text!r} is not an integer below 2^{bits}; give decimal digits only")
        return int(text)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        if text not in ("true", "false"):
            raise Invalid(f"{field.json_name} {text!r} is neither true nor false")
        return text == "true"
    return text
