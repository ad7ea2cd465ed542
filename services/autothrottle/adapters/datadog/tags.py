"""Tags of hosts: from the groups of a query, or read host by host and cached."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autothrottle.adapters.datadog.settings import DatadogSettings

NO_VALUE = "N/A"
"""Datadog's value of a tag that a series does not have."""

_GROUPS = re.compile(r"\bby\s*\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class HostTags:
    """The tags of a host that we use; each may have several values, because Datadog merges several sources."""

    broker_ids: tuple[str, ...] = ()
    instance_types: tuple[str, ...] = ()
    capacities: tuple[str, ...] = ()


class TagCache:
    """Tags of hosts with a broker id that were read host by host, none older than the time to live. Thread-safe.

    Hosts without a broker id are not cached, since the tag may appear in the next read.
    """

    def __init__(self, settings: DatadogSettings) -> None:
        self._settings = settings
        self._hosts: dict[str, tuple[float, HostTags]] = {}

    def put(self, host: str, tags: Sequence[str]) -> None:
        parsed = host_tags(tags, self._settings)
        if parsed.broker_ids:
            self._hosts[host] = (time.monotonic() + self._settings.tag_ttl.total_seconds(), parsed)

    def of(self, host: str) -> HostTags:
        expiry, tags = self._hosts.get(host, (-math.inf, HostTags()))
        return tags if time.monotonic() < expiry else HostTags()


def host_tags(tags: Iterable[str], settings: DatadogSettings) -> HostTags:
    """Return the values of the tags that we use; Datadog groups series without a tag under the value `N/A`."""
    values: dict[str, set[str]] = {}
    for tag in tags:
        name, _, value = tag.partition(":")
        if value != NO_VALUE:
            values.setdefault(name.strip().lower(), set()).add(value)
    return HostTags(*(tuple(sorted(values.get(name.lower(), ()))) if name else () for name in _names(settings)))


def with_tags(query: str, settings: DatadogSettings) -> str:
    """Return a query that groups by our tags where it groups by host, so that its series carry them.

    >>> with_tags("avg:system.net.bytes_sent{service:kafka} by {host}", DatadogSettings("", ""))
    'avg:system.net.bytes_sent{service:kafka} by {host,broker_id,instance-type}'
    """
    return _GROUPS.sub(lambda match: f"by {{{','.join(_with_names(match[1], settings))}}}", query)


def _with_names(groups: str, settings: DatadogSettings) -> list[str]:
    given = [name.strip() for name in groups.split(",")]
    if "host" not in given:
        return given
    return list(dict.fromkeys([*given, *filter(None, _names(settings))]))


def _names(settings: DatadogSettings) -> tuple[str, str, str | None]:
    return settings.broker_id_tag, settings.instance_type_tag, settings.capacity_tag
