"""The network devices of a host whose bytes are the traffic of its links.

A byte that a NIC sends is also counted by each device on top of it: bonds, VLANs, bridges and the devices of containers
and virtual machines. Only NICs count. If the exporter reports the devices of the broker's registered addresses, only
the NICs below those devices count. Otherwise facts of the exporter decide; without facts, names do. The type to know is
`LinkDevices`.

Sources: Documentation/ABI/testing/sysfs-class-net of the Linux kernel; systemd.net-naming-scheme(7).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

from autothrottle.core.traffic.broker_matching import host_of
from autothrottle.core.traffic.counters import Series

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
_ACCELERATED_FUNCTION = re.compile(r"enP\d+(p\d+)?s\d+.*|.*nsby")
"""Names of a function below another NIC: accelerated networking of Azure, and the standby NIC of virtio's failover."""
_VIRTUAL = re.compile(VIRTUAL_DEVICES)
_VLAN = re.compile(r"vlan.*|.*\..*")
_ADDRESS = re.compile("[0-9a-f]{2}(:[0-9a-f]{2}){5,}")
_MOST_LEVELS = 4
"""Levels of stacked devices that are followed, for example a VLAN on a bridge on a bond."""
_PERMANENT, _SET = 0, 3
"""Values of `node_network_address_assign_type`. A bond sets the addresses of its members."""


@dataclass(frozen=True, slots=True)
class LinkDevices:
    """The devices of one host."""

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
    devices: dict[object, set[str]] = {_ip(host_of(host)): set() for host in hosts}
    for fact in facts if None not in devices else ():
        if fact.labels.get("__name__") == ADDRESSES:
            devices.get(_ip(fact.labels.get("address", "")), set()).add(fact.labels.get("device", ""))
    return set().union(*devices.values()) if all(devices.values()) else set()


def _ip(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None


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
