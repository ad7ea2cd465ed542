"""Host tags that autothrottle writes to Datadog. The type to know is `DatadogHostTags`."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from datadog_api_client.v1.api.tags_api import TagsApi
from datadog_api_client.v1.model.host_tags import HostTags as HostTagsBody

from autothrottle.adapters.datadog.client import DatadogClient, DatadogSettings, RateLimit
from autothrottle.adapters.http.client import Call, Failure
from autothrottle.core.errors import FIELD_ERRORS, Unavailable
from autothrottle.core.texts import encodable

SOURCE = "autothrottle"
"""Source of our tags: a write replaces the tags of this source only."""

_CONCURRENT_WRITES = 8
_MAX_BODY_BYTES = 256 * 1024 * 1024
"""Limit of a response: the tags of all hosts."""


class DatadogHostTags:
    """The tags of hosts: all of them to read, our own to write. `close` ends its threads."""

    def __init__(self, settings: DatadogSettings) -> None:
        """Prepare; this sends nothing."""
        self._client = DatadogClient("datadog-tags", _CONCURRENT_WRITES, settings)
        self._api = TagsApi(self._client.api)

    def close(self) -> None:
        """End all running calls and threads."""
        self._client.close()

    def fetch_tags(self, timeout: timedelta) -> Mapping[str, frozenset[str]]:
        """Return host -> its tags, for each host with a tag.

        Raises:
            Unavailable: Datadog does not answer in time, or refuses.
        """
        return self._fetch("host tags", partial(self._api.list_host_tags), timeout)

    def fetch_own_tags(self, timeout: timedelta) -> Mapping[str, frozenset[str]]:
        """Return host -> the tags that we wrote; absent: none.

        Raises:
            Unavailable: Datadog does not answer in time, or refuses.
        """
        return self._fetch("own host tags", partial(self._api.list_host_tags, source=SOURCE), timeout)

    def replace_own_tags(self, tags: Mapping[str, tuple[str, ...]], timeout: timedelta) -> Mapping[str, str]:
        """Replace our tags of some hosts; return host -> why it was refused, or why that is unknown.

        A repeated call does no harm. The tags of other sources stay.
        """
        limit = RateLimit()
        calls = [self._replacement(host, list(values), limit) for host, values in tags.items()]
        try:
            answers = self._client.run(calls, _deadline(timeout), stop_at_failure=False)
        finally:
            self._client.drop_idle_connections()
        return {
            host: self._client.shown(answer.reason)
            for host, answer in zip(tags, answers, strict=True)
            if isinstance(answer, Failure)
        }

    def _replacement(self, host: str, tags: list[str], limit: RateLimit) -> Call:
        body = HostTagsBody(host=host, tags=tags)
        return self._client.call(host, partial(self._api.update_host_tags, host, body, source=SOURCE), limit)

    def _fetch(self, name: str, send: Any, timeout: timedelta) -> Mapping[str, frozenset[str]]:
        call = self._client.call(name, send, RateLimit(), most_bytes=_MAX_BODY_BYTES)
        try:
            answers = self._client.fetch([call], _deadline(timeout))
        finally:
            self._client.drop_idle_connections()
        hosts: dict[str, set[str]] = defaultdict(set)
        try:
            for tag, host in _pairs(answers[0]):
                hosts[host].add(tag)
        except FIELD_ERRORS as error:
            raise Unavailable(f"Datadog answers in an unexpected format ({type(error).__name__})") from None
        return {host: frozenset(tags) for host, tags in hosts.items()}


def _deadline(timeout: timedelta) -> float:
    return time.monotonic() + timeout.total_seconds()


def _pairs(answer: Any) -> Iterator[tuple[str, str]]:
    """Yield each tag with each of its hosts."""
    for tag, hosts in answer["tags"].items():
        for host in hosts:
            yield encodable(str(tag), None), encodable(str(host), None)
