"""The load of each broker, combined by the tags of hosts from the responses of one read.

The tags come from the groups of a query, or are read host by host and cached.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from autothrottle.adapters.datadog.client import DatadogSettings
from autothrottle.adapters.datadog.series import NO_VALUE, MetricSeries, MetricWindow
from autothrottle.core.cluster.configs import parse_broker_id
from autothrottle.core.errors import Invalid
from autothrottle.core.texts import datadog_tag
from autothrottle.core.traffic.capacity import CapacityLimits, capacity_of, parse_capacity
from autothrottle.core.traffic.counters import Series
from autothrottle.core.traffic.exporters import Exporter
from autothrottle.core.traffic.loads import Capacity, Loads, Utilization, by_broker
from autothrottle.core.traffic.series_loads import HostLoad, HostSeries, loads_of

_GROUPS = re.compile(r"\bby\s*\{([^{}]*)\}")
_SINGLE_METRIC = re.compile(r"\s*\w+:[\w.]+\s*\{[^{}]*\}\s*by\s*\{[^{}]*\}\s*")
_MEAN_OF_DEVICES = re.compile(r"\b(avg|min|max):system\.net\.bytes_\w+\s*\{(?![^{}]*\bdevice)[^{}]*\}")
"""The agent reports one series for each network device of a host, and space aggregation makes one of them."""


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

    A query of one metric without functions groups by network devices, too: it would return the mean of them, since
    Datadog stores a series for each host and device, and combines those of a group.

    >>> with_tags("avg:system.net.bytes_sent{service:kafka} by {host}", DatadogSettings("", ""))
    'avg:system.net.bytes_sent{service:kafka} by {host,device,broker_id,instance-type}'
    """
    devices = ("device",) if _SINGLE_METRIC.fullmatch(query) else ()

    def with_names(match: re.Match[str]) -> str:
        names = [name.strip() for name in match[1].split(",")]
        added = [*devices, *filter(None, _names(settings))] if "host" in names else []
        return f"by {{{','.join(dict.fromkeys([*names, *added]))}}}"

    return _GROUPS.sub(with_names, query)


def _mean_of_devices(option: str, query: str) -> list[str]:
    """Return a warning of a query that combines the network devices of a host into something else than their sum."""
    found = None if _SINGLE_METRIC.fullmatch(query) else _MEAN_OF_DEVICES.search(query)
    if found is None or "device" in ",".join(_GROUPS.findall(query)):
        return []
    return [
        f"--{option} returns the {found[1]} of the network devices of each host, and not their sum. Fix: give a query "
        "of one metric without functions, or name the devices in its scope, for example device:eth0"
    ]


def _names(settings: DatadogSettings) -> tuple[str, str, str | None]:
    return settings.broker_id_tag, settings.instance_type_tag, settings.capacity_tag


@dataclass(frozen=True, slots=True)
class LoadReading:
    """All responses of one read."""

    settings: DatadogSettings
    limits: CapacityLimits
    window: MetricWindow
    outbound: MetricSeries
    inbound: MetricSeries
    tags: Mapping[str, HostTags]
    """Host -> its tags, for every host of `outbound` and `inbound`."""
    unreadable: Mapping[str, str]
    """Host -> why its tags could not be read."""

    def loads(self) -> Loads:
        hosts, warnings = self._hosts_by_broker()
        loads, problems = by_broker(sorted(hosts), lambda broker_id: self._load(broker_id, hosts[broker_id]))
        return loads_of(loads, problems, tuple(warnings))

    def _hosts_by_broker(self) -> tuple[dict[int, list[str]], list[str]]:
        hosts: dict[int, list[str]] = {}
        warnings = [
            f"a series of --{series.query_name} has no host in its scope {scope!r}: group the query by {{host}}"
            for series in (self.outbound, self.inbound)
            for scope in series.without_host
        ]
        warnings += [
            f"--{series.query_name} returns no series; check the query"
            for series in (self.outbound, self.inbound)
            if not series.by_host and not series.without_host
        ]
        warnings += _mean_of_devices("net-tx-query", self.settings.net_tx_query)
        warnings += _mean_of_devices("net-rx-query", self.settings.net_rx_query)
        for host in sorted(self.tags):
            broker_ids = self.tags[host].broker_ids
            if not broker_ids:
                warnings.append(self._no_broker_id(host))
            for text in broker_ids:
                try:
                    hosts.setdefault(parse_broker_id(text), []).append(host)
                except Invalid:
                    warnings.append(
                        f"host {host} has the tag {self.settings.broker_id_tag}:{text}; a broker id is an integer >= 0"
                    )
        return hosts, warnings

    def _no_broker_id(self, host: str) -> str:
        reason = self.unreadable.get(host)
        if reason is not None:
            return f"the tags of host {host} cannot be read: Datadog {reason}"
        return (
            f"host {host} has no tag {self.settings.broker_id_tag}: "
            "add it, or leave the host out of --net-tx-query and --net-rx-query"
        )

    def _load(self, broker_id: int, hosts: Sequence[str]) -> HostLoad:
        tag = self.settings.broker_id_tag
        if len(hosts) > 1:
            raise Invalid(f"hosts {', '.join(hosts)} all have the tag {tag}:{broker_id}: keep it on one host")
        (host,) = hosts
        tags = self.tags[host]
        _only(tags.broker_ids, broker_id, host, tag)
        queries = {"net-tx-query": self.outbound, "net-rx-query": self.inbound}

        def measured(query: str, series: Sequence[Series]) -> Utilization:
            devices = {one.labels.get("device", "") for one in series}
            return queries[query].utilization(broker_id, host, self.window, devices)

        def capacity(device: Capacity | None) -> Capacity:
            return self._capacity(broker_id, host, tags)

        series = {query: one.of_devices(host, self.window) for query, one in queries.items()}
        load = HostSeries(series).load(broker_id, self._exporter, measured, capacity, self.window.end)
        # Only for the decision log; where the capacity depends on it, `_capacity` requires exactly one.
        instance_type = tags.instance_types[0] if len(tags.instance_types) == 1 else ""
        return replace(load, load=replace(load.load, instance_type=instance_type))

    @property
    def _exporter(self) -> Exporter:
        """The rules for network devices; Datadog has no facts of them."""
        return Exporter((), (), device_label="device").with_net_devices(self.settings.net_devices)

    def _capacity(self, broker_id: int, host: str, tags: HostTags) -> Capacity:
        if broker_id in self.limits.by_broker:  # then wrong tags do not matter
            return capacity_of(broker_id, None, None, self.limits)
        name = self.settings.capacity_tag or ""
        tagged = _only(tags.capacities, broker_id, host, name)
        if tagged is not None:
            capacity = parse_capacity(tagged, f"broker {broker_id}: the tag {name} of host {host}")
            return replace(capacity, origin=f"the tag {name} of host {host}")
        instance_type = _only(tags.instance_types, broker_id, host, self.settings.instance_type_tag)
        return capacity_of(broker_id, self._named_type(instance_type), None, self.limits)

    def _named_type(self, instance_type: str | None) -> str | None:
        """Return an instance type as --cap-map spells it: Datadog has standard_d8s_v3 for Standard_D8s_v3."""
        types = self.limits.by_instance_type
        if instance_type is None or instance_type in types:
            return instance_type
        spellings = [name for name in types if datadog_tag(name) == datadog_tag(instance_type)]
        return spellings[0] if len(spellings) == 1 else instance_type


def _only(values: Sequence[str], broker_id: int, host: str, tag: str) -> str | None:
    """Return the only value of a tag; None: no value. Raises Invalid if there are several."""
    if len(values) > 1:
        shown = ", ".join(values)
        raise Invalid(f"broker {broker_id}: host {host} has {len(values)} tags {tag} ({shown}): keep one")
    return values[0] if values else None
