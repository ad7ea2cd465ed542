"""Datadog's HTTP API, with deadlines."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial

from urllib3 import BaseHTTPResponse

from autothrottle.adapters.datadog.rate_limit import TOO_MANY_REQUESTS, RateLimit
from autothrottle.adapters.datadog.settings import DatadogSettings
from autothrottle.adapters.http.bounded_calls import MAX_BODY_BYTES, Call, Failure, parse_json, read_body, read_json
from autothrottle.adapters.http.connections import HttpClient
from autothrottle.core.errors import FIELD_ERRORS
from autothrottle.core.texts import encodable

_DEFAULT_URL = "https://api.datadoghq.com"
_MAX_REASON = 200
_ADVICE = {
    **dict.fromkeys((401, 403), "; check api-key and app-key, and that they may read metrics and host tags"),
    TOO_MANY_REQUESTS: "; give a longer interval, or ask Datadog for a higher limit",
}


class DatadogClient(HttpClient):
    """A client of Datadog's HTTP API, whose errors show no key. `close` ends its threads."""

    def __init__(self, name: str, width: int, settings: DatadogSettings) -> None:
        super().__init__(name, width, "Datadog", _ADVICE)
        self._url = (settings.url or _DEFAULT_URL).rstrip("/")
        self._keys = {"DD-API-KEY": settings.api_key, "DD-APPLICATION-KEY": settings.app_key}

    def call(
        self,
        name: str,
        path: str,
        limit: RateLimit,
        body: Mapping[str, object] | None = None,
        note_headers: Callable[[Mapping[str, str]], None] = lambda headers: None,
        most_bytes: int = MAX_BODY_BYTES,
    ) -> Call:
        """Return a call that obeys its endpoint's rate limit.

        Args:
            name: of the call in messages.
            path: below `/api/v1/`, with the query.
            limit: the rate limit of the endpoint.
            body: is posted; None: a GET request.
            note_headers: called with the headers of a successful response, from another thread.
            most_bytes: limit of the response.
        """
        headers = {**self._keys, "accept": "application/json", "accept-encoding": "gzip"}
        if body is not None:
            headers["content-type"] = "application/json"

        def send() -> BaseHTTPResponse:
            if not self._keys["DD-API-KEY"]:
                raise Failure("cannot be called: the header DD-API-KEY is empty; set api-key and app-key")
            limit.check()
            response = self.send(
                f"{self._url}/api/v1/{path}", headers, None if body is None else json.dumps(body).encode()
            )
            limit.note(response.status, response.headers)
            if response.status >= 300:
                raise Failure(f"answers {response.status}{_server_message(response)}", response.status)
            note_headers(response.headers)
            return response

        return Call(name, send, partial(read_json, limit=most_bytes))

    def check_key(self) -> Call:
        """Return a call that checks the API key."""
        return self.call("validate", "validate", RateLimit())

    def shown(self, reason: str) -> str:
        """Return a server's text without our keys: it may quote our headers."""
        for key in self._keys.values():
            reason = reason.replace(key, "***") if key else reason
        return encodable(reason, _MAX_REASON)


def _server_message(response: BaseHTTPResponse) -> str:
    try:
        return f": {parse_json(read_body(response))['errors'][0]}"
    except FIELD_ERRORS:
        return ""
