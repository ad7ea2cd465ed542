"""Tags of hosts, and their cache."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autothrottle.adapters.datadog.settings import DatadogSettings


def tags_by_host(answer: Any) -> dict[str, list[str]]:
    """Convert Datadog's list of all hosts (tag -> hosts) to host -> its tags."""
    by_host: dict[str, list[str]] = {}
    for tag, hosts in (answer["tags"] or {}).items():
        for host in hosts:
            by_host.setdefault(host, []).append(tag)
    return by_host


@dataclass(frozen=True, slots=True)
class HostTags:
    """The tags of a host that we use; each may have several values, because Datadog merges several sources."""

    broker_ids: tuple[str, ...] = ()
    instance_types: tuple[str, ...] = ()
    capacities: tuple[str, ...] = ()


class TagCache:
    """Tags of hosts with a broker id, none of them older than the time to live. Thread-safe.

    Each list of all hosts replaces the whole cache, including single lookups since the last list. Hosts without a
    broker id are not cached, since the tag may appear in the next read.
    """

    def __init__(self, settings: DatadogSettings) -> None:
        self._names = (settings.broker_id_tag, settings.instance_type_tag, settings.capacity_tag)
        self._ttl_seconds = settings.tag_ttl.total_seconds()
        self._lock = threading.Lock()
        self._expiry = -math.inf
        self._hosts: dict[str, HostTags] = {}

    def is_due(self) -> bool:
        with self._lock:
            return time.monotonic() >= self._expiry

    def replace(self, tags_by_host: Mapping[str, Sequence[str]]) -> None:
        expiry = time.monotonic() + self._ttl_seconds
        parsed = {host.lower(): self._parse(tags) for host, tags in tags_by_host.items()}
        with self._lock:
            self._expiry = expiry
            self._hosts = {host: tags for host, tags in parsed.items() if tags.broker_ids}

    def put(self, host: str, tags: Sequence[str]) -> None:
        parsed = self._parse(tags)
        if parsed.broker_ids:
            with self._lock:
                self._hosts[host] = parsed

    def of(self, host: str) -> HostTags:
        with self._lock:
            return self._hosts.get(host, HostTags())

    def _parse(self, tags: Sequence[str]) -> HostTags:
        values: dict[str, set[str]] = {}
        for tag in tags:
            name, _, value = tag.partition(":")
            values.setdefault(name.lower(), set()).add(value)
        return HostTags(*(tuple(sorted(values.get(name.lower(), ()))) if name else () for name in self._names))
