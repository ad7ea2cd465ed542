"""The door of HTTP once more, with requests that schemathesis derives from the OpenAPI document alone.

`make fuzz` installs schemathesis from a file of its own: it brings 28 packages, which nothing else needs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib import import_module
from typing import Any
from urllib.parse import urlencode

from hypothesis import given, seed
from hypothesis import strategies as st

from autothrottle.gateway.openapi import comments, openapi
from autothrottle.gateway.rest import bindings
from autothrottle.gateway.web import SERVICES
from tests.fuzz.http_requests import Attack, HttpRequests
from tests.fuzz.series import ROUND, Result, add_outcome, bounded_memory, example_settings

NAME = "schemathesis"


def run_cases(count: int, first_seed: int, report: Callable[[Result], None]) -> Result:
    """Send at least `count` requests, as many to each operation, valid and invalid ones."""
    result, number, strategies = Result(NAME), first_seed, list(_strategies())
    with closing(HttpRequests()) as door, bounded_memory():
        while result.inputs < count:
            for strategy in strategies:

                @seed(number)
                @example_settings(min(ROUND, count) // len(strategies) + 1)
                @given(strategy)
                def attack(case: Any) -> None:
                    add_outcome(door, _attack(case), "", result)

                attack()
            number += 1
            report(result)
    return result


def _strategies() -> Iterator[st.SearchStrategy[Any]]:
    schemathesis: Any = import_module("schemathesis")  # only `make fuzz` installs it
    routes = [binding for service in SERVICES for binding in bindings(service)]
    schema = schemathesis.openapi.from_dict(openapi(routes, comments()))
    for found in schema.get_all_operations():
        yield st.one_of([found.ok().as_strategy(generation_mode=mode) for mode in schemathesis.GenerationMode])


def _attack(case: Any) -> Attack:
    query = urlencode(case.query or {}, doseq=True, errors="surrogatepass")
    body = case.body if isinstance(case.body, bytes) else b""
    if not body and type(case.body).__name__ != "NotSet":
        body = json.dumps(case.body, default=str).encode("utf-8", "surrogatepass")
    headers = {name.lower(): str(text) for name, text in (case.headers or {}).items()}
    sendable = {name: text for name, text in headers.items() if _is_latin(name) and _is_latin(text)}
    return Attack(case.method, f"{case.formatted_path}?{query}", body, {"host": "localhost", **sendable})


def _is_latin(text: str) -> bool:
    return all(character <= "\xff" for character in text)
