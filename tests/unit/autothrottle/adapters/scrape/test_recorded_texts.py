"""Load and capacity of a broker from the texts of exporters on common kinds of hosts, scraped and through Prometheus.

The counters start at 0; the texts in `exporter_texts` are those of 10 s later.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import pytest

from autothrottle.adapters.kafka_common.broker_hosts import BrokerHosts
from autothrottle.adapters.memory import MemoryCluster
from autothrottle.adapters.scrape import ScrapedMetrics, ScrapeSettings
from autothrottle.adapters.scrape.metrics import Target, scraped
from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import LinkSide
from autothrottle.core.traffic.broker_matching import BrokerMatching
from autothrottle.core.traffic.capacity import CapacityLimits
from autothrottle.core.traffic.counters import SeriesName
from autothrottle.core.traffic.exporters import EXPORTERS, QUOTA_SECONDS, Exporter
from autothrottle.core.traffic.loads import Capacity, Loads
from autothrottle.core.traffic.series_loads import SeriesReading

TEXTS = Path(__file__).with_name("exporter_texts")
NOW = 1_800_000_000.0
SECONDS = 10.0
DEFAULT = 20_000_000
LIMITS = CapacityLimits(default=Capacity(DEFAULT, DEFAULT))


def recorded(name: str) -> str:
    return (TEXTS / f"{name}.txt").read_text()


def target(text: str, exporter: Exporter) -> Target:
    """Return the samples of an exporter whose counters grew from 0 to the values in a text."""
    start = re.sub(
        r"^(\w*(?:(?:bytes|sent|recv|in|out|persec)_total|_count|_Count).*[ }]) ?\S+$",
        r"\1 0",
        text,
        flags=re.MULTILINE,
    )
    samples = Target("http://b1:9100/metrics")
    samples.scrapes.append(scraped(start, exporter, NOW - SECONDS))
    samples.scrapes.append(scraped(text, exporter, NOW))
    return samples


def loads_by_scraping(text: str, exporter: Exporter, hosts: Sequence[str] = ("b1",)) -> Loads:
    source = ScrapedMetrics(
        ScrapeSettings("http://{host}/", exporter), LIMITS, BrokerHosts(MemoryCluster()), lambda: NOW
    )
    source.close()  # without its thread, which would request what no server answers
    source._targets, source._rounds = {1: target(text, exporter)}, 2
    source._targets[1].hosts = hosts
    return source.fetch_loads(timedelta(seconds=1))


def loads_by_prometheus(text: str, exporter: Exporter, hosts: Sequence[str] = ("b1",)) -> Loads:
    samples = target(text, exporter)
    series = {query: samples.series(query, exporter.mean_seconds) for query in ("tx", "rx")}
    for one in (one for of_query in series.values() for one in of_query):
        one.labels["instance"] = f"{hosts[0]}:9100"  # type: ignore[index]
    speeds, facts = samples.series("speed"), samples.series("fact")
    quotas = samples.series("quota", lambda labels: QUOTA_SECONDS)
    for one in (*speeds, *facts, *quotas):
        one.labels["instance"] = f"{hosts[0]}:9100"  # type: ignore[index]
    names = {query: exporter.names_of(query) for query in series}
    matching = BrokerMatching(registered={1: hosts})
    return SeriesReading(matching, LIMITS, NOW, series, speeds, facts, exporter, names, quotas).loads()


READINGS = pytest.mark.parametrize("read", [loads_by_scraping, loads_by_prometheus])


class Reading(Protocol):
    """Returns the loads from the text of an exporter of broker 1, which is registered with these hosts."""

    def __call__(self, text: str, exporter: Exporter, hosts: Sequence[str] = ...) -> Loads: ...


@READINGS
@pytest.mark.parametrize(
    ("preset", "text", "sent", "received", "capacity", "devices"),
    [
        ("node_exporter", "bare_metal_bond_vlans", 70, 50, 2500, "eno1np0 eno2np1"),
        ("node_exporter", "bare_metal_own_names", 71, 51, 2500, "bond0 mgmt0"),
        ("node_exporter", "node_exporter", 1100, 300.0005, 2500, "eth0 eth1"),
        ("node_exporter", "azure", 40, 40, 5000, "eth0"),
        ("node_exporter", "azure_names_only", 40, 40, 5000, "eth0"),
        ("node_exporter", "eks_vpc_cni", 50, 40, 20, "ens5 ens6"),
        ("node_exporter", "calico_ipip", 40, 30, 1250, "ens192"),
        ("node_exporter", "cilium", 40, 30, 3125, "eth0"),
        ("node_exporter", "flannel", 40, 30, 125, "eth0"),
        ("node_exporter", "ovn_kubernetes", 40, 30, 1250, "enp1s0"),
        ("node_exporter", "proxmox", 40, 30, 1250, "eno1 eno2"),
        ("node_exporter", "libvirt_names_only", 40, 30, 1250, "enp65s0f0"),
        ("msk", "msk_node", 60, 45, 20, "eth0 eth1"),
        ("msk_jmx", "msk_jmx", 270, 150, 20, ""),
        ("strimzi", "strimzi", 270, 150, 20, ""),
        ("strimzi_reporter", "strimzi_reporter", 40, 30, 20, ""),
        ("bitnami", "bitnami", 40, 30, 20, ""),
    ],
)
def test_load_and_capacity_are_those_of_the_links(
    read: Reading, preset: str, text: str, sent: float, received: float, capacity: float, devices: str
) -> None:
    """The load was doubled where another device counts the bytes of a NIC, and a veth gave a capacity of 10 Gbit/s."""
    loads = read(recorded(text), EXPORTERS[preset])
    assert loads.problems == {}
    load = loads.brokers[1]
    assert [load.outbound.rate / 1e6, load.inbound.rate / 1e6] == pytest.approx([sent, received])
    assert load.capacity == Capacity(int(capacity * 1_000_000), int(capacity * 1_000_000))
    assert " ".join(loads.devices.get(1, ())) == devices
    assert loads.warnings == ()


@READINGS
@pytest.mark.parametrize(
    ("preset", "text", "rates"),
    [
        ("msk_jmx", "msk_jmx", {(1, ReplicaRole.LEADER): 30_000_000, (1, ReplicaRole.FOLLOWER): 20_500_000}),
        ("strimzi_reporter", "strimzi_reporter", {(1, ReplicaRole.LEADER): 8_000_000}),
        ("bitnami", "bitnami", {}),
        ("node_exporter", "azure", {}),
    ],
)
def test_quota_rates_are_read_where_an_exporter_offers_them(
    read: Reading, preset: str, text: str, rates: dict[LinkSide, int]
) -> None:
    loads = read(recorded(text), EXPORTERS[preset])
    assert {side: measured.rate for side, measured in loads.quota_rates.items()} == rates
    assert (loads.warnings, loads.problems) == ((), {})


@READINGS
def test_quota_rate_that_is_no_number_concerns_nothing_else(read: Reading) -> None:
    text = recorded("msk_jmx").replace("byte_rate 2.05E7", "byte_rate NaN")
    loads = read(text, EXPORTERS["msk_jmx"])
    assert [*loads.quota_rates] == [(1, ReplicaRole.LEADER)]
    (warning,) = loads.warnings
    assert warning.startswith("broker 1 [follower]: the series of its quota rate has a sample of nan bytes/s")
    assert [*loads.brokers] == [1]


@READINGS
@pytest.mark.parametrize(
    ("text", "addresses", "hosts", "sent", "capacity", "devices"),
    [
        ("bridge_and_management", {}, ["10.20.0.7"], 40, 1250, "eno1"),
        ("bridge_and_management", {}, ["10.20.0.7", "192.168.0.7"], 55, 1250, "eno1 eno2"),
        ("bridge_and_management", {}, ["kafka7.example"], 55, 1250, "eno1 eno2"),
        ("bare_metal_bond_vlans", {"bond0.100": "10.0.0.7"}, ["10.0.0.7"], 70, 2500, "eno1np0 eno2np1"),
        ("bare_metal_own_names", {"mgmt0": "10.9.0.7", "bond0": "10.0.0.7"}, ["10.0.0.7"], 70, 2500, "bond0"),
        ("eks_vpc_cni", {"ens5": "10.0.0.7"}, ["10.0.0.7"], 40, 20, "ens5"),
        ("azure", {"eth0": "10.0.0.7"}, ["10.0.0.7"], 40, 5000, "eth0"),
        ("proxmox", {"vmbr0": "10.0.0.7"}, ["10.0.0.7"], 40, 1250, "eno1"),
        ("ovn_kubernetes", {"br-ex": "10.0.0.7"}, ["10.0.0.7"], 40, 1250, "enp1s0"),
        ("libvirt_names_only", {"br0": "10.0.0.7"}, ["10.0.0.7"], 40, 1250, "enp65s0f0"),
        ("node_exporter", {"eth1": "10.0.0.7"}, ["10.0.0.7"], 700, 1250, "eth1"),
    ],
)
def test_device_with_the_registered_address_names_the_links_that_count(
    read: Reading,
    text: str,
    addresses: dict[str, str],
    hosts: Sequence[str],
    sent: float,
    capacity: float,
    devices: str,
) -> None:
    """The network for management counted beside that of Kafka: the load was too high, and the capacity wrong."""
    lines = [
        f'node_network_address_info{{address="{address}",device="{device}",netmask="24",scope="global"}} 1\n'
        for device, address in addresses.items()
    ]
    loads = read(recorded(text) + "".join(lines), EXPORTERS["node_exporter"], hosts)
    assert loads.problems == {}
    load = loads.brokers[1]
    assert load.outbound.rate / 1e6 == pytest.approx(sent)
    assert load.capacity.outbound / 1e6 == pytest.approx(capacity)
    assert " ".join(loads.devices[1]) == devices


@READINGS
def test_network_that_carries_more_than_that_of_the_registered_address_is_named(read: Reading) -> None:
    address = 'node_network_address_info{address="10.0.0.7",device="eth0"} 1\n'
    loads = read(node_text(eth0=(10, 10), eth1=(50, 50)) + address, EXPORTERS["node_exporter"], ["10.0.0.7"])
    (warning,) = loads.warnings
    assert "the network device eth1 does not count, and it carries 100000000 bytes/s, more than eth0" in warning


def node_text(**devices: Sequence[float]) -> str:
    """Return the text of node_exporter: device -> MB/s sent, MB/s received, and perhaps the speed in MB/s."""
    lines = []
    for device, (sent, received, *speed) in devices.items():
        lines += [
            f'node_network_transmit_bytes_total{{device="{device}"}} {sent * 1e6 * SECONDS}',
            f'node_network_receive_bytes_total{{device="{device}"}} {received * 1e6 * SECONDS}',
            *(f'node_network_speed_bytes{{device="{device}"}} {megabytes * 1e6}' for megabytes in speed),
        ]
    return "\n".join(lines) + "\n"


@READINGS
def test_speed_of_a_virtual_device_is_not_the_capacity(read: Reading) -> None:
    """A veth reports 10 Gbit/s whatever is below it. The link of 125 MB/s got a throttle of 1,089 MB/s."""
    loads = read(node_text(eth0=(40, 40, 125), veth1a2b=(40, 40, 1250)), EXPORTERS["node_exporter"])
    assert loads.brokers[1].capacity == Capacity(125_000_000, 125_000_000)
    assert loads.brokers[1].outbound.rate == 40_000_000


@READINGS
@pytest.mark.parametrize("speed", [-0.125, 0.0, float("nan"), 1e9])
def test_impossible_speed_of_a_link_is_not_its_capacity(read: Reading, speed: float) -> None:
    """An unplugged or virtual NIC reports -125000 bytes/s, and a VPN beside it 10 Mbit/s whatever it carries."""
    loads = read(node_text(eth0=(40, 30, speed), nebula1=(40, 30, 1.25)), EXPORTERS["node_exporter"])
    assert (loads.brokers[1].outbound.rate, loads.brokers[1].capacity.outbound) == (40_000_000, DEFAULT)


@READINGS
def test_veth_in_the_namespace_of_a_container_counts_and_gives_no_capacity(read: Reading) -> None:
    """In a pod, eth0 is the end of a veth pair: its bytes are those of the broker, its speed is not that of a link."""
    facts = 'node_network_iface_id{device="eth0"} 3\nnode_network_iface_link{device="eth0"} 17\n'
    loads = read(node_text(eth0=(40, 30, 1250)) + facts, EXPORTERS["node_exporter"])
    assert (loads.brokers[1].outbound.rate, loads.brokers[1].capacity.outbound) == (40_000_000, DEFAULT)


@READINGS
def test_bond_counts_if_the_exporter_reports_no_traffic_of_its_members(read: Reading) -> None:
    """Node_exporter's filter of netdev hides the members of a bond, and not their speeds."""
    speeds = "".join(f'node_network_speed_bytes{{device="{device}"}} 1.25e8\n' for device in ("eth0", "eth1"))
    loads = read(node_text(bond0=(80, 60, 250)) + speeds, EXPORTERS["node_exporter"])
    assert (loads.brokers[1].outbound.rate, loads.brokers[1].capacity.outbound) == (80_000_000, 250_000_000)


@READINGS
def test_option_names_the_devices_that_count(read: Reading) -> None:
    exporter = EXPORTERS["node_exporter"].with_net_devices("br[0-9]+|veth.*")
    loads = read(node_text(eth0=(40, 40, 125), br0=(7, 8, 50), veth1=(1, 1, 25)), exporter)
    load = loads.brokers[1]
    assert (load.outbound.rate, load.inbound.rate) == (8_000_000, 9_000_000)
    assert (load.capacity.outbound, loads.devices) == (50_000_000, {1: ("br0", "veth1")})


@READINGS
def test_devices_that_move_together_are_named(read: Reading) -> None:
    """No rule knows every pair of devices that count the same bytes, so that the load of a broker may be doubled."""
    loads = read(node_text(eth0=(40, 30), eth1=(40.5, 30.3), eth2=(40, 9), eth3=(0, 0)), EXPORTERS["node_exporter"])
    (warning,) = loads.warnings
    assert warning.startswith("broker 1: the network devices eth0 and eth1 both count, and their bytes are the same")
    assert loads.brokers[1].outbound.rate == 120_500_000


@READINGS
def test_members_of_a_bond_may_move_together(read: Reading) -> None:
    """LACP spreads many flows evenly. A warning in each cycle would hide the others."""
    loads = read(node_text(eth0=(40, 30), eth1=(40, 30), bond0=(80, 60)), EXPORTERS["node_exporter"])
    assert (loads.warnings, loads.brokers[1].outbound.rate) == ((), 80_000_000)


@READINGS
def test_device_that_may_be_a_link_of_its_own_is_named(read: Reading) -> None:
    """A NIC may have any name. Beside eth0 it does not count, so that the clients' load seems too small."""
    loads = read(node_text(eth0=(1, 1), data0=(90, 50)), EXPORTERS["node_exporter"])
    (warning,) = loads.warnings
    assert "the network device data0 does not count, and it carries 140000000 bytes/s, more than eth0" in warning


MISSING = [
    ("jmx", "strimzi", "kafka_server_brokertopicmetrics_replicationbytesout_total"),
    ("jmx", "strimzi", "kafka_server_brokertopicmetrics_bytesin_total"),
    ("strimzi", "strimzi", "kafka_server_brokertopicmetrics_replicationbytesin_total"),
    ("jmx_persec", "jmx_persec", "kafka_server_brokertopicmetrics_replicationbytesinpersec_total"),
    ("jmx_count", "msk_jmx", 'kafka_server_BrokerTopicMetrics_Count{name="ReplicationBytesOutPerSec"}'),
    ("msk_jmx", "msk_jmx", 'kafka_server_BrokerTopicMetrics_Count{name="BytesOutPerSec"}'),
    (
        "jmx_one_minute_rate",
        "msk_jmx",
        'kafka_server_BrokerTopicMetrics_OneMinuteRate{name="ReplicationBytesInPerSec"}',
    ),
    ("strimzi_reporter", "strimzi_reporter", "kafka_server_brokertopicmetrics_replicationbytesoutpersec_total"),
    ("bitnami", "bitnami", "kafka_server_brokertopicmetrics_total_replicationbytesoutpersec_count"),
]


@READINGS
@pytest.mark.parametrize(("preset", "text", "series"), MISSING)
def test_missing_member_of_a_sum_is_a_problem_that_names_it(read: Reading, preset: str, text: str, series: str) -> None:
    """Rules without the counters of replication are common. Their 0 let a rate climb from 7 to 18 MB/s in 30 s."""
    name = series.removesuffix("}")
    lines = [line for line in recorded(text).splitlines() if not line.startswith((f"{name},", f"{name} ", f"{name}}}"))]
    loads = read("\n".join(lines) + "\n", EXPORTERS[preset])
    assert loads.brokers == {}
    assert f"has no series {series}, so the sum of its traffic is unknown" in loads.problems[1]


def test_every_sum_of_a_preset_is_in_the_table_above() -> None:
    assert {row[0] for row in MISSING} == {name for name, exporter in EXPORTERS.items() if len(exporter.tx) > 1}


@READINGS
def test_series_of_the_operator_are_summed_up_and_all_needed(read: Reading) -> None:
    tx = SeriesName("sent_total", {"kind": "clients"}), SeriesName("sent_total", {"kind": "followers"})
    exporter = EXPORTERS["node_exporter"].with_series(tx, [SeriesName("kafka_in_bytes_total")])
    text = 'sent_total{kind="clients"} %s\nsent_total{kind="followers"} 0\nkafka_in_bytes_total %s\n'
    text += 'sent_total{kind="clients",topic="t"} 3e8\nsent_total{kind="other"} 3e8\n'
    loads = read(text % ("0", "3e8"), exporter)
    assert (loads.brokers[1].outbound.rate, loads.brokers[1].inbound.rate) == (0, 30_000_000)
    loads = read(text.replace('"followers"', '"x"') % ("0", "3e8"), exporter)
    assert 'has no series sent_total{kind="followers"}' in loads.problems[1]


@READINGS
def test_gauge_with_a_rate_in_its_name_is_a_rate(read: Reading) -> None:
    """Prometheus shows no type, and a gauge was read as a counter: the load was 0, and a throttle 112 MB/s for 58."""
    tx, rx = SeriesName("bytesoutpersec_oneminuterate"), SeriesName("bytesinpersec_oneminuterate")
    text = "".join(f"# TYPE {name} gauge\n{name} {rate}\n" for name, rate in ((tx, "5.4e7"), (rx, "3e7")))
    load = read(text, EXPORTERS["jmx"].with_series([tx], [rx])).brokers[1]
    assert (load.outbound.rate, load.inbound.rate) == (54_000_000, 30_000_000)
    assert (load.outbound.end - load.outbound.start).total_seconds() == 60


@READINGS
def test_counter_that_an_exporter_calls_a_gauge_is_a_counter(read: Reading) -> None:
    names = SeriesName("bytes_out_total"), SeriesName("bytes_in_total")
    text = "".join(f"# TYPE {name} gauge\n{name} 5e8\n" for name in names)
    load = read(text, EXPORTERS["jmx"].with_series(names[:1], names[1:])).brokers[1]
    assert (load.outbound.rate, load.inbound.rate) == (50_000_000, 50_000_000)


def telegraf_text(label: str = "interface") -> str:
    devices = {"eth0": 4e8, "lo": 4e8, "docker0": 4e8, "veth1a2b": 4e8}
    names = ("net_bytes_sent_total", "net_bytes_recv_total")
    return "".join(f'{name}{{{label}="{device}"}} {total}\n' for name in names for device, total in devices.items())


TELEGRAF = EXPORTERS["node_exporter"].with_series(
    [SeriesName("net_bytes_sent_total")], [SeriesName("net_bytes_recv_total")]
)


@READINGS
@pytest.mark.parametrize("label", ["interface", "port"])
def test_series_that_differ_by_network_devices_are_not_summed_up(read: Reading, label: str) -> None:
    """Telegraf names the device in the label `interface`. The bytes of eth0 counted four times: 160 MB/s for 40."""
    loads = read(telegraf_text(label), TELEGRAF)
    assert loads.brokers == {}
    assert f"differ in the network device ({label}: docker0, eth0, lo and 1 more)" in loads.problems[1]
    assert f"Fix: --broker-device-label={label}" in loads.problems[1]


@READINGS
@pytest.mark.parametrize("label", ["interface", "port"])
def test_option_names_the_label_with_the_device(read: Reading, label: str) -> None:
    loads = read(telegraf_text(label), TELEGRAF.with_device_label(label))
    assert (loads.brokers[1].outbound.rate, loads.devices, loads.problems) == (40_000_000, {1: ("eth0",)}, {})
    chosen = EXPORTERS["node_exporter"].with_device_label("interface").with_net_devices("docker0")
    assert read(telegraf_text(), chosen.with_series(TELEGRAF.tx, TELEGRAF.rx)).devices == {1: ("docker0",)}


@READINGS
def test_series_that_differ_in_other_labels_are_summed_up(read: Reading) -> None:
    text = "".join(
        f'net_bytes_{way}_total{{name="{name}"}} 2e8\n' for way in ("sent", "recv") for name in ("lo-1", "eth")
    )
    assert read(text, TELEGRAF).brokers[1].inbound.rate == 40_000_000


@READINGS
def test_missing_direction_of_a_device_is_a_problem_that_names_it(read: Reading) -> None:
    """A relabelling rule that drops the received bytes of one NIC made the load too small without a word."""
    text = node_text(eth0=(40, 30), eth1=(40, 30)).replace(
        'receive_bytes_total{device="eth1"}', 'x_total{device="eth1"}'
    )
    problem = read(text, EXPORTERS["node_exporter"]).problems[1]
    assert "has no series of rx for the network device eth1, so the sum of its traffic is unknown" in problem
