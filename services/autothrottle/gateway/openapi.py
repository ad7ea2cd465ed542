"""The descriptions of the routes: the OpenAPI document of /v1, and the page at /api without scripts.

The document is generated from the same descriptors and annotations as the routes of /v1. Its texts are the comments of
the protos (`autothrottle/v1/comments.json`, written by `make proto`).
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from html import escape
from importlib import resources
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from autothrottle import __version__
from autothrottle.gateway import legacy
from autothrottle.gateway.rest import Binding, body_of, field_at

Json = dict[str, Any]

_PACKAGE = "autothrottle.v1."
_ERROR = "Error"

_INT64 = (
    "A 64-bit integer as a string of decimal digits, since JSON numbers are exact only up to 2^53. Requests may use a "
    "number."
)

_IF_MATCH: Json = {
    "name": "If-Match",
    "in": "header",
    "required": False,
    "description": "The quoted etag of the version to change; 409 if another version is current.",
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

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}td{border-top:1px solid #8886;padding:.4rem .8rem .4rem 0;"
    "vertical-align:top}code{white-space:nowrap}:root{color-scheme:light dark}"
)

PAGE_POLICY: Mapping[str, str] = {
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{b64encode(sha256(_STYLE.encode()).digest()).decode()}'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}
"""Header of the page: only its own styles are allowed."""


def comments() -> Mapping[str, str]:
    """Return full name -> comment of every element of the protos."""
    text = resources.files("autothrottle.v1").joinpath("comments.json").read_text("utf-8")
    comments: dict[str, str] = json.loads(text)
    return comments


def openapi(routes: Sequence[Binding], descriptions: Mapping[str, str]) -> Json:
    """Return the document.

    Args:
        routes: the described routes; not empty.
        descriptions: full name of a proto element -> its comment.
    """
    paths: dict[str, Json] = {}
    for binding in routes:
        paths.setdefault(binding.path, {})[binding.verb.lower()] = _operation(binding, descriptions)
    service = routes[0].method.containing_service.full_name
    return {
        "openapi": "3.0.3",
        "info": {"title": "autothrottle", "version": __version__, "description": descriptions.get(service, "")},
        "servers": [{"url": "/"}],
        "paths": paths,
        # The first alternative requires nothing: a gateway without --api-tokens-file accepts every request.
        "security": [{}, {"token": []}],
        "components": {
            "schemas": _schemas(routes, descriptions),
            "responses": {_ERROR: _error()},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(binding: Binding, descriptions: Mapping[str, str]) -> Json:
    method = binding.method
    by = "".join(f"By{name[:1].upper()}{name[1:]}" for name in binding.fields)
    comment = descriptions.get(method.full_name, "")
    operation: Json = {
        "operationId": f"{method.name}{by}",
        "summary": comment.partition(". ")[0].removesuffix(".") + ".",
        "description": comment,
        "tags": [method.containing_service.name],
        "parameters": list(_parameters(binding, descriptions)),
        "responses": {
            "200": {
                "description": descriptions.get(method.output_type.full_name, method.output_type.name),
                "content": _json(_reference(method.output_type)),
            },
            "default": {"$ref": f"#/components/responses/{_ERROR}"},
        },
    }
    if binding.body:
        operation["requestBody"] = {"required": binding.body != "*", "content": _json(_reference(body_of(binding)))}
    return operation


def _parameters(binding: Binding, descriptions: Mapping[str, str]) -> Iterable[Json]:
    in_path = [(name, "path", field_at(binding.method.input_type, path)) for name, path in binding.fields.items()]
    in_query = [(field.json_name, "query", field) for field in binding.in_query]
    for name, place, field in in_path + in_query:
        description = descriptions.get(field.full_name, "")
        required = place == "path"
        yield {"name": name, "in": place, "required": required, "description": description, "schema": _single(field)}
    if binding.etag:
        yield _IF_MATCH


def _schemas(routes: Sequence[Binding], descriptions: Mapping[str, str]) -> Json:
    schemas: Json = {}
    for binding in routes:
        if binding.body:
            _add(schemas, body_of(binding), descriptions)
        _add(schemas, binding.method.output_type, descriptions)
    return schemas


def _add(schemas: Json, message: Descriptor, descriptions: Mapping[str, str]) -> None:
    """Add a message and the messages and enums of its fields."""
    name = _name(message)
    if name in schemas or message.full_name in _WELL_KNOWN:
        return
    schemas[name] = {
        "type": "object",
        "description": descriptions.get(message.full_name, ""),
        "properties": {field.json_name: _property(field, descriptions) for field in message.fields},
    }
    for field in message.fields:
        value = _value_of_map(field) or field
        if value.message_type is not None:
            _add(schemas, value.message_type, descriptions)
        if value.enum_type is not None:
            schemas[_name(value.enum_type)] = _enum(value.enum_type, descriptions)


def _value_of_map(field: FieldDescriptor) -> FieldDescriptor | None:
    """Return the field of a map's values; None: the field is not a map."""
    entry = field.message_type
    return entry.fields_by_name["value"] if entry is not None and entry.GetOptions().map_entry else None


def _property(field: FieldDescriptor, descriptions: Mapping[str, str]) -> Json:
    comment = descriptions.get(field.full_name, "")
    if value := _value_of_map(field):
        return {"type": "object", "additionalProperties": _single(value), "description": comment}
    if field.is_repeated:
        return {"type": "array", "items": _single(field), "description": comment}
    schema = _single(field)
    if "$ref" in schema:  # siblings of a reference are ignored
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


def _enum(enum: EnumDescriptor, descriptions: Mapping[str, str]) -> Json:
    scope = enum.full_name.rpartition(".")[0]
    values = [
        f"{v.name}: {descriptions.get(f'{enum.full_name}.{v.name}') or descriptions.get(f'{scope}.{v.name}', '')}"
        for v in enum.values
    ]
    description = " ".join([descriptions.get(enum.full_name, ""), *values])
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
            "message": {"type": "string", "description": "What is wrong, and how to fix it."},
        },
    }
    return {"description": "The operation failed; the status corresponds to the code.", "content": _json(schema)}


def page(routes: Sequence[Binding], descriptions: Mapping[str, str]) -> str:
    """Return the page.

    Args:
        routes: the routes of /v1.
        descriptions: full name of a proto element -> its comment.
    """
    json_routes = [(b.verb, b.path, descriptions.get(b.method.full_name, "")) for b in routes]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>autothrottle</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<h1>autothrottle {escape(__version__)}</h1>"
        f'<p><a href=".">What moves now</a></p>'
        f"<p>Replication throttles for Kafka reassignments. Rates under <code>/v1</code> are bytes per second as "
        f"strings; rates of the text routes are whole MB/s. An error has a status, a code and a message.</p>"
        f'<h2>JSON</h2><p>Machine-readable: <a href="openapi.json">/openapi.json</a>.</p>{_html_table(json_routes)}'
        f"<h2>Text</h2><p>The routes of the original autothrottle.</p>{_html_table(legacy.ROUTES)}"
        f"</body></html>\n"
    )


def _html_table(rows: Iterable[tuple[str, str, str]]) -> str:
    return "<table>" + "".join(_html_row(*row) for row in rows) + "</table>"


def _html_row(verb: str, path: str, text: str) -> str:
    shown = f"<code>{escape(path)}</code>"
    relative = escape(path.removeprefix("/"))  # a proxy may serve the page below a path
    link = f'<a href="{relative}">{shown}</a>' if verb == "GET" and "{" not in path else shown
    return f"<tr><td>{escape(verb)}</td><td>{link}</td><td>{escape(text)}</td></tr>"
