"""The routes of /v1 as the annotations of a service's proto say them: JSON to messages and back.

Source: google/api/http.proto, of which this is the part that unary calls with templates of whole path segments need.
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

from autothrottle.core.errors import Invalid
from autothrottle.gateway.answers import ADMIN_TIMEOUT, SUBMIT_TIMEOUT, Admin, Answer, document, parameters

_TIMEOUTS = {"SubmitReassignment": SUBMIT_TIMEOUT, "EstimateReassignment": SUBMIT_TIMEOUT}
"""Method -> how long it may take, where that is longer than usual."""

_TEMPLATE = re.compile(r"\{([a-z0-9_.]+)\}")
_QUOTED = re.compile(r'"([^"]{1,60})"')
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})", re.ASCII)
_BITS = {FieldDescriptor.CPPTYPE_INT32: 31, FieldDescriptor.CPPTYPE_INT64: 63}


@dataclass(frozen=True, slots=True)
class Binding:
    """One verb and path over HTTP that stand for one method."""

    verb: str
    """GET, PUT, POST, PATCH or DELETE."""
    path: str
    """With its parameters in JSON's spelling: `/v1/brokers/{brokerId}/override`."""
    fields: Mapping[str, str]
    """Parameter of the path -> field of the request: `brokerId` -> `override.broker_id`."""
    body: str
    """Field of the request that the body is; "*": the whole request; "": there is no body."""
    method: MethodDescriptor
    number: int
    """0 for the first of a method, then 1, 2 ..."""

    @property
    def in_query(self) -> tuple[FieldDescriptor, ...]:
        """The fields of the request that neither the path nor the body holds."""
        if self.body == "*":
            return ()
        taken = {self.body, *self.fields.values()}
        return tuple(f for f in self.method.input_type.fields if f.name not in taken and _is_plain(f))

    @property
    def etag(self) -> str:
        """The field of the request that says which version is to be changed, which `If-Match` sets; "": none."""
        inside = f"{self.body}.etag" if self.body not in ("", "*") and "etag" in body_of(self).fields_by_name else ""
        return "etag" if "etag" in self.method.input_type.fields_by_name else inside


def bindings(service: ServiceDescriptor) -> tuple[Binding, ...]:
    """Return all routes of a service, in the order of its proto."""
    return tuple(binding for method in service.methods for binding in _of(method))


def answer(
    binding: Binding, admin: Admin, in_path: Mapping[str, str], query: str, body: bytes, if_match: str | None = None
) -> Answer:
    """Return what the method answers, as JSON; the etag of what it tells of stands in the header too.

    Raises:
        Invalid: when the request is not what the route takes.
        AutothrottleError: what the admin service answered.
    """
    timeout = _TIMEOUTS.get(binding.method.name, ADMIN_TIMEOUT)
    response = admin.call(binding.method.name, request(binding, in_path, query, body, if_match), timeout)
    made = document(200, json_format.MessageToDict(response, always_print_fields_with_no_presence=True))
    etag = getattr(getattr(response, "override", None), "etag", "")
    return replace(made, headers={"etag": f'"{etag}"'}) if etag else made


def request(
    binding: Binding, in_path: Mapping[str, str], query: str, body: bytes, if_match: str | None = None
) -> Message:
    """Return the message that a request over HTTP stands for.

    Args:
        binding: its route.
        in_path: parameter of the path -> text.
        query: of the URL.
        body: of the request.
        if_match: the header of this name, of a request that changes something; None: there is none.

    Raises:
        Invalid: when a parameter or a field is unknown, given twice or no such value, or the body is no JSON object.
    """
    message: Message = GetMessageClass(binding.method.input_type)()
    _read_body(message, binding, body)
    known = {name: f for f in binding.in_query for name in (f.name, f.json_name)}
    given: dict[str, str] = {}
    for name, text in parameters(query).items():
        if name not in known:
            raise Invalid(f"unknown parameter {name!r}; {_knows(binding)}")
        if given.setdefault(known[name].name, text) is not text:
            raise Invalid(f"{known[name].json_name} is given twice, in both of its spellings; give it once")
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
    for number, one in enumerate((rule, *rule.additional_bindings) if rule.WhichOneof("pattern") else ()):
        yield _binding(method, one, number)


def _binding(method: MethodDescriptor, rule: http_pb2.HttpRule, number: int) -> Binding:
    verb = str(rule.WhichOneof("pattern"))
    path: str = getattr(rule, verb)
    fields = {field_at(method.input_type, name).json_name: name for name in _TEMPLATE.findall(path)}
    spelled = _TEMPLATE.sub(lambda found: f"{{{field_at(method.input_type, found[1]).json_name}}}", path)
    return Binding(verb.upper(), spelled, fields, rule.body, method, number)


def field_at(message: Descriptor, path: str) -> FieldDescriptor:
    """Return the field at a path like `override.broker_id`."""
    first, _, rest = path.partition(".")
    field = message.fields_by_name[first]
    return field_at(message_of(field), rest) if rest else field


def message_of(field: FieldDescriptor) -> Descriptor:
    """Return what a field holds that is a message."""
    assert field.message_type is not None, f"{field.full_name} is no message"
    return field.message_type


def body_of(binding: Binding) -> Descriptor:
    """Return what the body of a route with a body is."""
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
        if "\\u" in text:  # half of a surrogate pair is no text: neither a message can hold it nor an answer
            json.dumps(value, ensure_ascii=False).encode()
        if not isinstance(value, dict):
            raise Invalid("the body is no JSON object; /openapi.json shows what it may hold")
        target.SetInParent()
        json_format.ParseDict(value, target)
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, json_format.ParseError) as error:
        raise Invalid(f"the body cannot be read: {error}; give a JSON object as /openapi.json shows it") from None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise Invalid(f"the body gives {twice!r} twice; give it once")
    return found


def _etag(binding: Binding, if_match: str) -> str:
    found = _QUOTED.fullmatch(if_match)
    if found is None or not binding.etag:
        takes = "one etag in quotes, as a header ETag shows it" if binding.etag else "none"
        raise Invalid(f"If-Match {if_match[:60]!r}: {binding.verb} {binding.path} takes {takes}")
    return found[1]


def _set(message: Message, field: FieldDescriptor, path: str, text: str) -> None:
    """Set a field that the URL gives; a body that says something else is a contradiction."""
    *parents, name = path.split(".")
    for parent in parents:
        message = getattr(message, parent)
    value = _scalar(field, text)
    stands = getattr(message, name)
    given = message.HasField(name) if field.has_presence else bool(stands)
    if given and stands != value:
        raise Invalid(f"{field.json_name} is {text} in the URL and {stands} in the body; give it once")
    setattr(message, name, value)


def _scalar(field: FieldDescriptor, text: str) -> int | bool | str:
    bits = _BITS.get(field.cpp_type)
    if bits:
        if not _INTEGER.fullmatch(text) or not -(2**bits) <= int(text) < 2**bits:
            raise Invalid(f"{field.json_name} {text!r} is no integer below 2^{bits}; give decimal digits only")
        return int(text)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        if text not in ("true", "false"):
            raise Invalid(f"{field.json_name} {text!r} is neither true nor false")
        return text == "true"
    return text
