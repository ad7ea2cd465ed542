"""The names of byte counters and of storage in the exporters that brokers and their hosts run.

`prometheus` builds its queries from these presets, and `scrape` picks samples of an exporter's text with them. The type
to know is `Exporter`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

_NO_LINK = (
    r"lo|veth.*|docker.*|br-.*|br[0-9].*|virbr.*|cali.*|flannel.*|cni.*|cilium.*|lxc.*|kube-.*|nodelocaldns|tun.*|tap.*"
    r"|wg.*|dummy.*|ifb.*|bond.*|team.*|vlan.*|.*\..*"
)
"""Devices whose bytes another device counts, too, or that belong to no link: bridges, bonds, VLANs, tunnels."""

_POD = r".*(kafka|broker).*-[0-9]+"
_POD_ID = r"pod=.*?([0-9]+)"
_MSK_ID = r"instance=b-([0-9]+)[.-].*"


@dataclass(frozen=True)
class Exporter:
    """Where an exporter reports the bytes that a broker sends and receives. Several names are summed up."""

    tx: Sequence[str]
    """Names of the metrics of sent bytes."""
    rx: Sequence[str]
    """Names of the metrics of received bytes."""
    where: Mapping[str, str] = field(default_factory=dict)
    """Label -> regular expression for its whole value; an absent label has the value "". `!` before it negates it."""
    tx_names: str = ""
    """Regular expression for the label `name`, in addition to `where`; "": none."""
    rx_names: str = ""
    mean_seconds: float | None = None
    """None: the metrics are counters. Otherwise they are rates, each the mean of this many seconds."""
    speed: str = ""
    """Name of the metric with the speed of a device, bytes/s; "": none."""
    broker_label: str = ""
    """`LABEL=REGEX`: label with the broker id, see `broker_matching`; "": none."""
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
        names, name_label = (self.tx, self.tx_names) if direction == "tx" else (self.rx, self.rx_names)
        where = {**self.where, **({"name": name_label} if name_label else {})}
        matchers = [f'__name__=~"{"|".join(names)}"', *(_matcher(*one) for one in where.items())]
        return f"{{{','.join([*matchers, *([selector] if selector else [])])}}}[{window_seconds}s]"

    def speed_query(self, selector: str = "") -> str:
        """Return the PromQL query for the speeds of devices; "": the exporter does not report them."""
        return f"{self.speed}{{{selector}}}" if self.speed else ""

    def direction(self, name: str, labels: Mapping[str, str]) -> str:
        """Return `tx` or `rx` if a sample counts; "": it does not."""
        for label, pattern in self._patterns.items():
            negated = self.where[label].startswith("!")
            if bool(pattern.fullmatch(labels.get(label, ""))) == negated:
                return ""
        for direction, names, name_label in (("tx", self.tx, self.tx_names), ("rx", self.rx, self.rx_names)):
            if name in names and (not name_label or re.fullmatch(name_label, labels.get("name", ""))):
                return direction
        return ""

    @cached_property
    def names(self) -> frozenset[str]:
        """All names of metrics, for a first look at a sample."""
        return frozenset(chain(self.tx, self.rx, [self.speed]))

    @cached_property
    def _patterns(self) -> Mapping[str, re.Pattern[str]]:
        return {label: re.compile(pattern.removeprefix("!")) for label, pattern in self.where.items()}


def _matcher(label: str, pattern: str) -> str:
    escaped = pattern.removeprefix("!").replace("\\", "\\\\")
    return f'{label}{"!~" if pattern.startswith("!") else "=~"}"{escaped}"'


def _jmx(form: str, broker_label: str = "") -> Exporter:
    """Return the preset of the JMX exporter; `form` names a metric, with {} for the name of the MBean.

    The counters of clients and of replication are separate. A series with a topic is part of the series without.
    """
    tx, rx = ([form.format(name) for name in (f"bytes{way}", f"replicationbytes{way}")] for way in ("out", "in"))
    return Exporter(tx, rx, {"topic": ""}, broker_label=broker_label, port=9404)


def _jmx_by_name(attribute: str, mean_seconds: float | None = None, broker_label: str = "") -> Exporter:
    names = [f"kafka_server_BrokerTopicMetrics_{attribute}"]
    return Exporter(
        names,
        names,
        {"topic": ""},
        tx_names="(Replication)?BytesOutPerSec",
        rx_names="(Replication)?BytesInPerSec",
        mean_seconds=mean_seconds,
        broker_label=broker_label,
        port=11001,
    )


def _node(port: int, broker_label: str = "") -> Exporter:
    return Exporter(
        ["node_network_transmit_bytes_total"],
        ["node_network_receive_bytes_total"],
        where={"device": f"!{_NO_LINK}"},
        speed="node_network_speed_bytes",
        broker_label=broker_label,
        port=port,
        arguments="collect[]=netdev&collect[]=netclass",
    )


EXPORTERS: Mapping[str, Exporter] = {
    "node_exporter": _node(9100),
    "cadvisor": Exporter(
        ["container_network_transmit_bytes_total"],
        ["container_network_receive_bytes_total"],
        where={"pod": _POD, "interface": f"!{_NO_LINK}"},
        broker_label=_POD_ID,
    ),
    "jmx": _jmx("kafka_server_brokertopicmetrics_{}_total"),
    "jmx_persec": _jmx("kafka_server_brokertopicmetrics_{}persec_total"),
    "jmx_count": _jmx_by_name("Count"),
    "jmx_one_minute_rate": _jmx_by_name("OneMinuteRate", 60.0),
    "strimzi": _jmx("kafka_server_brokertopicmetrics_{}_total", broker_label=_POD_ID),
    "msk": _node(11002, _MSK_ID),
    "msk_jmx": _jmx_by_name("Count", broker_label=_MSK_ID),
}
"""Name of the preset -> the metrics of the exporter."""

FREE_STORAGE_QUERY = 'node_filesystem_avail_bytes{mountpoint="/data"}'
"""PromQL for the free bytes of a broker's log directories; the mount point is the one of Kafka-Kit's default query."""

PARTITION_SIZE_QUERY = (
    'max by (topic, partition) ({__name__=~"kafka_log_[lL]og_([sS]ize|Value)",name=~"(Size)?",partition!=""})'
)
"""PromQL for `kafka.log:type=Log,name=Size` in the JMX exporter's own spelling, in lower case, and in that of MSK."""
