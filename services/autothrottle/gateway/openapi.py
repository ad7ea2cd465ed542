"""The OpenAPI document of /v1, from the same descriptors and annotations that the routes are made of.

Descriptions are the protos' comments (`autothrottle/v1/comments.json`, which `make proto` writes).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from autothrottle import __version__
from autothrottle.gateway.rest import Binding, body_of, field_at

Json = dict[str, Any]

_PACKAGE = "autothrottle.v1."
_ERROR = "Error"

_INT64 = (
    "A 64-bit integer as a string of decimal digits: numbers of JSON are exact up to 2^53 only. A number is taken too."
)

_IF_MATCH: Json = {
    "name": "If-Match",
    "in": "header",
    "required": False,
    "description": "The etag of the version that is to be changed, in quotes, and no other: 409 when another stands.",
    "schema": {"type": "string"},
}

_SCALARS: Mapping[int, Json] = {
    FieldDescriptor.TYPE_INT32: {"type": "integer", "format": "int32"},
    FieldDescriptor.TYPE_INT64: {"type": "string", "format": "int64", "pattern": "^-?[0-9]+$"},
    FieldDescriptor.TYPE_UINT32: {"type": "integer", "format": "int64", "minimum": 0},
    FieldDescriptor.TYPE_UINT64: {"type": "string", "format": "uint64", "pattern": "^[0-9]+$"},
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_BYTES: {"type": "string", "format": "byte"},
    FieldDescriptor.TYPE_DOUBLE: {"type": "number", "format": "double"},
    FieldDescriptor.TYPE_FLOAT: {"type": "number", "format": "float"},
}
_WELL_KNOWN: Mapping[str, Json] = {
    "google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    "google.protobuf.Duration": {"type": "string", "pattern": "^-?[0-9]+([.][0-9]+)?s$"},
}


def comments() -> Mapping[str, str]:
    """Return the comment of everything in the protos, by its full name."""
    text = resources.files("autothrottle.v1").joinpath("comments.json").read_text("utf-8")
    found: dict[str, str] = json.loads(text)
    return found


def openapi(routes: Sequence[Binding], said: Mapping[str, str]) -> Json:
    """Return the document.

    Args:
        routes: what it describes; not empty.
        said: full name of a proto's element -> its comment.
    """
    paths: dict[str, Json] = {}
    for binding in routes:
        paths.setdefault(binding.path, {})[binding.verb.lower()] = _operation(binding, said)
    service = routes[0].method.containing_service.full_name
    return {
        "openapi": "3.0.3",
        "info": {"title": "autothrottle", "version": __version__, "description": said.get(service, "")},
        "servers": [{"url": "/"}],
        "paths": paths,
        # The first is nothing: a gateway without --api-tokens-file asks nobody.
        "security": [{}, {"token": []}],
        "components": {
            "schemas": _schemas(routes, said),
            "responses": {_ERROR: _error()},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(binding: Binding, said: Mapping[str, str]) -> Json:
    method = binding.method
    by = "".join(f"By{name[:1].upper()}{name[1:]}" for name in binding.fields)
    comment = said.get(method.full_name, "")
    operation: Json = {
        "operationId": f"{method.name}{by}",
        "summary": comment.partition(". ")[0].removesuffix(".") + ".",
        "description": comment,
        "tags": [method.containing_service.name],
        "parameters": [
            *_path_parameters(binding, said),
            *_query_parameters(binding, said),
            *([_IF_MATCH] if binding.etag else []),
        ],
        "responses": {
            "200": {
                "description": said.get(method.output_type.full_name, method.output_type.name),
                "content": _json(_reference(method.output_type)),
            },
            "default": {"$ref": f"#/components/responses/{_ERROR}"},
        },
    }
    if binding.body:
        operation["requestBody"] = {"required": binding.body != "*", "content": _json(_reference(body_of(binding)))}
    return operation


def _path_parameters(binding: Binding, said: Mapping[str, str]) -> Iterable[Json]:
    for name, path in binding.fields.items():
        field = field_at(binding.method.input_type, path)
        yield {"name": name, "in": "path", "required": True, **_described(field, said)}


def _query_parameters(binding: Binding, said: Mapping[str, str]) -> Iterable[Json]:
    for field in binding.in_query:
        yield {"name": field.json_name, "in": "query", "required": False, **_described(field, said)}


def _described(field: FieldDescriptor, said: Mapping[str, str]) -> Json:
    return {"description": said.get(field.full_name, ""), "schema": _single(field)}


def _schemas(routes: Sequence[Binding], said: Mapping[str, str]) -> Json:
    schemas: Json = {}
    for binding in routes:
        if binding.body:
            _add(schemas, body_of(binding), said)
        _add(schemas, binding.method.output_type, said)
    return schemas


def _add(schemas: Json, message: Descriptor, said: Mapping[str, str]) -> None:
    """Add a message and all that its fields are made of."""
    name = _name(message)
    if name in schemas or message.full_name in _WELL_KNOWN:
        return
    schemas[name] = {
        "type": "object",
        "description": said.get(message.full_name, ""),
        "properties": {field.json_name: _property(field, said) for field in message.fields},
    }
    for field in message.fields:
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            inner = inner.fields_by_name["value"].message_type
        if inner is not None:
            _add(schemas, inner, said)
        if field.enum_type is not None:
            schemas[_name(field.enum_type)] = _enum(field.enum_type, said)


def _property(field: FieldDescriptor, said: Mapping[str, str]) -> Json:
    comment = said.get(field.full_name, "")
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        value = _single(field.message_type.fields_by_name["value"])
        return {"type": "object", "additionalProperties": value, "description": comment}
    if field.is_repeated:
        return {"type": "array", "items": _single(field), "description": comment}
    schema = _single(field)
    if "$ref" in schema:  # What stands beside a reference is ignored.
        return {"allOf": [schema], "description": comment}
    return {**schema, "description": f"{comment} {schema.get('description', '')}".strip()}


def _single(field: FieldDescriptor) -> Json:
    """Return the schema of one value of a field."""
    if field.message_type is not None:
        return dict(_WELL_KNOWN.get(field.message_type.full_name) or _reference(field.message_type))
    if field.enum_type is not None:
        return _reference(field.enum_type)
    schema = dict(_SCALARS[field.type])
    return {**schema, "description": _INT64} if schema["type"] == "string" and "int64" in str(schema) else schema


def _enum(enum: EnumDescriptor, said: Mapping[str, str]) -> Json:
    scope = enum.full_name.rpartition(".")[0]
    values = [
        f"{v.name}: {said.get(f'{enum.full_name}.{v.name}') or said.get(f'{scope}.{v.name}', '')}" for v in enum.values
    ]
    description = " ".join([said.get(enum.full_name, ""), *values])
    return {"type": "string", "enum": [v.name for v in enum.values], "description": description}


def _reference(described: Descriptor | EnumDescriptor) -> Json:
    return {"$ref": f"#/components/schemas/{_name(described)}"}


def _name(described: Descriptor | EnumDescriptor) -> str:
    return described.full_name.removeprefix(_PACKAGE)


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


def _error() -> Json:
    schema = {
        "type": "object",
        "required": ["code", "message"],
        "properties": {
            "code": {"type": "string", "description": "gRPC's name of the error, for example NOT_FOUND."},
            "message": {"type": "string", "description": "What is wrong, and how to mend it."},
        },
    }
    return {"description": "It was not done; the status is that of the code.", "content": _json(schema)}
