"""The names of byte counters and of storage in the exporters that brokers and their hosts run.

`prometheus` builds its queries from these presets, and `scrape` picks samples of an exporter's text with them. The type
to know is `Exporter`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.errors import Invalid
from autothrottle.core.traffic.counters import Series, SeriesName
from autothrottle.core.traffic.network_devices import (
    ADDRESSES,
    FACTS,
    VIRTUAL_DEVICES,
    LinkDevices,
    link_devices,
)
from autothrottle.core.traffic.replication import THROTTLE_WINDOW

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
    facts: Sequence[str] = ()
    """Names of the metrics with facts of devices, which decide which of them count; (): their names decide."""
    net_devices: str = ""
    """Regular expression for the names of all devices that count; "": facts and names decide."""
    mean_seconds: float | None = None
    """None: the metrics are counters. Otherwise they are rates, each the mean of this many seconds."""
    speed: str = ""
    """Name of the metric with the speed of a device, bytes/s; "": none."""
    quota_rates: Mapping[ReplicaRole, Sequence[SeriesName]] = field(default_factory=lambda: QUOTA_RATES)
    """Role -> names of the series with the throttled replication in the broker's quota, bytes/s; one of them counts."""
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

    def quota_rates_query(self, window_seconds: int, selector: str = "") -> str:
        """Return the PromQL query for the throttled replication in the brokers' quotas, as `query`."""
        names = dict.fromkeys(name.metric for series in self.quota_rates.values() for name in series)
        matchers = [f'__name__=~"{"|".join(names)}"', selector]
        return f"{_vector_selector(matchers)}[{window_seconds}s]"

    def quota_role(self, labels: Mapping[str, str]) -> ReplicaRole | None:
        """Return the role whose quota a series with these labels, its `__name__` among them, measures; None: none."""
        return next((r for r, names in self.quota_rates.items() if any(n.matches(labels) for n in names)), None)

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
            facts: see `network_devices`.
            hosts: the hosts in the broker's registration.
        """
        names = self._devices(traffic) or self._devices(speeds)
        if not self.net_devices:
            return link_devices(names, facts, hosts)
        counted = frozenset(name for name in names if re.fullmatch(self.net_devices, name))
        return LinkDevices(counted, counted)

    def _devices(self, series: Iterable[Series]) -> set[str]:
        return {one.labels[self.device_label] for one in series if self.device_label in one.labels}

    def with_net_devices(self, pattern: str) -> Exporter:
        """Return this exporter with the devices that the operator names; "": unchanged."""
        if not pattern or not self.device_label:
            return self
        return replace(self, where={**self.where, self.device_label: pattern}, net_devices=pattern)

    def with_quota_rates(self, leader: Sequence[SeriesName], follower: Sequence[SeriesName]) -> Exporter:
        """Return this exporter with the series of quota rates that the operator names; without names, unchanged."""
        own = {role: names for role, names in zip(ReplicaRole, (leader, follower), strict=True) if names}
        return replace(self, quota_rates={**self.quota_rates, **own})

    def with_series(self, tx: Sequence[SeriesName], rx: Sequence[SeriesName]) -> Exporter:
        """Return this exporter with the series that the operator names; without names, unchanged."""
        if not tx and not rx:
            return self
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
        [SeriesName(metric, {"name": f"{kind}Bytes{way}PerSec"}) for kind in ("", "Replication")]
        for way in ("Out", "In")
    )
    return Exporter(tx, rx, {"topic": ""}, mean_seconds=mean_seconds, broker_label=broker_label, port=11001)


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
