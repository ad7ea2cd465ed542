"""The official client with its settings, with deadlines and rate limits."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import cast
from urllib.parse import urlencode

from datadog_api_client import ApiClient, Configuration
from datadog_api_client.exceptions import OpenApiException
from datadog_api_client.v1.api.authentication_api import AuthenticationApi
from urllib3 import BaseHTTPResponse

from autothrottle.adapters.http.client import (
    MAX_BODY_BYTES,
    Call,
    Failure,
    HttpClient,
    parse_json,
    read_body,
    read_json,
)
from autothrottle.core.errors import FIELD_ERRORS, Invalid
from autothrottle.core.texts import encodable
from autothrottle_client.files import ReloadedFiles, read_text

TOO_MANY_REQUESTS = 429

MAX_PAUSE_SECONDS = 300.0
"""Longest pause that a header can cause: a wrong value must not end the reading of loads for hours."""

_MAX_REASON = 200
_ADVICE = {
    **dict.fromkeys((401, 403), "; check api-key and app-key, and that they may read metrics and host tags"),
    TOO_MANY_REQUESTS: "; give a longer interval, or ask Datadog for a higher limit",
}


DatadogKeys = tuple[str, str]
"""The API key and the application key."""


def read_key_files(keys: DatadogKeys, paths: tuple[str, str]) -> ReloadedFiles[DatadogKeys] | None:
    """Return the keys, of which those in files are read again when they change; None: neither is in a file.

    Args:
        keys: the API key and the application key, for those without a file.
        paths: of their files; "": none.

    Raises:
        Invalid: a file cannot be read, or does not contain a key alone.
    """

    def load() -> DatadogKeys:
        api_key, app_key = (
            _read_key(option, path) if path else key
            for option, path, key in zip(("api-key", "app-key"), paths, keys, strict=True)
        )
        return api_key, app_key

    return ReloadedFiles([path for path in paths if path], load, Invalid) if any(paths) else None


def _read_key(option: str, path: str) -> str:
    subject = f"{option}-file {path!r}"
    try:
        key = read_text(path).strip()
    except OSError as error:
        raise Invalid(f"{subject} cannot be read: {error.strerror}. Fix: name a readable file") from None
    except ValueError:
        raise Invalid(f"{subject} is not a text file. Fix: put only the key there") from None
    if not key or not _is_key(key):
        raise Invalid(f"{subject} {'contains more than a key' if key else 'is empty'}. Fix: put only the key there")
    return key


def _is_key(text: str) -> bool:
    """Whether a header may contain it: http.client would include the whole key in its own message."""
    return all("!" <= character <= "~" for character in text)


def _check_keys(keys: DatadogKeys) -> None:
    names = [name for name, key in zip(("api-key", "app-key"), keys, strict=True) if not _is_key(key)]
    if names:
        raise Invalid(
            f"{' and '.join(names)} contains characters that are not allowed in a header (a line end?); give only "
            "the key"
        )


@dataclass(frozen=True, slots=True)
class DatadogSettings:
    """Datadog's address, keys and queries, which the options of the program have checked; `repr` hides the keys."""

    api_key: str = field(repr=False)
    app_key: str = field(repr=False)
    url: str = "https://api.datadoghq.com"
    """`https://host[:port][/path]`."""
    net_tx_query: str = "avg:system.net.bytes_sent{service:kafka} by {host}"
    """Query for the bytes per second sent, by host."""
    net_rx_query: str = "avg:system.net.bytes_rcvd{service:kafka} by {host}"
    """Query for the bytes per second received, by host."""
    net_devices: str = ""
    """Regular expression for the names of all network devices that count; "": names decide."""
    broker_id_tag: str = "broker_id"
    instance_type_tag: str = "instance-type"
    capacity_tag: str | None = None
    """Host tag with the capacity in MB/s; None: no such tag."""
    metrics_window: timedelta = timedelta(seconds=120)
    """Length of a query and its rollup: whole seconds, >= 1."""
    metrics_delay: timedelta = timedelta(0)
    """How long ago a query ends, which is the delay of the newest points: whole seconds, >= 0."""
    event_tags: tuple[str, ...] = ()
    """Tags of every event, in addition to `metrics.EVENT_TAGS`."""
    tag_ttl: timedelta = timedelta(hours=1)
    """How long a host's tags are cached, > 0."""
    key_files: ReloadedFiles[DatadogKeys] | None = field(default=None, repr=False)
    """Files with keys, which replace `api_key` and `app_key`; None: both stay."""

    def __post_init__(self) -> None:
        _check_keys((self.api_key, self.app_key))

    @property
    def keys(self) -> DatadogKeys:
        """The current API key and application key."""
        return self.key_files.current()[0] if self.key_files else (self.api_key, self.app_key)

    @property
    def window_seconds(self) -> int:
        return int(self.metrics_window.total_seconds())

    @property
    def delay_seconds(self) -> int:
        return int(self.metrics_delay.total_seconds())


class RateLimit:
    """Datadog's rate limit of one endpoint, as its last response reported it. Thread-safe."""

    _PERIOD_SECONDS = 60.0
    """Pause after a refusal without a time."""

    def __init__(self) -> None:
        self._until = -math.inf
        self._name = ""

    def check(self) -> None:
        """Raise Failure while the limit is used up."""
        seconds = self._until - time.monotonic()
        if seconds > 0:
            name = self._name.encode("unicode_escape").decode()  # a header may contain terminal escapes
            raise Failure(f"allows no request for {math.ceil(seconds)} s (rate limit {name})", TOO_MANY_REQUESTS)

    def note(self, status: int, headers: Mapping[str, str]) -> None:
        """Remember how long the limit is used up after a response."""
        fields = {name.lower(): value for name, value in headers.items()}
        if status != TOO_MANY_REQUESTS and _seconds(fields, "x-ratelimit-remaining") != 0:
            return
        times = (_seconds(fields, name) for name in ("x-ratelimit-reset", "retry-after", "x-ratelimit-period"))
        self._name = fields.get("x-ratelimit-name", "of the endpoint")[:50]
        pause = next((t for t in times if t is not None), self._PERIOD_SECONDS)
        self._until = time.monotonic() + min(pause, MAX_PAUSE_SECONDS)


def _seconds(fields: Mapping[str, str], name: str) -> float | None:
    """Return the seconds in a header; None: it is absent, or not a plain number of at most 5 digits."""
    text = fields.get(name, "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 6 else None


class DatadogClient(HttpClient):
    """Sends the requests of the official client; its errors show no key. `close` ends its threads.

    The official client has no deadline, and one odd series would make it refuse a whole response. So it only builds
    the requests: this class sends them and returns unread responses.
    """

    def __init__(self, name: str, width: int, settings: DatadogSettings) -> None:
        super().__init__(name, width, "Datadog", _ADVICE)
        self._settings = settings
        self._keys = {"apiKeyAuth": "", "appKeyAuth": ""}
        self._shown_keys: set[str] = set()
        """Keys that a server may quote: also those of requests that are still in progress."""
        self._renew_keys()
        configuration = Configuration(host=settings.url.rstrip("/"), preload_content=False)
        # Set explicitly: the client fills empty values from DD_API_KEY, DD_APP_KEY and DD_SITE.
        configuration.api_key = self._keys
        configuration.server_variables = {}
        self.api = ApiClient(configuration)
        """The official client; each of its calls must be the request of a `call`."""
        self.api.rest_client = self

    def request(
        self,
        method: str,
        url: str,
        query_params: list[tuple[str, object]] | None,
        headers: Mapping[str, str],
        body: object,
        **options: object,
    ) -> BaseHTTPResponse:
        """Send a request of the official client."""
        query = f"?{urlencode(query_params)}" if query_params else ""
        return self.send(url + query, headers, None if method == "GET" else json.dumps(body).encode(), method)

    def call(
        self,
        name: str,
        request: Callable[[], object],
        limit: RateLimit,
        note_headers: Callable[[Mapping[str, str]], None] = lambda headers: None,
        most_bytes: int = MAX_BODY_BYTES,
    ) -> Call:
        """Return a call that obeys its endpoint's rate limit.

        Args:
            name: of the call in messages.
            request: calls the official client.
            limit: the rate limit of the endpoint.
            note_headers: called with the headers of a successful response, from another thread.
            most_bytes: limit of the response.
        """

        def send() -> BaseHTTPResponse:
            limit.check()
            self._renew_keys()
            try:
                response = cast(BaseHTTPResponse, request())
            except OpenApiException as error:
                raise Failure(f"cannot be called: {error}; set api-key and app-key") from None
            limit.note(response.status, response.headers)
            if response.status >= 300:
                raise Failure(f"answers {response.status}{_server_message(response)}", response.status)
            note_headers(response.headers)
            return response

        return Call(name, send, partial(read_json, limit=most_bytes))

    def _renew_keys(self) -> None:
        """Let the official client send the current keys."""
        api_key, app_key = self._settings.keys
        self._keys.update(apiKeyAuth=api_key, appKeyAuth=app_key)
        self._shown_keys |= {key for key in (api_key, app_key) if key}

    def check_key(self) -> Call:
        """Return a call that checks the API key."""
        return self.call("validate", AuthenticationApi(self.api).validate, RateLimit())

    def shown(self, reason: str) -> str:
        """Return a server's text without our keys: it may quote our headers."""
        for key in sorted(self._shown_keys, key=len, reverse=True):
            reason = reason.replace(key, "***")
        return encodable(reason, _MAX_REASON)


def _server_message(response: BaseHTTPResponse) -> str:
    try:
        return f": {parse_json(read_body(response))['errors'][0]}"
    except FIELD_ERRORS:
        return ""
