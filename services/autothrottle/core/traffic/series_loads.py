"""The load of each broker, from the series of a metrics source.

Unusable series of one broker are a problem of that broker; the loads of the others are returned. The type to know is
`SeriesReading`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise, permutations, product

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import LinkSide
from autothrottle.core.errors import Invalid, Missing
from autothrottle.core.texts import excerpt
from autothrottle.core.traffic.broker_matching import BrokerMatching
from autothrottle.core.traffic.capacity import CapacityLimits
from autothrottle.core.traffic.counters import Series, SeriesName, newest_rate, utilization
from autothrottle.core.traffic.exporters import (
    EXPORTERS,
    Exporter,
    LinkDevices,
    differing_devices,
    is_virtual,
    is_vlan,
)
from autothrottle.core.traffic.loads import MAX_LINK_RATE, BrokerLoad, Capacity, Loads, Utilization, by_broker

_PART_LABELS = frozenset({"__name__", "device", "interface", "name", "id", "image"})
"""Labels that differ between series of one broker, which are summed up; all others name the target."""

_SHOWN = 3
_SAME_SHARE = 0.02
"""Devices whose rates differ by no more than this share probably carry the same bytes."""
_LEAST_RATE = 100_000
"""Slower devices, bytes/s, are not compared."""


@dataclass(frozen=True, slots=True)
class HostSeries:
    """All series of one broker."""

    traffic: Mapping[str, Sequence[Series]]
    """Name of the query or direction for sent and for received bytes, in this order, -> its series."""
    speeds: Sequence[Series] = ()
    """Speed of each device, bytes/s."""
    facts: Sequence[Series] = ()
    """Facts of each device, see `exporters.FACTS`."""
    hosts: Sequence[str] = ()
    """The hosts in the broker's registration; (): unknown."""

    def load(
        self,
        broker_id: int,
        exporter: Exporter,
        measured: Callable[[str, Sequence[Series]], Utilization],
        capacity: Callable[[Capacity | None], Capacity],
        now: float,
        own_queries: Collection[str] = (),
    ) -> HostLoad:
        """Return the load, from the devices that count.

        Args:
            broker_id: the broker.
            exporter: decides which devices count.
            measured: query or direction, and its series that count -> their sum.
            capacity: speed of the fastest device (None: unknown) -> the capacity.
            now: seconds since the epoch, on the clock of the samples.
            own_queries: queries of the operator, all of whose series count unless an option names their devices' label.

        Raises:
            Missing: a rate or the capacity is unknown.
            Invalid: a sample is invalid.
        """
        label, traffic = exporter.device_label, chain.from_iterable(self.traffic.values())
        own_queries = () if exporter.chooses_for_queries else own_queries
        links = exporter.links(traffic, self.speeds, self.facts, self.hosts)
        counting = {
            query: list(series) if query in own_queries else [s for s in series if _is_of(s, label, links.counted)]
            for query, series in self.traffic.items()
        }
        devices = {query: {s.labels[label] for s in series if label in s.labels} for query, series in counting.items()}
        for query, other in permutations(counting.keys() - {*own_queries}, 2):
            if counting[query]:
                _check_devices(broker_id, query, devices[other] - devices[query])
        of_names = {label for name in (*exporter.tx, *exporter.rx) for label in name.labels}
        for query, series in counting.items():
            is_own = query in own_queries
            known_labels = {label, *of_names} if exporter.net_devices or not is_own else ()
            _check_labels(broker_id, query, series, known_labels, is_own)
        outbound, inbound = (measured(query, series) for query, series in counting.items())
        device = self._fastest(label, links.speeds)
        load = BrokerLoad(broker_id, capacity(device), outbound, inbound)
        counted = set().union(*devices.values())
        virtual = _virtual_devices(counted, load.capacity) if exporter.net_devices else []
        findings = [*virtual, *self._findings(label, counted, links, now)]
        return HostLoad(load, tuple(sorted(counted)), tuple(f"broker {broker_id}: {text}" for text in findings))

    def _fastest(self, label: str, devices: Collection[str]) -> Capacity | None:
        """Return the speed of the fastest of these devices; None: unknown."""
        series = [s for s in self.speeds if _is_of(s, label, devices) and 1 <= s.newest <= MAX_LINK_RATE]
        speed, device = max(((s.newest, s.labels.get(label, "")) for s in series), default=(0, ""))
        return Capacity(round(speed), round(speed), f"the speed of {device or 'its network device'}") if speed else None

    def _findings(self, label: str, counted: Collection[str], links: LinkDevices, now: float) -> list[str]:
        """Name devices that probably count twice, and a device that probably should count."""
        unclear = links.unclear
        rates = self._rates(label, {*counted, *unclear}, now)
        # The members of a bond share its load, so that their bytes may be the same.
        order = sorted(counted, key=lambda device: (rates[device], device)) if links.speeds <= links.counted else []
        texts = [
            f"the network devices {min(pair)} and {max(pair)} both count, and their bytes are the same within "
            f"{_SAME_SHARE:.0%}. If one carries the bytes of the other, exclude it with --net-devices"
            for pair in pairwise(order)
            if max(rates[pair[1]]) >= _LEAST_RATE and all(map(_is_same, rates[pair[0]], rates[pair[1]]))
        ]
        total = sum(sum(rates[device]) for device in counted)
        fastest = max(unclear, key=lambda device: sum(rates[device]), default="")
        if fastest and sum(rates[fastest]) > max(total * (1 + _SAME_SHARE), _LEAST_RATE):
            texts.append(
                f"the network device {fastest} does not count, and it carries {sum(rates[fastest]):.0f} bytes/s, more "
                f"than {_shown(sorted(counted))}. If it is a link of its own, name all links with --net-devices"
            )
        return texts[:_SHOWN]

    def _rates(self, label: str, devices: Collection[str], now: float) -> Mapping[str, tuple[float, ...]]:
        """Return device -> its rates, sent and received; 0 without a fresh one. A single device is not compared."""
        rates = {device: [0.0] * len(self.traffic) for device in devices}
        for index, series in enumerate(self.traffic.values() if len(devices) > 1 else ()):
            for device_series in series:
                if device_series.labels.get(label) in rates:
                    with suppress(Invalid, Missing):
                        rates[device_series.labels[label]][index] += utilization([device_series], now).rate
        return {device: tuple(both) for device, both in rates.items()}


@dataclass(frozen=True, slots=True)
class HostLoad:
    """The load of one broker, and how it was measured."""

    load: BrokerLoad
    devices: tuple[str, ...] = ()
    """Names of the network devices that count; (): the series are not those of devices."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SeriesReading:
    """All series of one read."""

    matching: BrokerMatching
    limits: CapacityLimits
    now: float
    """Time of the read, seconds since the epoch, on the clock of the samples."""
    series: Mapping[str, Sequence[Series]]
    """Name of the query for sent and for received bytes, in this order, -> its series."""
    speeds: Sequence[Series] = ()
    """Speed of each device, bytes/s."""
    facts: Sequence[Series] = ()
    """Facts of each device, see `exporters.FACTS`."""
    exporter: Exporter = field(default_factory=lambda: EXPORTERS["node_exporter"])
    names: Mapping[str, Sequence[SeriesName]] = field(default_factory=dict)
    """Query -> the names of the series that it sums up; absent: a query of the operator, all of whose series count."""
    quotas: Sequence[Series] = ()
    """Throttled replication in the brokers' quotas, bytes/s."""
    other_targets: Sequence[str] = ()
    """Names of targets that the exporter's filter by name hides."""

    def loads(self) -> Loads:
        """Return the loads. A registered broker without a series is a problem."""
        traffic = {query: self._by_broker(series) for query, series in self.series.items()}
        speeds, facts = self._by_broker(self.speeds), self._by_broker(self.facts)
        matched = (broker_id for series in traffic.values() for broker_id in series if broker_id is not None)

        def load(broker_id: int) -> HostLoad:
            own = {query: series.get(broker_id, ()) for query, series in traffic.items()}
            unmatched = {query: series.get(None, ()) for query, series in traffic.items()}

            def measured(query: str, series: Sequence[Series]) -> Utilization:
                return self._utilization(broker_id, query, series, unmatched[query])

            hosts = tuple(self.matching.registered.get(broker_id, ()))
            host = HostSeries(own, speeds.get(broker_id, ()), facts.get(broker_id, ()), hosts)
            own_queries = self.series.keys() - self.names.keys()
            return host.load(
                broker_id, self.exporter, measured, self.limits.of_device(broker_id), self.now, own_queries
            )

        hosts, problems = by_broker(sorted({*self.matching.registered, *matched}), load)
        quotas = {b: series for b, series in self._by_broker(self.quotas).items() if b is not None}
        return with_quota_rates(loads_of(hosts, problems, self._warnings(traffic)), quotas, self.exporter, self.now)

    def _by_broker(self, series: Iterable[Series]) -> dict[int | None, list[Series]]:
        """Return broker id -> its series; None -> the series without a broker."""
        series_of_brokers: dict[int | None, list[Series]] = {}
        for broker_series in series:
            series_of_brokers.setdefault(self.matching.broker_of(broker_series.labels), []).append(broker_series)
        return series_of_brokers

    def _utilization(
        self, broker_id: int, query: str, series: Sequence[Series], unmatched: Sequence[Series]
    ) -> Utilization:
        names = self.names.get(query, ())
        targets: dict[str, list[Series]] = {}
        for query_series in series:
            targets.setdefault(_target(query_series, names, self.exporter.device_label), []).append(query_series)
        if not targets:
            raise Missing(self._no_series(broker_id, query, unmatched))
        rates: dict[str, Utilization] = {}
        problems = []
        for target, of_target in targets.items():
            try:
                rates[target] = broker_utilization(broker_id, f"{target} in --{query}", of_target, self.now, names)
            except Missing as error:  # for example a pod that now runs on another host
                problems.append(error)
        if len(rates) > 1:
            raise Invalid(
                f"broker {broker_id} has {len(rates)} targets in --{query}: {_shown(rates)}. Fix: select one with "
                "--prometheus-selector or another query"
            )
        if not rates:
            raise problems[0]
        return next(iter(rates.values()))

    def _no_series(self, broker_id: int, query: str, unmatched: Sequence[Series]) -> str:
        hosts = ", ".join(self.matching.registered.get(broker_id, ())) or "unknown"
        targets = dict.fromkeys(map(_target, unmatched))
        others = f"{len(targets)} targets match no broker: {_shown(targets)}" if targets else self._absence
        fix = ". Fix: name the target in --broker-map, or set --broker-label" if targets else ""
        return f"broker {broker_id} (hosts: {hosts}) matches no series of --{query}; {others}{fix}"

    @property
    def _absence(self) -> str:
        """What to do about a query without series that match no broker."""
        if not self.other_targets:
            return "check the query"
        label = self.exporter.broker_filter
        return (
            f"the busiest values of {label} are {_shown(self.other_targets)}. Fix: if they are brokers, give the "
            f"label with --broker-label, such as {label}=.*-([0-9]+), which replaces the filter of --broker-exporter"
        )

    def _warnings(self, series_of_queries: Mapping[str, Mapping[int | None, Sequence[Series]]]) -> tuple[str, ...]:
        """Name unmatched targets and empty queries if the registered brokers are unknown: no broker's problem does."""
        if self.matching.registered:
            return ()
        empty = tuple(
            f"--{query} returns no series; {self._absence}" for query, series in series_of_queries.items() if not series
        )
        unmatched = {query: series[None] for query, series in series_of_queries.items() if None in series}
        return empty + tuple(
            f"series of --{query} match no broker: {_shown(dict.fromkeys(map(_target, series)))}. Fix: name them in "
            "--broker-map, or set --broker-label"
            for query, series in unmatched.items()
        )


def loads_of(hosts: Mapping[int, HostLoad], problems: Mapping[int, str], warnings: tuple[str, ...]) -> Loads:
    """Return the loads of all brokers, with the warnings of each."""
    return Loads(
        {broker_id: host.load for broker_id, host in hosts.items()},
        problems,
        (*warnings, *(text for host in hosts.values() for text in host.warnings)),
        {broker_id: host.devices for broker_id, host in hosts.items() if host.devices},
    )


def with_quota_rates(loads: Loads, series: Mapping[int, Sequence[Series]], exporter: Exporter, now: float) -> Loads:
    """Return the loads with the throttled replication in the brokers' quotas, as far as it is reported.

    Args:
        loads: the loads.
        series: broker id -> its series of quota rates.
        exporter: knows the role of a series.
        now: seconds since the epoch, on the clock of the samples.
    """
    rates: dict[LinkSide, Utilization] = {}
    warnings = []
    for broker_id, role in product(sorted(series), ReplicaRole):
        try:
            rate = newest_rate([s for s in series[broker_id] if exporter.quota_role(s.labels) is role], now)
        except Invalid as error:
            warnings.append(f"broker {broker_id} [{role.value}]: the series of its quota rate {error}; it is ignored")
        else:
            rates |= {(broker_id, role): rate} if rate else {}
    return replace(loads, quota_rates=rates, warnings=(*loads.warnings, *warnings))


def broker_utilization(
    broker_id: int, where: str, series: Sequence[Series], now: float, names: Sequence[SeriesName] = ()
) -> Utilization:
    """Return the traffic of one direction; errors name the broker and `where` its series are.

    The names are not checked if the source has removed them.
    """
    have_names = any("__name__" in labelled.labels for labelled in series)
    try:
        return utilization(series, now, names if have_names else ())
    except (Invalid, Missing) as error:
        raise type(error)(f"broker {broker_id} ({where}) {error}") from None


def _virtual_devices(counted: Collection[str], capacity: Capacity) -> list[str]:
    """Name virtual devices that count beside a NIC, or whose speed is the capacity, because the operator names them."""
    virtual = sorted(filter(is_virtual, counted))
    if virtual and len(virtual) < len(counted):
        return [
            f"--net-devices matches virtual devices: {_shown(virtual)}. Their bytes are also those of a "
            "NIC, so they count twice, and their speed is not that of a link. Fix: let --net-devices match NICs alone"
        ]
    if capacity.origin.endswith(tuple(f" {device}" for device in virtual if not is_vlan(device))):
        return [
            f"--net-devices matches only {_shown(virtual)}, and the capacity is {capacity.origin}. The speed of a "
            "virtual device is not that of a link. Fix: give --broker-cap-map, or let --net-devices match NICs"
        ]
    return []


def _is_of(series: Series, label: str, devices: Collection[str]) -> bool:
    """Whether a series belongs to one of some devices, or to no device."""
    return label not in series.labels or series.labels[label] in devices


def _check_devices(broker_id: int, query: str, absent: Collection[str]) -> None:
    if absent:
        raise Missing(
            f"broker {broker_id} has no series of {query} for the network device {min(absent)[:40]}, so the sum of its "
            "traffic is unknown. Fix: let the exporter report it, or name the devices with --net-devices"
        )


def _check_labels(
    broker_id: int, query: str, series: Sequence[Series], known_labels: Collection[str], is_own: bool
) -> None:
    """Check that a sum does not contain the bytes of a NIC again as those of the devices on top of it.

    Args:
        broker_id: the broker.
        query: name of the query or direction.
        series: the series of the sum.
        known_labels: labels that do not show devices, or whose devices have been chosen.
        is_own: whether a query of the operator has chosen the series, so that NICs alone are right.
    """
    label, devices = differing_devices(series, known_labels)
    virtual = [device for device in devices if is_virtual(device) and not is_vlan(device)]
    if not label or (is_own and not 0 < len(virtual) < len(devices)):
        return
    choice = "select the NICs in the query" if is_own else "select one device by name"
    raise Invalid(
        f"broker {broker_id} has series of {query} that differ in the network device ({label}: {_shown(devices)}), and "
        f"their sum may count bytes twice. Fix: --broker-device-label={label}, or {choice}"
    )


def _is_same(rate: float, other: float) -> bool:
    return abs(rate - other) <= _SAME_SHARE * max(rate, other)


def _target(series: Series, names: Sequence[SeriesName] = (), device_label: str = "") -> str:
    parts = _PART_LABELS.union([device_label], *(name.labels for name in names))
    labels = {name: value for name, value in sorted(series.labels.items()) if name not in parts}
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def _shown(targets: Iterable[str]) -> str:
    return excerpt(list(targets), _SHOWN)
