"""Which network devices count: each byte of a link once, whatever the devices are called."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import pytest

from autothrottle.core.traffic.counters import Series
from autothrottle.core.traffic.exporters import link_devices


def counted(
    names: str,
    facts: Mapping[str, tuple[str, int, bool]] | None = None,
    addresses: Mapping[str, str] | None = None,
    hosts: Sequence[str] = (),
) -> str:
    """Return the devices that count; facts: device -> address, how it was assigned, whether it is on top of another."""
    labels = [
        {"device": device, "address": address, "netmask": "24", "scope": "global"}
        for address, device in (addresses or {}).items()
    ]
    series = [Series({"__name__": "node_network_address_info", **one}, [(0, 1)]) for one in labels]
    for device, (address, assign_type, is_stacked) in (facts or {}).items():
        values = {"address_assign_type": assign_type, "iface_id": 7, "iface_link": 3 if is_stacked else 7}
        series.append(Series({"__name__": "node_network_info", "device": device, "address": address}, [(0, 1)]))
        for fact, value in values.items():
            series.append(Series({"__name__": f"node_network_{fact}", "device": device}, [(0, value)]))
    return " ".join(sorted(link_devices(names.split(), series, hosts).counted))


@pytest.mark.parametrize(
    ("names", "links"),
    [
        ("lo eth0 veth1a2b docker0 br-3f1a", "eth0"),
        ("br0 bond0 enp11s0f0np0 enp11s0f1np1", "enp11s0f0np0 enp11s0f1np1"),
        ("bond1 bond1.7 enp4s0f0np0 enp4s0f1np1 team0", "enp4s0f0np0 enp4s0f1np1"),
        ("lo bond0 bond0.100", "bond0"),
        ("eth0 enP1p0s2", "eth0"),
        ("eth0 enP30832s1np0", "eth0"),
        ("enP2p1s0f0 enP2p1s0f1", "enP2p1s0f0 enP2p1s0f1"),
        ("ens5 eni1a2b3c4d5e6 vlan7 pod-id-link0", "ens5"),
        ("enX0 enx001122aabbcc ibp5s0 ib0.8001 wlp0s20f3", "enX0 enx001122aabbcc ibp5s0 wlp0s20f3"),
        ("eth0 gke52a1b2c3d4e cbr0", "eth0"),
        ("eth0 azure0 azv1a2b3c", "eth0"),
        ("em1 p1p1 em1_2 virbr0 vnet3", "em1 em1_2 p1p1"),
        ("eth0 wg0 tailscale0 tun0 sit0 ip6tnl0 gre0 gretap0 erspan0", "eth0"),
        ("eth0 weave vethwe-bridge vxlan-6784 datapath", "eth0"),
        ("ens3 0a1b2c3d4e5f6a7 antrea-gw0 antrea-egress0", "ens3"),
        ("vif1.0 xenbr0 eno1 tap3 macvtap1", "eno1"),
        ("lan0 lan1 veth9", "lan0 lan1"),
        ("lo veth9", ""),
    ],
)
def test_names_decide_without_facts(names: str, links: str) -> None:
    assert counted(names) == links


NIC, OTHER_NIC, LOCAL = "3c:ec:ef:10:20:30", "3c:ec:ef:10:20:31", "52:54:00:01:02:03"


@pytest.mark.parametrize(
    ("facts", "links"),
    [
        ({"mgmt": (NIC, 0, False), "x1": (OTHER_NIC, 0, False), "p": (LOCAL, 1, False)}, "mgmt x1"),
        ({"eth0": (NIC, 0, False), "prod0": (LOCAL, 0, False), "t0": ("0a:00:00:01", 0, False)}, "eth0 prod0"),
        ({"eth0": (LOCAL, 0, False), "vm-web": ("fe:54:00:00:00:01", 3, False)}, "eth0"),
        ({"eth0": (NIC, 0, False), "storage": (NIC, 2, True), "c12": ("be:ef:00:00:00:01", 3, True)}, "eth0"),
        ({"eth0": (NIC, 0, False), "eth1": (NIC, 0, False)}, "eth0"),
        ({"eth0": (NIC, 3, False), "eth1": (NIC, 3, False)}, "eth0 eth1"),
        ({"eth0": (NIC, 0, False), "eth1": (NIC, 3, False), "lag": (NIC, 2, False)}, "eth0 eth1"),
        ({"ens3": (NIC, 0, False), "ens3nsby": (NIC, 0, False), "ens4": (NIC, 0, False)}, "ens3"),
        ({"eth0": (NIC, 0, False), "enP5s1": (NIC, 3, False)}, "eth0"),
        ({"eth0": (NIC, 0, False), "enP5s1": (OTHER_NIC, 0, False)}, "enP5s1 eth0"),
        ({"eno1": (NIC, 0, False), "mgmtbr": (NIC, 1, False)}, "eno1"),
        ({"tun7": ("", 0, False), "eth0": (LOCAL, 1, False)}, "eth0"),
        ({"eth0": (LOCAL, 1, True)}, "eth0"),
        ({"nic": (LOCAL, 0, False), "prod": (LOCAL, 2, True), "x7": (LOCAL, 3, False)}, "nic"),
        ({"bond0": (NIC, 2, False), "eth0": ("", 3, False), "eth1": ("", 3, False)}, "eth0 eth1"),
        ({"nic": ("", 3, False), "x7": ("", 1, False)}, "nic"),
        (
            {"bond0": (NIC, 2, False), "lan0": (NIC, 3, False), "lan1": (NIC, 3, False), "eth0": (LOCAL, 0, False)},
            "bond0 eth0",
        ),
    ],
)
def test_facts_decide_where_the_exporter_reports_them(facts: Mapping[str, tuple[str, int, bool]], links: str) -> None:
    assert counted(" ".join(facts), facts) == links


ADDRESSES = {"10.0.0.7": "eth1", "192.168.9.7": "eth0", "10.0.1.7": "lan0", "fd00::7": "eth1", "127.0.0.1": "lo"}


@pytest.mark.parametrize(
    ("hosts", "links"),
    [
        (["10.0.0.7"], "eth1"),
        (["FD00:0::7"], "eth1"),
        (["::ffff:10.0.0.7"], "eth1"),
        (["10.0.0.7", "192.168.9.7"], "eth0 eth1"),
        (["10.0.1.7"], "lan0"),
        (["10.0.0.7", "kafka1.example"], "eth0 eth1"),
        (["203.0.113.9"], "eth0 eth1"),
        (["127.0.0.1"], "eth0 eth1"),
        ([], "eth0 eth1"),
    ],
)
def test_devices_of_the_registered_addresses_count_if_all_hosts_are_addresses(hosts: Sequence[str], links: str) -> None:
    """A network for management or storage counted beside that of Kafka, and its speed was taken as the capacity."""
    assert counted("eth0 eth1 lan0 lo veth1a", None, ADDRESSES, hosts) == links


@pytest.mark.parametrize(
    ("device", "facts", "links"),
    [
        ("bond0", {"bond0": (NIC, 2, False), "eno1": (NIC, 3, False), "eno2": (NIC, 3, False)}, "eno1 eno2"),
        ("bond0", {}, "bond0"),
        ("bond0.100", {}, "bond0"),
        ("eno1.7", {}, "eno1"),
        ("br0", {"br0": (NIC, 3, False), "eno1": (NIC, 0, False), "eno2": (OTHER_NIC, 0, False)}, "eno1"),
        ("br0", {}, "eno1 eno2 eno3"),
        ("br0.7", {}, "eno1 eno2 eno3"),
        ("wg0", {"eno1": (NIC, 0, False)}, "eno1 eno2 eno3"),
        ("eno1", {"eno1": (NIC, 0, True)}, "eno1"),
        ("prod0", {"prod0": (NIC, 3, False), "eno3": (NIC, 0, False)}, "eno3"),
    ],
)
def test_bytes_of_a_device_with_the_address_are_those_of_the_nics_below_it(
    device: str, facts: Mapping[str, tuple[str, int, bool]], links: str
) -> None:
    names = "lo eno1 eno2 eno3 bond0 bond0.100 eno1.7 prod0 veth1"
    assert counted(names, facts, {"10.0.0.7": device}, ["10.0.0.7"]) == links


def test_vlan_with_any_name_counts_as_the_device_below_it() -> None:
    facts = [
        Series({"__name__": "node_network_iface_id", "device": "eth0"}, [(0, 3)]),
        Series({"__name__": "node_network_iface_link", "device": "eth0"}, [(0, 3)]),
        Series({"__name__": "node_network_iface_id", "device": "kafka"}, [(0, 9)]),
        Series({"__name__": "node_network_iface_link", "device": "kafka"}, [(0, 3)]),
        Series({"__name__": "node_network_address_info", "device": "kafka", "address": "10.0.0.7"}, [(0, 1)]),
    ]
    links = link_devices(["eth0", "eth1", "kafka"], facts, ["10.0.0.7"])
    assert [*links.counted, *links.speeds, *links.unclear] == ["eth0", "eth0", "eth1"]
    # The link of a veth pair is in another namespace: its bytes count, its speed does not.
    pod = link_devices(["kafka"], facts[2:], ["10.0.0.7"])
    assert (*pod.counted, *pod.speeds) == ("kafka",)


def test_five_thousand_devices_of_one_host_do_not_delay_the_others() -> None:
    """A quadratic comparison of the devices of one hostile exporter would stop the reading of all exporters."""
    facts = {f"eth{n}": (NIC, 0, False) for n in range(5_000)}
    begin = time.process_time()
    assert counted(" ".join(facts), facts) == "eth0"
    stacked = {name: (NIC, 0, True) for name in facts}
    addresses = {f"10.0.{n // 250}.{n % 250}": name for n, name in enumerate(facts)}
    assert counted(" ".join(facts), stacked, addresses, [*addresses]) != ""
    assert time.process_time() - begin < 2
