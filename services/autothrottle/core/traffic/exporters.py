"""The names of byte counters and of storage in exporters, and the network devices that carry the traffic of links.

`prometheus` builds its queries from these presets, and `scrape` picks samples of an exporter's text with them. The
types to know are `Exporter` and `LinkDevices`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.errors import Invalid
from autothrottle.core.texts import ip_address_of
from autothrottle.core.traffic.broker_matching import BrokerLabel, host_of
from autothrottle.core.traffic.counters import Series, SeriesKind, SeriesName
from autothrottle.core.traffic.replication import THROTTLE_WINDOW

_FIELDS: Mapping[str, str] = {
    "node_network_info": "address",
    "node_network_address_assign_type": "assign_type",
    "node_network_iface_id": "index",
    "node_network_iface_link": "link",
}
ADDRESSES = "node_network_address_info"
"""Metric of node_exporter's netdev collector with IP addresses; it needs `--collector.netdev.address-info`."""
FACTS = (*_FIELDS, ADDRESSES)
"""Metrics of node_exporter with facts of a device: those of the netclass collector, and its addresses."""

VIRTUAL_DEVICES = (
    r"lo|veth.*|docker.*|br-.*|br[0-9].*|virbr.*|vmbr.*|xenbr.*|lxdbr.*|lxcbr.*|incusbr.*|cbr0|kbr.*|podman.*|cali.*|"
    r"flannel.*|cni.*|cilium.*|lxc.*|kube-.*|nodelocaldns|tun.*|tap.*|macvtap.*|macvlan.*|ipvlan.*|vnet[0-9]*|vif.*|"
    r"fwbr.*|fwpr.*|fwln.*|qbr.*|qvb.*|qvo.*|ovs-.*|ovn-.*|genev.*|vxlan.*|weave.*|vethwe.*|datapath|antrea-.*|azv.*|"
    r"azure[0-9]*|gke[0-9a-f]{6,}|eni[0-9a-f]{6,}|wg.*|tailscale.*|zt.*|dummy.*|ifb.*|gre.*|erspan.*|sit[0-9]*|"
    r"ip6?tnl.*|ip6?_vti.*|ip6gre.*|ipip.*|nlmon.*|vlan.*|.*\..*"
)
"""Names of devices that never count. The list need not be complete: see `_PHYSICAL`."""

_BOND = re.compile(r"(bond|team)[0-9a-z_-]*")
_PHYSICAL = re.compile(
    r"eth\d+|net\d+|em\d+(_\d+)?|p\d+p\d+(_\d+)?|ib\d+|wlan\d+|hsn\d+"
    r"|(en|ib|wl|ww)(P\d+)?(o\d+|s\d+|p\d+s\d+|p\d+|X\d+|d\d+|x[0-9a-f]{12}|c[0-9a-f]+|v\d+|u\d+)"
    r"(n[a-z]*\d+|[fdvru]\d+)*"
)
"""Names that the kernel, systemd or biosdevname gives to NICs, and those of further networks of a pod."""
_KERNEL_NAME = re.compile(r"eth\d+")
_ACCELERATED_FUNCTION = re.compile(r"enP\d+(p\d+)?s\d+.*|enp\d{4,}s\d+.*|.*nsby")
"""Names of a function below another NIC: accelerated networking of Azure, also in lower case as in Datadog, where no
number of a bus has four digits, and the standby NIC of virtio's failover."""
_VIRTUAL = re.compile(VIRTUAL_DEVICES)
_VLAN = re.compile(r"vlan.*|.*\..*")
_ADDRESS = re.compile("[0-9a-f]{2}(:[0-9a-f]{2}){5,}")
_MOST_LEVELS = 4
"""Levels of stacked devices that are followed, for example a VLAN on a bridge on a bond."""
_PERMANENT, _SET = 0, 3
"""Values of `node_network_address_assign_type`. A bond sets the addresses of its members."""


@dataclass(frozen=True, slots=True)
class LinkDevices:
    """The devices of one host whose bytes are the traffic of its links.

    A byte that a NIC sends is also counted by each device on top of it: bonds, VLANs, bridges and the devices of
    containers and virtual machines. Only NICs count. If the exporter reports the devices of the broker's registered
    addresses, only the NICs below those devices count. Otherwise facts of the exporter decide; without facts, names do.

    Sources: Documentation/ABI/testing/sysfs-class-net of the Linux kernel; systemd.net-naming-scheme(7).
    """

    counted: frozenset[str]
    """Devices whose bytes are the traffic of the links."""
    speeds: frozenset[str]
    """Devices whose speed can be that of the link: those that count, and bonds of them."""
    unclear: frozenset[str] = frozenset()
    """Devices that do not count although they may be links: neither facts nor names show what is below them."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the exporter reports of a device; None or "": unknown."""

    address: str = ""
    assign_type: float | None = None
    index: float | None = None
    link: float | None = None

    @property
    def is_stacked(self) -> bool:
        """Whether the device is on top of another one, or is one end of a pair."""
        return None not in (self.index, self.link) and self.index != self.link

    @property
    def is_burned_in(self) -> bool:
        """Whether the address is the device's own. Devices of software have none, or a random, set or inherited one."""
        has_address = bool(_ADDRESS.fullmatch(self.address)) and self.address != "00:00:00:00:00:00"
        return self.assign_type == _PERMANENT and has_address


def link_devices(names: Collection[str], facts: Collection[Series], hosts: Collection[str] = ()) -> LinkDevices:
    """Return the devices that count of a host with these devices.

    >>> sorted(link_devices(["eth0", "eth1", "bond0", "bond0.7", "vnet3"], []).counted)
    ['eth0', 'eth1']

    Args:
        names: the devices that have byte counters, or a speed.
        facts: samples of `FACTS`; absent: unknown.
        hosts: the hosts in the broker's registration, for all its listeners.
    """
    reported = _facts(facts)
    links = _of_all_networks(names, reported)
    below = _Below.of(frozenset(names), reported, links.counted)
    carriers = [below.carriers(device) for device in _addressed(facts, hosts)]
    if not carriers or not all(carriers):
        return links
    counted = frozenset().union(*carriers)
    bonds = {name for name in links.speeds if (members := below.members(name)) and members <= counted}
    speeds = bonds.union(name for name in counted if not reported.get(name, _Facts()).is_stacked)
    return LinkDevices(counted, frozenset(speeds), links.counted - counted)


def _addressed(facts: Iterable[Series], hosts: Collection[str]) -> set[str]:
    """Return the devices with the addresses of a broker; none: a host is a name, or the address of another machine."""
    devices: dict[str, set[str]] = {host_of(host): set() for host in hosts}
    for fact in facts if all(map(ip_address_of, devices)) else ():
        if fact.labels.get("__name__") == ADDRESSES:
            devices.get(host_of(fact.labels.get("address", "")), set()).add(fact.labels.get("device", ""))
    return set().union(*devices.values()) if all(devices.values()) else set()


@dataclass(frozen=True, slots=True)
class _Below:
    """The devices of a host by what is below them."""

    names: frozenset[str]
    """The devices that have byte counters, or a speed."""
    reported: Mapping[str, _Facts]
    nics: frozenset[str]
    by_index: Mapping[float | None, str]
    """Index -> device."""
    by_address: Mapping[str, frozenset[str]]
    """Hardware address -> NICs."""

    @classmethod
    def of(cls, names: frozenset[str], reported: Mapping[str, _Facts], nics: frozenset[str]) -> _Below:
        addresses = _by_address({name: reported.get(name, _Facts()) for name in nics})
        by_address = {address: frozenset(members) for address, members in addresses.items() if address}
        return cls(names, reported, nics, {facts.index: name for name, facts in reported.items()}, by_address)

    def carriers(self, device: str) -> frozenset[str]:
        """Return the devices that carry the bytes of a device with an address, each byte once; empty: unknown."""
        for _ in range(_MOST_LEVELS):
            device = self._lower(device) or device
        if device in self.nics:
            return frozenset({device})
        if members := self.members(device):
            return members
        is_link = device in self.names and not _VIRTUAL.fullmatch(device)
        return frozenset({device}) if is_link else frozenset()

    def members(self, device: str) -> frozenset[str]:
        """Return the NICs below a bond or a bridge, which have its hardware address."""
        return self.by_address.get(self.reported.get(device, _Facts()).address, frozenset())

    def _lower(self, device: str) -> str:
        """Return the device directly below another one; "": none, or it is in another network namespace."""
        facts, base = self.reported.get(device, _Facts()), device.rpartition(".")[0]
        if facts.is_stacked and facts.link in self.by_index:
            return self.by_index[facts.link]
        return base if base in self.names or base in self.reported else ""


def _of_all_networks(names: Collection[str], reported: Mapping[str, _Facts]) -> LinkDevices:
    """Return the devices that count if any of them may carry the broker's traffic."""
    devices = {name: reported.get(name, _Facts()) for name in names if not _VIRTUAL.fullmatch(name)}
    bonds = {name for name in devices if _BOND.fullmatch(name)}
    nics = {name: device for name, device in devices.items() if _is_nic(name, device)}
    counted = frozenset(nics.keys() - _functions_below(nics, devices))
    if not counted:
        return _without_nics(devices, bonds)
    members = Counter(nics[name].address for name in counted)
    # A bond of NICs with names of their own counts instead of them.
    if not members[""]:
        counted |= {bond for bond in bonds if devices[bond].address and not members[devices[bond].address]}
    # A bond has the address of several NICs, a bridge that of one.
    others = {name: device for name, device in devices.items() if name not in nics and not device.is_stacked}
    bonds |= {name for name, device in others.items() if device.address and members[device.address] > 1}
    return LinkDevices(counted, counted | bonds, frozenset(devices.keys() - nics.keys() - counted))


def is_virtual(device: str) -> bool:
    """Whether a name is that of a virtual device, which counts only if the operator names it."""
    return bool(_VIRTUAL.fullmatch(device))


_DEVICE_LABELS = frozenset({"device", "device_name", "interface", "iface", "ifname", "if_name", "nic", "netdev"})
_NAMED_VIRTUAL = re.compile(VIRTUAL_DEVICES.removesuffix(r"|.*\..*"))


def differing_devices(series: Collection[Series], known_labels: Collection[str]) -> tuple[str, Sequence[str]]:
    """Return the label in which some series differ by network devices, and these devices; "" and (): none.

    A label of any name counts if at least half of its values, and two of them, are names of network devices.

    Args:
        series: those of one sum.
        known_labels: labels that are not looked at.
    """
    for label in sorted({label for one in series for label in one.labels}.difference(known_labels, ("__name__",))):
        values = {one.labels[label] for one in series if one.labels.get(label)}
        devices = [value for value in values if _names_a_device(value)]
        enough = len(devices) > 1 and 2 * len(devices) >= len(values)
        if len(values) > 1 and (enough or (devices and label in _DEVICE_LABELS)):
            return label, sorted(values)
    return "", ()


def _names_a_device(text: str) -> bool:
    return any(pattern.fullmatch(text) for pattern in (_PHYSICAL, _BOND, _NAMED_VIRTUAL))


def is_vlan(device: str) -> bool:
    """Whether a name is that of a VLAN, whose speed is that of the device below it."""
    return bool(_VLAN.fullmatch(device))


def _without_nics(devices: Mapping[str, _Facts], bonds: Collection[str]) -> LinkDevices:
    """Return what counts if no device is a NIC: in a container's network namespace, or behind an exporter's filter."""
    preferences = (
        bonds,
        [name for name in devices if _PHYSICAL.fullmatch(name)],
        [name for name, device in devices.items() if device.assign_type == _PERMANENT and not device.is_stacked],
        [name for name, device in devices.items() if device.assign_type in (None, _SET)],
        devices,
    )
    counted = frozenset(next(filter(None, preferences), ()))
    return LinkDevices(counted, frozenset(name for name in counted if not devices[name].is_stacked))


def _is_nic(name: str, device: _Facts) -> bool:
    if device.is_stacked or _BOND.fullmatch(name):
        return False
    return bool(_PHYSICAL.fullmatch(name)) or device.is_burned_in


def _functions_below(nics: Mapping[str, _Facts], devices: Mapping[str, _Facts]) -> set[str]:
    """Return the NICs whose bytes another NIC with the same address counts, too."""
    bonded = {device.address for name, device in devices.items() if name not in nics and not device.is_stacked}
    below = set()
    for address, names in _by_address(nics).items():
        functions = {name for name in names if _ACCELERATED_FUNCTION.fullmatch(name)}
        above = [name for name in names if name not in functions]
        if not address:
            below |= functions if any(map(_KERNEL_NAME.fullmatch, above)) else set()
        elif above:
            below |= functions
            # The members of a bond have one address, too, and all of them count.
            may_be_bonded = not bonded.isdisjoint({address, ""}) or all(nics[n].assign_type == _SET for n in above)
            first = min(above, key=lambda name: (len(name), name))
            below |= set() if may_be_bonded else {*above} - {first}
    return below


def _by_address(devices: Mapping[str, _Facts]) -> dict[str, list[str]]:
    """Return hardware address, or "", -> the devices that have it."""
    names: dict[str, list[str]] = {}
    for name, device in devices.items():
        names.setdefault(device.address, []).append(name)
    return names


def _facts(series: Iterable[Series]) -> dict[str, _Facts]:
    facts: dict[str, dict[str, Any]] = {}
    for fact in series:
        field = _FIELDS.get(fact.labels.get("__name__", ""))
        if field and fact.samples:
            value = fact.labels.get("address", "").lower() if field == "address" else fact.newest
            facts.setdefault(fact.labels.get("device", ""), {})[field] = value
    return {device: _Facts(**values) for device, values in facts.items()}


QUOTA_RATES: Mapping[ReplicaRole, Sequence[SeriesName]] = {
    role: tuple(SeriesName(f"kafka_server_{name}_byte_rate") for name in (group, group.lower()))
    for role, group in ((ReplicaRole.LEADER, "LeaderReplication"), (ReplicaRole.FOLLOWER, "FollowerReplication"))
}
"""Role -> names of its series.

`kafka.server:type=LeaderReplication`, attribute `byte-rate`, and its sibling: as the JMX exporter spells them without a
rule (also MSK), and in lower case (also Strimzi's metrics reporter)."""

QUOTA_SECONDS = THROTTLE_WINDOW.total_seconds()
"""A quota rate is the mean of so many seconds."""

_POD = r".*(kafka|broker).*-[0-9]+"
_POD_ID = r"pod=.*?([0-9]+)"
_MSK_ID = r"instance=b-([0-9]+)[.-].*"


@dataclass(frozen=True)
class Exporter:
    """Where an exporter reports the bytes that a broker sends and receives. Several names are summed up.

    Each name is needed: without one of them, the sum is unknown.
    """

    tx: Sequence[SeriesName]
    """Names of the series of sent bytes."""
    rx: Sequence[SeriesName]
    """Names of the series of received bytes."""
    where: Mapping[str, str] = field(default_factory=dict)
    """Label -> regular expression for its whole value; an absent label has the value "". `!` before it negates it."""
    device_label: str = ""
    """Label with the network device; "": the metrics are not those of devices."""
    chooses_for_queries: bool = False
    """Whether the devices of the operator's own queries are chosen, too: the operator has named their label."""
    facts: Sequence[str] = ()
    """Names of the metrics with facts of devices, which decide which of them count; (): their names decide."""
    net_devices: str = ""
    """Regular expression for the names of all devices that count; "": facts and names decide."""
    speed: str = ""
    """Name of the metric with the speed of a device, bytes/s; "": none."""
    quota_rates: Mapping[ReplicaRole, Sequence[SeriesName]] = field(default_factory=lambda: QUOTA_RATES)
    """Role -> names of the series with the throttled replication in the broker's quota, bytes/s; one of them counts."""
    broker_label: str = ""
    """`LABEL=REGEX`: label with the broker id, see `broker_matching`; "": none."""
    broker_filter: str = ""
    """Label by whose value `where` guesses which targets are brokers; "": all series are those of brokers."""
    port: int = 0
    """Usual TCP port of the exporter; 0: it reports all pods of a host, so that its text is not one broker's."""
    arguments: str = ""
    """Query of the URL that limits the exporter's text to these metrics."""

    @property
    def url(self) -> str:
        """The usual address of a broker's exporter, with {host} for its host."""
        return f"http://{{host}}:{self.port}/metrics" + (f"?{self.arguments}" if self.arguments else "")

    def query(self, direction: str, window_seconds: int, selector: str = "") -> str:
        """Return the PromQL query for `tx` or `rx`: a range vector with the samples of a window.

        Args:
            direction: `tx` or `rx`.
            window_seconds: length of the window.
            selector: further matchers, for example `job="kafka"`.
        """
        names = self.names_of(direction)
        metrics = "|".join(dict.fromkeys(name.metric for name in names))
        common = set.intersection(*(set(name.labels) for name in names))
        values = {label: dict.fromkeys(re.escape(name.labels[label]) for name in names) for label in sorted(common)}
        where = {**self.where, **{label: "|".join(texts) for label, texts in values.items()}}
        matchers = [f'__name__=~"{metrics}"', *(_matcher(*pair) for pair in where.items()), selector]
        return f"{_vector_selector(matchers)}[{window_seconds}s]"

    def devices_query(self, selector: str = "") -> str:
        """Return the PromQL query for speeds and facts of devices; "": the exporter does not report them."""
        if not self.speed:
            return ""
        names = f'__name__=~"{"|".join((self.speed, *(fact for fact in self.facts if fact != ADDRESSES)))}"'
        devices = _vector_selector([names, _matcher(self.device_label, self.where[self.device_label]), selector])
        # A bridge has the address of a host, and its bytes do not count.
        addresses = _vector_selector([f'__name__="{ADDRESSES}"', 'scope!="link-local"', selector])
        return f"{devices} or {addresses}" if ADDRESSES in self.facts else devices

    def targets_query(self, window_seconds: int, selector: str = "") -> str:
        """Return the PromQL query for the three busiest targets, brokers or not; "": no filter by name hides any."""
        if not self.broker_filter:
            return ""
        others = (_matcher(label, pattern) for label, pattern in self.where.items() if label != self.broker_filter)
        every = _vector_selector([f'__name__="{self.tx[0].metric}"', *others, f'{self.broker_filter}!=""', selector])
        return f"topk(3, sum by ({self.broker_filter}) (rate({every}[{window_seconds}s])))"

    def quota_rates_query(self, window_seconds: int, selector: str = "") -> str:
        """Return the PromQL query for the throttled replication in the brokers' quotas, as `query`."""
        names = dict.fromkeys(name.metric for series in self.quota_rates.values() for name in series)
        matchers = [f'__name__=~"{"|".join(names)}"', selector]
        return f"{_vector_selector(matchers)}[{window_seconds}s]"

    def quota_role(self, labels: Mapping[str, str]) -> ReplicaRole | None:
        """Return the role whose quota a series with these labels, its `__name__` among them, measures; None: none."""
        return next((r for r, names in self.quota_rates.items() if any(n.matches(labels) for n in names)), None)

    def mean_seconds(self, labels: Mapping[str, str]) -> float | None:
        """Return of how many seconds the samples of a series with these labels are the mean; None: it is a counter."""
        return next((name.mean_seconds for name in (*self.tx, *self.rx) if name.matches(labels)), None)

    def names_of(self, direction: str) -> Sequence[SeriesName]:
        """Return the names of the series of `tx` or `rx`."""
        return self.tx if direction == "tx" else self.rx

    def direction(self, labels: Mapping[str, str]) -> str:
        """Return `tx` or `rx` if a series with these labels, its `__name__` among them, counts; "": it does not."""
        for label, pattern in self._patterns.items():
            negated = self.where[label].startswith("!")
            if bool(pattern.fullmatch(labels.get(label, ""))) == negated:
                return ""
        return next((way for way in ("tx", "rx") if any(name.matches(labels) for name in self.names_of(way))), "")

    def links(
        self, traffic: Iterable[Series], speeds: Iterable[Series], facts: Collection[Series], hosts: Collection[str]
    ) -> LinkDevices:
        """Return the devices that count: among those with traffic, or with a speed if traffic has no devices.

        Args:
            traffic: the counters.
            speeds: the speeds.
            facts: see `exporters.FACTS`.
            hosts: the hosts in the broker's registration.
        """
        names = self._devices(traffic) or self._devices(speeds)
        if not self.net_devices:
            return link_devices(names, facts, hosts)
        counted = frozenset(name for name in names if re.fullmatch(self.net_devices, name))
        return LinkDevices(counted, counted)

    def _devices(self, series: Iterable[Series]) -> set[str]:
        return {one.labels[self.device_label] for one in series if self.device_label in one.labels}

    def with_device_label(self, label: str) -> Exporter:
        """Return this exporter with the label that the operator names for the network device; "": unchanged.

        With another label than the preset's, names decide which devices count: the facts and speeds of node_exporter
        have its own label.
        """
        if label in ("", self.device_label):
            return replace(self, chooses_for_queries=True) if label else self
        where = {name: pattern for name, pattern in self.where.items() if name != self.device_label}
        where[label] = f"!{VIRTUAL_DEVICES}"
        return replace(self, where=where, device_label=label, chooses_for_queries=True, facts=(), speed="")

    def with_brokers(self, label: BrokerLabel | None, names: Collection[str]) -> Exporter:
        """Return this exporter for the brokers that the operator names; its own filter by name does not count then.

        Args:
            label: the label with the broker id; None: not given.
            names: values of labels, or hosts in them, that the operator maps to brokers.
        """
        if not self.broker_filter or (label is None and not names):
            return self
        where = {name: pattern for name, pattern in self.where.items() if name != self.broker_filter}
        if label:
            where[label.name] = label.pattern.pattern if _is_re2(label.pattern.pattern) else ".+"
        if names:  # the map beats the label, and its names may be values of any label
            where.pop(label.name if label else "", None)
            where[self.broker_filter] = ".+"
        return replace(self, where=where)

    def with_net_devices(self, pattern: str) -> Exporter:
        """Return this exporter with the devices that the operator names; "": unchanged."""
        if not pattern or not self.device_label:
            return self
        return replace(self, where={**self.where, self.device_label: pattern}, net_devices=pattern)

    def with_quota_rates(self, leader: Sequence[SeriesName], follower: Sequence[SeriesName]) -> Exporter:
        """Return this exporter with the series of quota rates that the operator names; without names, unchanged.

        Raises:
            Invalid: the name of a series says that it is a counter.
        """
        for role, names in (("leader", leader), ("follower", follower)):
            for name in names:
                if name.said is SeriesKind.COUNTER:
                    raise Invalid(
                        f"broker-{role}-quota-series: {name} is a counter by its name, and a quota has a rate in "
                        "bytes/s. Fix: name the series of the attribute byte-rate"
                    )
        own = {role: names for role, names in zip(ReplicaRole, (leader, follower), strict=True) if names}
        return replace(self, quota_rates={**self.quota_rates, **own})

    def with_series(
        self, tx: Sequence[SeriesName], rx: Sequence[SeriesName], kind: SeriesKind | None = None
    ) -> Exporter:
        """Return this exporter with the series that the operator names; without names, unchanged.

        Args:
            tx: series of sent bytes; (): those of the exporter.
            rx: series of received bytes; (): those of the exporter.
            kind: of these series; None: as their names say.

        Raises:
            Invalid: a name does not say whether it is a counter or a rate.
        """
        if not tx and not rx:
            return self
        tx, rx = (_of_kind(way, names, kind) for way, names in (("tx", tx), ("rx", rx)))
        # A series of one topic is a part of the series of all topics.
        topics = {} if any("topic" in name.labels for name in (*tx, *rx)) else {"topic": ""}
        return replace(self, tx=tx or self.tx, rx=rx or self.rx, where={**self.where, **topics})

    @cached_property
    def names(self) -> frozenset[str]:
        """All names of metrics, for a first look at a sample."""
        series = (*self.tx, *self.rx, *chain.from_iterable(self.quota_rates.values()))
        return frozenset(chain((name.metric for name in series), [self.speed], self.facts)) - {""}

    @cached_property
    def _patterns(self) -> Mapping[str, re.Pattern[str]]:
        return {label: re.compile(pattern.removeprefix("!")) for label, pattern in self.where.items()}


def _of_kind(way: str, names: Sequence[SeriesName], kind: SeriesKind | None) -> Sequence[SeriesName]:
    known_names = []
    for name in names:
        try:
            known_names.append(name.of_kind(kind))
        except Invalid as error:
            raise Invalid(f"broker-{way}-series: {name} {error}") from None
    return known_names


def _is_re2(pattern: str) -> bool:
    """Whether Prometheus accepts a regular expression of Python: without look-around and references."""
    return not re.search(r"\(\?(?!:|P<)|\\[1-9AZ]|\(\?P[=>]", pattern)


def _vector_selector(matchers: Iterable[str]) -> str:
    """Return the PromQL selector of series with these matchers; empty ones are left out."""
    return f"{{{','.join(filter(None, matchers))}}}"


def _matcher(label: str, pattern: str) -> str:
    escaped = pattern.removeprefix("!").replace("\\", "\\\\").replace('"', '\\"')
    return f'{label}{"!~" if pattern.startswith("!") else "=~"}"{escaped}"'


def _jmx(form: str, broker_label: str = "", port: int = 9404) -> Exporter:
    """Return the preset of the JMX exporter; `form` names a metric, with {} for the name of the MBean.

    The counters of clients and of replication are separate. A series with a topic is part of the series without.
    """
    tx, rx = (
        [SeriesName(form.format(name)) for name in (f"bytes{way}", f"replicationbytes{way}")] for way in ("out", "in")
    )
    return Exporter(tx, rx, {"topic": ""}, broker_label=broker_label, port=port)


def _jmx_by_name(attribute: str, mean_seconds: float | None = None, broker_label: str = "") -> Exporter:
    metric = f"kafka_server_BrokerTopicMetrics_{attribute}"
    tx, rx = (
        [SeriesName(metric, {"name": f"{kind}Bytes{way}PerSec"}, mean_seconds) for kind in ("", "Replication")]
        for way in ("Out", "In")
    )
    return Exporter(tx, rx, {"topic": ""}, broker_label=broker_label, port=11001)


def _node(port: int, broker_label: str = "") -> Exporter:
    return Exporter(
        [SeriesName("node_network_transmit_bytes_total")],
        [SeriesName("node_network_receive_bytes_total")],
        where={"device": f"!{VIRTUAL_DEVICES}"},
        device_label="device",
        facts=FACTS,
        speed="node_network_speed_bytes",
        broker_label=broker_label,
        port=port,
        arguments="collect[]=netdev&collect[]=netclass",
    )


EXPORTERS: Mapping[str, Exporter] = {
    "node_exporter": _node(9100),
    "cadvisor": Exporter(
        [SeriesName("container_network_transmit_bytes_total")],
        [SeriesName("container_network_receive_bytes_total")],
        where={"pod": _POD, "interface": f"!{VIRTUAL_DEVICES}"},
        device_label="interface",
        broker_label=_POD_ID,
        broker_filter="pod",
    ),
    "jmx": _jmx("kafka_server_brokertopicmetrics_{}_total"),
    "jmx_persec": _jmx("kafka_server_brokertopicmetrics_{}persec_total"),
    "jmx_count": _jmx_by_name("Count"),
    "jmx_one_minute_rate": _jmx_by_name("OneMinuteRate", 60.0),
    "strimzi": _jmx("kafka_server_brokertopicmetrics_{}_total", broker_label=_POD_ID),
    "strimzi_reporter": _jmx("kafka_server_brokertopicmetrics_{}persec_total", broker_label=_POD_ID),
    "bitnami": _jmx("kafka_server_brokertopicmetrics_total_{}persec_count", port=5556),
    "msk": _node(11002, _MSK_ID),
    "msk_jmx": _jmx_by_name("Count", broker_label=_MSK_ID),
}
"""Name of the preset -> the metrics of the exporter."""

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'\s*[a-zA-Z_][a-zA-Z0-9_]*\s*=\s*"[^"\\{}]*"\s*'
_ONE_SERIES = rf"\s*{_NAME}\s*(?:\{{(?:{_LABEL},)*(?:{_LABEL}|\s*)\}}\s*)?"
_SERIES_NAMES = re.compile(rf"(?:{_ONE_SERIES},)*(?:{_ONE_SERIES}|\s*)")


def parse_series_names(text: str, option_name: str) -> tuple[SeriesName, ...]:
    """Return the names in `NAME,NAME{label="value"}`; "" is ().

    >>> [str(name) for name in parse_series_names('a_total,b_count{name="BytesInPerSec"}', "--broker-rx-series")]
    ['a_total', 'b_count{name="BytesInPerSec"}']

    Raises:
        Invalid: the text has another form.
    """
    if not _SERIES_NAMES.fullmatch(text):
        raise Invalid(f'{option_name} is {text[:100]!r}; give names of series, such as a_total,b_count{{name="x"}}')
    series = re.findall(rf"({_NAME})\s*(?:\{{(.*?)\}})?", text, re.DOTALL)
    return tuple(
        SeriesName(name, dict(re.findall(r'(\w+)\s*=\s*"(.*?)"', labels, re.DOTALL))) for name, labels in series
    )


FREE_STORAGE_QUERY = 'node_filesystem_avail_bytes{mountpoint="/data"}'
"""PromQL for the free bytes of a broker's log directories; the mount point is the one of Kafka-Kit's default query."""

PARTITION_SIZE_QUERY = (
    'max by (topic, partition) ({__name__=~"kafka_log_[lL]og_([sS]ize|Value)",name=~"(Size)?",partition!=""})'
)
"""PromQL for `kafka.log:type=Log,name=Size` in the JMX exporter's own spelling, in lower case, and in that of MSK."""
