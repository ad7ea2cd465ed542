"""The OpenAPI document, and a client that uses only the document."""

from __future__ import annotations

import json
import re
from typing import Any

from autothrottle.gateway import legacy
from autothrottle.gateway.openapi import comments
from autothrottle.gateway.rest import bindings
from autothrottle.gateway.web import SERVICES
from tests.builders import mb
from tests.unit.autothrottle.gateway.front import Front, Reply

EXAMPLES: dict[str, Any] = {"rateBytesPerSecond": "50000000", "autoremove": True, "brokerId": 1001}
"""Property or parameter name in the document -> example value."""


class Driven:
    """A client that builds requests from the document, given operation names and values by name."""

    def __init__(self, front: Front) -> None:
        self.front = front
        self.document = front.ask("GET", "/openapi.json").json

    def operation(self, name: str) -> tuple[str, str, dict[str, Any]]:
        """Return (verb, path, operation)."""
        ((verb, path, operation),) = [
            (verb, path, operation)
            for path, verbs in self.document["paths"].items()
            for verb, operation in verbs.items()
            if operation["operationId"] == name
        ]
        return verb, path, operation

    def call(self, name: str, **values: Any) -> Reply:
        """Send the request of an operation with all values that the document accepts."""
        verb, path, operation = self.operation(name)
        for parameter in operation["parameters"]:
            if parameter["in"] == "path":
                path = path.replace(f"{{{parameter['name']}}}", str(values[parameter["name"]]))
        body = None
        if "requestBody" in operation:
            schema = self.schema(operation["requestBody"]["content"]["application/json"]["schema"])
            in_path = {parameter["name"] for parameter in operation["parameters"]}
            body = json.dumps({p: values[p] for p in schema["properties"] if p in values and p not in in_path})
        return self.front.ask(verb.upper(), path, body)

    def schema(self, found: dict[str, Any]) -> dict[str, Any]:
        """Return a schema with its reference resolved."""
        if "$ref" not in found:
            return found
        schema: dict[str, Any] = self.document["components"]["schemas"][found["$ref"].rpartition("/")[2]]
        return schema


def test_the_document_is_valid(front: Front) -> None:
    from openapi_spec_validator import validate  # slow, and every worker imports this module

    validate(front.ask("GET", "/openapi.json").json)


def test_a_client_built_on_the_document_sets_and_removes_an_override(front: Front) -> None:
    client = Driven(front)
    reply = client.call("SetOverrideByBrokerId", **EXAMPLES)
    assert reply.status == 200
    assert front.current() == {1001: (mb(50), True)}
    _, _, operation = client.operation("SetOverrideByBrokerId")
    answered = client.schema(operation["responses"]["200"]["content"]["application/json"]["schema"])
    assert reply.json.keys() <= answered["properties"].keys()
    override = client.call("GetOverrideByBrokerId", **EXAMPLES).json["override"]
    assert override == EXAMPLES | {"etag": override["etag"], "beyondCapacity": False, "effect": ""}
    assert client.call("RemoveOverrideByBrokerId", **EXAMPLES).status == 200
    assert front.current() == {}


def test_the_document_contains_exactly_the_routes(front: Front) -> None:
    paths = front.ask("GET", "/openapi.json").json["paths"]
    found = {(verb.upper(), path) for path, verbs in paths.items() for verb in verbs}
    assert found == {(route.verb, route.path) for service in SERVICES for route in bindings(service)}


def test_the_document_contains_if_match_where_it_is_accepted(front: Front) -> None:
    paths = front.ask("GET", "/openapi.json").json["paths"]
    operations = [operation for verbs in paths.values() for operation in verbs.values()]
    taking = {o["operationId"] for o in operations if any(p["in"] == "header" for p in o["parameters"])}
    names = {"SetOverride", "RemoveOverride"}
    assert taking == names | {f"{name}ByBrokerId" for name in names} | {"SetQuota", "RemoveQuota"}


def test_the_document_contains_the_comments_of_the_protos(front: Front) -> None:
    document = front.ask("GET", "/openapi.json").json
    operation = document["paths"]["/v1/override"]["put"]
    assert operation["summary"] == "Sets an override and replaces the current one."
    assert "INVALID_ARGUMENT when the rate" in operation["description"]
    descriptions = comments()
    for name, schema in document["components"]["schemas"].items():
        assert schema["description"], name
        for property, of in schema.get("properties", {}).items():
            assert of["description"], (name, property)
    assert all(descriptions[method.full_name] for service in SERVICES for method in service.methods)


def test_a_64_bit_integer_is_documented_as_a_string(front: Front) -> None:
    schemas = front.ask("GET", "/openapi.json").json["components"]["schemas"]
    rate = schemas["Override"]["properties"]["rateBytesPerSecond"]
    assert (rate["type"], rate["format"]) == ("string", "int64")
    assert "Bytes per second" in rate["description"] and "string of decimal digits" in rate["description"]
    assert schemas["Override"]["properties"]["brokerId"]["type"] == "integer"


def test_enums_are_documented_by_name(front: Front) -> None:
    schemas = front.ask("GET", "/openapi.json").json["components"]["schemas"]
    reason = schemas["Decision.Reason"]
    assert "REASON_HEADROOM" in reason["enum"]
    assert "REASON_HEADROOM: The configured share of the measured headroom." in reason["description"]


def test_the_page_lists_every_route_and_loads_no_resources(front: Front) -> None:
    reply = front.ask("GET", "/api")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    for route in (route for service in SERVICES for route in bindings(service)):
        assert f"<td>{route.verb}</td>" in reply.text and route.path in reply.text
        assert comments()[route.method.full_name].partition(".")[0] in reply.text
    for _, path, _ in legacy.ROUTES:
        assert path.replace("&", "&amp;") in reply.text
    assert re.findall(r"<script|<img|<link|(?:src|href)=\"(?:/|[a-z]+:)", reply.text) == []  # a proxy may add a path
