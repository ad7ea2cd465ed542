"""The official client, with deadlines."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from datadog_api_client import ApiClient, Configuration
from datadog_api_client.exceptions import ApiException, OpenApiException
from datadog_api_client.rest import RESTClientObject
from urllib3 import BaseHTTPResponse, Retry

from autothrottle.adapters.datadog.rate_limit import RateLimit
from autothrottle.adapters.datadog.settings import DatadogSettings
from autothrottle.adapters.http.bounded_calls import MAX_BODY_BYTES, Call, Exchange, Failure, read_json
from autothrottle.adapters.http.connections import cut_by_exchanges, drop_idle_connections

CONCURRENT_READS = 24
"""1,000 hosts at 45 ms a request take 2 s."""
CONCURRENT_POSTS = 2


def datadog_call(name: str, send: Callable[[], object], limit: RateLimit, most_bytes: int = MAX_BODY_BYTES) -> Call:
    """Return a call that obeys its endpoint's rate limit, and whose errors of the official client are failures."""

    def sent() -> object:
        limit.check()
        try:
            response = cast(BaseHTTPResponse, send())
        except OpenApiException as error:
            if isinstance(error, ApiException) and error.status:
                limit.note(error.status, error.headers or {})
            raise _failure_of(error) from None
        limit.note(response.status, response.headers)
        return response

    return Call(name, sent, partial(read_json, limit=most_bytes))


def _failure_of(error: OpenApiException) -> Failure:
    if isinstance(error, ApiException) and error.status:
        return Failure(f"answers {error.status}{_server_message(error.body)}", error.status)
    if isinstance(error, ApiException):
        return Failure(f"cannot be trusted: {str(error.reason).splitlines()[-1]}")
    return Failure(f"cannot be called: {error}; set api-key and app-key")


def _server_message(body: object) -> str:
    errors = body.get("errors") if isinstance(body, dict) else None
    return f": {errors[0]}" if isinstance(errors, list) and errors else ""


class DatadogApiClient(ApiClient):
    """The official client, whose calls end when their exchange ends; every call must run in an `Exchange`."""

    def __init__(self, settings: DatadogSettings) -> None:
        super().__init__(_configuration(settings))

    def _build_rest_client(self) -> _Rest:
        return _Rest(self.configuration, maxsize=CONCURRENT_READS + CONCURRENT_POSTS)

    def drop_idle_connections(self) -> None:
        drop_idle_connections(self.rest_client.pool_manager)


class _Rest(RESTClientObject):
    """The client's HTTP layer, with a timeout for each call instead of one for all."""

    def __init__(self, configuration: Configuration, maxsize: int) -> None:
        super().__init__(configuration, maxsize=maxsize)  # type: ignore[no-untyped-call]
        cut_by_exchanges(self.pool_manager)

    def request(self, *arguments: Any, **keywords: Any) -> Any:
        keywords["request_timeout"] = Exchange.current().seconds_left()
        return super().request(*arguments, **keywords)  # type: ignore[no-untyped-call]


def _configuration(settings: DatadogSettings) -> Configuration:
    configuration = Configuration(
        host=None if settings.url is None else settings.url.rstrip("/"),
        preload_content=False,  # we parse responses, so that one odd series does not break the others
        retry_policy=Retry(total=False),  # no retry, and no redirect, which would send the keys elsewhere
    )
    # Set explicitly: the client fills empty values from DD_API_KEY, DD_APP_KEY and DD_SITE.
    configuration.api_key = {"apiKeyAuth": settings.api_key, "appKeyAuth": settings.app_key}
    configuration.server_variables = {}
    return configuration
