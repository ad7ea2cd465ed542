"""The queries that presets make."""

from __future__ import annotations

import pytest

from autothrottle.core.traffic.broker_matching import parse_broker_label
from autothrottle.core.traffic.exporters import EXPORTERS, parse_series_names


def test_query_is_a_range_vector_of_the_links() -> None:
    query = EXPORTERS["node_exporter"].query("tx", 120, 'job="kafka"')
    assert query.startswith('{__name__=~"node_network_transmit_bytes_total",device!~"lo|veth.*|')
    assert r"|.*\\..*" in query  # a backslash in a PromQL string is written twice
    assert query.endswith('",job="kafka"}[120s]')


@pytest.mark.parametrize(
    ("preset", "query"),
    [
        (
            "jmx",
            "kafka_server_brokertopicmetrics_bytesin_total|kafka_server_brokertopicmetrics_replicationbytesin_total",
        ),
        (
            "strimzi",
            "kafka_server_brokertopicmetrics_bytesin_total|kafka_server_brokertopicmetrics_replicationbytesin_total",
        ),
        (
            "jmx_persec",
            "kafka_server_brokertopicmetrics_bytesinpersec_total|"
            "kafka_server_brokertopicmetrics_replicationbytesinpersec_total",
        ),
    ],
)
def test_query_sums_up_clients_and_replication_without_single_topics(preset: str, query: str) -> None:
    assert EXPORTERS[preset].query("rx", 60) == f'{{__name__=~"{query}",topic=~""}}[60s]'


def test_query_of_mbeans_selects_their_names() -> None:
    query = EXPORTERS["jmx_one_minute_rate"].query("tx", 60)
    assert query == (
        '{__name__=~"kafka_server_BrokerTopicMetrics_OneMinuteRate",topic=~"",name=~"BytesOutPerSec|ReplicationBytesOutPerSec"}[60s]'
    )


def test_usual_addresses_of_exporters() -> None:
    assert EXPORTERS["node_exporter"].url == "http://{host}:9100/metrics?collect[]=netdev&collect[]=netclass"
    assert EXPORTERS["msk"].url.startswith("http://{host}:11002/metrics")
    assert EXPORTERS["msk_jmx"].url == "http://{host}:11001/metrics"
    assert EXPORTERS["strimzi"].url == "http://{host}:9404/metrics"


def test_query_of_devices_leaves_out_those_of_containers() -> None:
    """A host of containers has hundreds of devices, whose facts would exceed the limit of a response."""
    query = EXPORTERS["node_exporter"].devices_query('job="kafka"')
    assert query.startswith('{__name__=~"node_network_speed_bytes|node_network_info|node_network_address_assign_type|')
    assert ',device!~"lo|veth.*|' in query
    assert query.endswith('",job="kafka"}')
    assert query.endswith(' or {__name__="node_network_address_info",scope!="link-local",job="kafka"}')
    assert EXPORTERS["jmx"].devices_query() == ""
    assert ',device=~"data.*"}' in EXPORTERS["node_exporter"].with_net_devices("data.*").devices_query()


def test_query_of_own_series_selects_their_labels() -> None:
    names = parse_series_names('a_total{way="in",kind="x"},b_total{way="out"}', "--broker-tx-series")
    query = EXPORTERS["jmx"].with_series(names, ()).query("tx", 60)
    assert query == '{__name__=~"a_total|b_total",topic=~"",way=~"in|out"}[60s]'


def test_broker_label_replaces_the_filter_of_cadvisor_by_name() -> None:
    """Pods of a node pool are called prod-mixed-0. The preset asked for pods with kafka or broker in their name."""
    cadvisor = EXPORTERS["cadvisor"]
    assert 'pod=~".*(kafka|broker).*-[0-9]+"' in cadvisor.query("tx", 60)
    own = cadvisor.with_brokers(parse_broker_label("pod=prod-mixed-([0-9]+)", "broker-label"), {})
    assert 'pod=~"prod-mixed-([0-9]+)"' in own.query("tx", 60)
    other = cadvisor.with_brokers(parse_broker_label("pod_name=k-([0-9]+)", "broker-label"), {}).query("tx", 60)
    assert 'pod_name=~"k-([0-9]+)"' in other
    assert "pod=~" not in other
    python_only = cadvisor.with_brokers(parse_broker_label("pod=(?!zk)([0-9]+)", "broker-label"), {})
    assert 'pod=~".+"' in python_only.query("tx", 60)
    assert 'pod=~".+"' in cadvisor.with_brokers(None, {"prod-mixed-0": 1}).query("tx", 60)
    assert cadvisor.with_brokers(None, {}) is cadvisor
    assert EXPORTERS["jmx"].with_brokers(parse_broker_label("pod=k-([0-9]+)", "broker-label"), {}) is EXPORTERS["jmx"]
