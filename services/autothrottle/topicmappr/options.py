"""The options of topicmappr and metricsfetcher, with the names and meanings of Kafka-Kit's.

Only the options of a group that names the cluster may come from the environment, as in Kafka-Kit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import ClassVar

from autothrottle.core.capacity.sizing import CopyTarget, Loss
from autothrottle.core.cluster.configs import parse_broker_id
from autothrottle.core.errors import Invalid
from autothrottle.core.placement.brokers import ALL_MAPPED, ALL_REGISTERED
from autothrottle.core.placement.plan import Optimization, Strategy
from autothrottle.core.traffic.broker_matching import BrokerLabel
from autothrottle.core.traffic.exporters import FREE_STORAGE_QUERY, PARTITION_SIZE_QUERY
from autothrottle.core.units import parse_quantity
from autothrottle.runtime import option_kinds as kinds
from autothrottle.runtime.configuration import KafkaBackend
from autothrottle.runtime.option_kinds import Refused, declared_options, option
from autothrottle.runtime.sources import Given
from autothrottle_client.texts import split_patterns

PREFIX = "TOPICMAPPR_"
"""Prefix of topicmappr's environment variables."""

KAFKA_KIT_SERVERS = "kafka-addr"
"""Kafka-Kit's spelling of bootstrap-servers. It keeps Kafka-Kit's defaults: partition sizes are in ZooKeeper."""

GIBIBYTE = 2**30
"""Unit of Kafka-Kit's options and report, which it calls GB."""
_MEBIBYTE = 2**20


def is_kafka_alone(given: Mapping[str, Given]) -> bool:
    """Whether the given options name brokers and no ZooKeeper, as in `autothrottle run`."""
    servers = given.get("bootstrap-servers")
    if servers is None or servers.alias == KAFKA_KIT_SERVERS:
        return False
    has_zookeeper = any(name.startswith("zk-") for name in given)
    return not has_zookeeper and ("kafka-backend" not in given or given["kafka-backend"].text != KafkaBackend.ZOOKEEPER)


class MetricsSource(StrEnum):
    """Where partition sizes and free storage come from."""

    ZOOKEEPER = "zookeeper"
    """The nodes that metricsfetcher writes."""
    KAFKA = "kafka"
    """The brokers themselves (DescribeLogDirs)."""


def _brokers(text: str) -> tuple[int, ...]:
    placeholders = [str(ALL_MAPPED), str(ALL_REGISTERED)]
    try:
        return tuple(int(item) if item in placeholders else parse_broker_id(item) for item in split_patterns(text))
    except Invalid as error:
        raise Refused(f"has an entry that is not a broker id ({error})") from None


def _broker_ids(meaning: str) -> tuple[int, ...]:
    range = "a comma-separated list of broker ids; -1: all brokers of the map, -2: all brokers of the cluster"
    return option(_brokers, "", meaning, range, example="1001,1002")


def _names(meaning: str) -> tuple[str, ...]:
    range = "a comma-separated list of topic names or regular expressions that match whole names"
    return option(split_patterns, "", meaning, range, example="orders,payments.*")


def _bytes(default: str, meaning: str, unit: str, factor: int) -> int:
    return kinds.number(default, meaning, unit, lambda value: round(value * factor), at_most=10**9)


def _metrics_age() -> timedelta:
    return kinds.number(
        "60",
        "Largest age of metricsfetcher's sample",
        "minutes",
        lambda minutes: timedelta(minutes=float(minutes)),
        at_most=10**6,
    )


def _fraction(meaning: str) -> float | None:
    return kinds.number("0", meaning, "", lambda value: float(value) or None, at_most=1)


def _signed(meaning: str) -> int:
    def parse(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,9}", text.strip(), re.ASCII):
            raise Refused("is not an integer")
        return max(int(text), 0)

    return option(parse, "0", meaning, "an integer; 0 or less: not used")


@dataclass(frozen=True)
class ClusterOptions:
    """How to access the cluster. Each may come from the environment."""

    CLUSTER: ClassVar[str] = "Cluster"
    bootstrap_servers: tuple[str, ...] = kinds.addresses(
        "localhost:9092",
        "Kafka brokers; without an option of ZooKeeper, metrics-source is kafka",
        aliases=(KAFKA_KIT_SERVERS,),
    )
    kafka_backend: KafkaBackend = kinds.choice(
        KafkaBackend.ADMIN, "How to read topics and brokers: the Admin API or ZooKeeper", KafkaBackend
    )
    kafka_client_config: str = kinds.client_properties()
    zk_addr: tuple[str, ...] = kinds.addresses("localhost:2181", "ZooKeeper servers")
    zk_tls_ca: str = kinds.zookeeper_file("tls-ca")
    zk_tls_cert: str = kinds.zookeeper_file("tls-cert")
    zk_tls_key: str = kinds.zookeeper_file("tls-key")
    zk_digest_file: str = kinds.zookeeper_file("digest")
    zk_sasl_file: str = kinds.zookeeper_file("sasl")
    zk_prefix: str = kinds.znode("", "Kafka's chroot in ZooKeeper", "/kafka")
    zk_metrics_prefix: str = kinds.znode("topicmappr", "Parent of the znodes that metricsfetcher writes", root=True)
    metrics_source: MetricsSource = kinds.choice(
        MetricsSource.ZOOKEEPER,
        "Source of partition sizes and free storage: the znodes of metricsfetcher, or the brokers, the default with "
        "bootstrap-servers and without an option of ZooKeeper",
        MetricsSource,
    )
    cluster_file: str = kinds.file(
        "Cluster file of `topicmappr export`; nothing else is read then", "cluster.json", "a readable JSON file"
    )
    ignore_warns: bool = kinds.boolean("Write the map despite warnings, except lost replicas and shared racks")


@dataclass(frozen=True)
class DatadogOptions(ClusterOptions):
    """How to call Datadog. Each may come from the environment."""

    DATADOG: ClassVar[str] = "Datadog"
    api_key: str = kinds.text("", "Datadog API key", example="the key", secret=True)
    app_key: str = kinds.text("", "Datadog application key", example="the key", secret=True)
    datadog_url: str = kinds.url("https://api.datadoghq.com", "Datadog server")
    broker_id_tag: str = kinds.tag("broker_id", "Datadog tag with the broker id")


IN_ENVIRONMENT = tuple(declared_options(DatadogOptions))
"""Names of the options that may come from the environment."""

DATADOG_VARIABLES = frozenset(
    option.variable
    for name, option in declared_options(DatadogOptions, PREFIX).items()
    if name not in declared_options(ClusterOptions)
)
"""Environment variables of `tag` alone."""


@dataclass(frozen=True)
class OutputOptions(ClusterOptions):
    """What every planning command prints, writes and executes."""

    OUTPUT: ClassVar[str] = "Output"
    out_path: str = kinds.text(
        "", "Directory of the map files; the current one if empty", "a directory", example="maps"
    )
    out_file: str = kinds.text("", "Name of a file with the maps of all topics", "a file name", example="combined")
    json: bool = kinds.boolean("Print the plan and its changes as JSON instead of text")
    explain: bool = kinds.boolean("Also print why each replica goes where it goes")

    EXECUTION: ClassVar[str] = "Execution"
    execute: bool = kinds.boolean("Submit the map under throttle through autothrottle's admin service")
    dry_run: bool = kinds.boolean("With execute: only validate; write no file and submit nothing")
    allow_fewer_replicas: bool = kinds.boolean(
        "With execute: accept that partitions get fewer replicas than now; --replication of rebuild implies it"
    )
    allow_cordoned: bool = kinds.boolean("With execute: accept replicas on cordoned brokers")
    allow_full: bool = kinds.boolean("With execute: accept that brokers get more bytes than they have free")
    skip_refused: bool = kinds.boolean("With execute: leave refused partitions out, and submit the others")
    admin_addr: tuple[str, ...] = kinds.service_addresses("autothrottle's admin service", "127.0.0.1:8090")
    token_file: str = kinds.file("File with your token and nothing else", "token", "a readable file")
    tls_cert: str = kinds.file("Your certificate; turns on mutual TLS", "tls.crt", "a readable PEM file")
    tls_key: str = kinds.file("Private key of tls-cert, without a password", "tls.key", "a readable PEM file")
    tls_ca: str = kinds.file("Certificates of the servers' authorities", "ca.crt", "a readable PEM file")


@dataclass(frozen=True)
class PlanningOptions(OutputOptions):
    """The topics and brokers of a plan."""

    PLAN: ClassVar[str] = "Plan"
    topics: tuple[str, ...] = _names("Topics of the plan")
    topics_exclude: tuple[str, ...] = _names("Topics to leave out")
    brokers: tuple[int, ...] = _broker_ids("Brokers that shall hold the replicas")
    metrics_age: timedelta = _metrics_age()
    min_rack_ids: int = _signed(
        "Distinct racks that suffice for each partition; 0: all its replicas must be in different racks"
    )
    allow_fewer_racks: bool = kinds.boolean(
        "Write the map although it places replicas of a partition into one rack; WARN has the number of partitions"
    )
    optimize_leadership: bool = kinds.boolean("Even out the numbers of leaders by reordering replicas")


@dataclass(frozen=True)
class RebuildCommandOptions(PlanningOptions):
    """Options of `topicmappr rebuild`."""

    REBUILD: ClassVar[str] = "Rebuild"
    map_string: str = kinds.text(
        "",
        "Partition map to change, instead of topics",
        "JSON of kafka-reassign-partitions.sh",
        example='{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1001,1002]}]}',
    )
    use_meta: bool = kinds.boolean("Read the brokers of the cluster and their racks; false: trust --brokers", "true")
    force_rebuild: bool = kinds.boolean("Place every replica anew")
    replication: int = _signed("Replication factor to set")
    sub_affinity: bool = kinds.boolean("Substitute each broker that leaves by one new broker of its rack")
    placement: Strategy = kinds.choice(Strategy.COUNT, "What the placement makes even", Strategy)
    optimize: Optimization = kinds.choice(
        Optimization.DISTRIBUTION,
        "Prefer more pairs of brokers that share partitions, more even storage, or with force-rebuild the fewest bytes",
        Optimization,
    )
    partition_size_factor: float = kinds.number(
        "1.0", "Factor of partition sizes: room for growth", "", float, above=0, at_most=1000
    )
    skip_no_ops: bool = kinds.boolean("Leave unchanged partitions out of the maps")
    phased_reassignment: bool = kinds.boolean("Write two maps; the first one keeps the current leaders")
    leader_evac_brokers: tuple[int, ...] = _broker_ids("Brokers that shall not lead leader-evac-topics")
    leader_evac_topics: tuple[str, ...] = _names("Topics that leader-evac-brokers shall not lead")
    chunk_step_size: int = _signed("Brokers per map of a plan in several maps")


@dataclass(frozen=True)
class _StorageOptions(PlanningOptions):
    STORAGE: ClassVar[str] = "Storage"
    tolerance: float | None = _fraction(
        "Distance of free storage from the mean that the plan may leave, as a fraction; 0: as even as possible"
    )
    partition_limit: int = kinds.count("0", "Largest number of relocations from one broker; 0: no limit", at_least=0)
    partition_size_threshold: int = _bytes("512", "Smaller partitions stay", "MiB", _MEBIBYTE)
    locality_scoped: bool = kinds.boolean("Keep replicas in their rack")
    verbose: bool = kinds.boolean("Same as explain")


@dataclass(frozen=True)
class RebalanceCommandOptions(_StorageOptions):
    """Options of `topicmappr rebalance`."""

    storage_threshold: float | None = _fraction(
        "Only brokers whose free storage is this fraction below the harmonic mean offload; 0: all below the mean"
    )
    storage_threshold_gb: int = _bytes("0", "Only brokers with less free storage offload", "GiB", GIBIBYTE)


@dataclass(frozen=True)
class ScaleCommandOptions(_StorageOptions):
    """Options of `topicmappr scale`."""


@dataclass(frozen=True)
class DecommissionCommandOptions(PlanningOptions):
    """Options of `topicmappr decommission`; the brokers to empty are its argument."""


@dataclass(frozen=True)
class RelieveCommandOptions(PlanningOptions):
    """Options of `topicmappr relieve`; the full broker is its argument."""

    RELIEF: ClassVar[str] = "Relief"
    to: float = kinds.percent("80", "Share of a broker's storage that may be used after the plan", at_most=100)
    sample: timedelta = kinds.seconds(
        "0", "Time in which the growth of the logs is measured; 0: all grow alike", at_least=0
    )


def _quantity(meaning: str, example: str) -> float:
    return option(
        lambda text: parse_quantity(text, per_second=True) if text else 0.0,
        "",
        meaning,
        "a rate with its unit",
        example=example,
    )


def _hours(default: str, meaning: str) -> timedelta:
    return kinds.number(default, meaning, "hours", lambda hours: timedelta(hours=float(hours)), at_most=24 * 366 * 10)


@dataclass(frozen=True)
class CapacityOptions(ClusterOptions):
    """Options of `topicmappr capacity`."""

    WORKLOAD: ClassVar[str] = "Workload"
    config: str = kinds.file(
        "TOML file with options of this command; its keys are the names of the flags",
        "workload.toml",
        "a readable file",
    )
    bytes_in: float = _quantity("Rate at which clients produce at peak, without replication", "200MB/s")
    mean_bytes_in: float = _quantity("The same on average, which fills the storage; default: bytes-in", "120MB/s")
    fan_out: float | None = kinds.number(
        "-1",
        "Bytes that consumers read for each byte produced; -1: 1, unless bytes-out is given",
        "",
        lambda value: None if value < 0 else float(value),
        at_least=-1,
        at_most=10_000,
    )
    bytes_out: float = _quantity("Rate at which consumers read at peak, instead of fan-out", "600MB/s")
    retention: timedelta = _hours("0", "Time for which records are kept")
    replication: int = kinds.number(
        "0", "Replication factor; 0: 3, or as from-cluster measures", "", int, at_most=100, whole=True
    )
    partitions: int = kinds.count("0", "Number of partitions, without replicas; 0: no limit", at_least=0)
    growth: float = kinds.percent("0", "Growth of what is produced in one month", at_most=1000)
    months: float = kinds.number("12", "Time for which the brokers shall suffice", "months", float, at_most=240)
    from_cluster: bool = kinds.boolean("Measure bytes-in, retention, replication and partitions that are not given")
    topics: tuple[str, ...] = _names("With from-cluster: topics of the workload; all if empty")
    sample: timedelta = kinds.seconds("30", "With from-cluster: time in which the growth of the logs is measured")

    BROKERS: ClassVar[str] = "Brokers"
    instances: str = kinds.file("CSV file with the instance types", "instances.csv", "a readable CSV file")
    storage_share: float = kinds.percent("80", "Share of the storage that may be used", above=0, at_most=100)
    network_share: float = kinds.percent(
        "80", "Share of each direction of the link that may be used", above=0, at_most=100
    )
    disk_share: float = kinds.percent("80", "Share of the disks' throughput that may be used", above=0, at_most=100)
    broker_partitions: int = kinds.count("4000", "Largest number of replicas on one broker", at_least=1)

    FAILURE: ClassVar[str] = "Failure"
    survive: Loss = kinds.choice(Loss.BROKER, "Loss after which clients are still served", Loss)
    racks: int = kinds.count("3", "Number of racks", at_least=1)
    recover_within: timedelta = _hours("4", "Time in which all replicas exist again")
    recover_onto: CopyTarget = kinds.choice(
        CopyTarget.REPLACEMENT, "Brokers that receive the lost replicas: new ones, or those that are left", CopyTarget
    )
    max_rate: float = kinds.percent(
        "90", "Share of the headroom for replication, as in autothrottle", above=0, at_most=100
    )
    json: bool = kinds.boolean("Print JSON instead of text")


def _cluster_name() -> str:
    return kinds.text("kafka", "Name of the cluster in the history", example="main")


@dataclass(frozen=True)
class ApplyOptions(OutputOptions):
    """Options of `topicmappr apply`; the pools file is its argument."""

    POOLS: ClassVar[str] = "Pools"
    check: bool = kinds.boolean("Change and write nothing; exit status 3: the cluster is not as the file says")
    repair_lost: bool = kinds.boolean("Also move the replicas of brokers that are not in the cluster")
    allow_fewer_racks: bool = kinds.boolean("Place replicas of a partition into one rack where racks do not suffice")
    metrics_age: timedelta = _metrics_age()


@dataclass(frozen=True)
class PoolsOptions(ClusterOptions):
    """Options of `topicmappr pools`; what to do is its argument."""

    POOLS: ClassVar[str] = "Pools"
    pools: str = kinds.text("pools.toml", "Pools file", "a TOML file", example="pools.toml")
    sample: timedelta = kinds.seconds("0", "Time in which the growth of the logs is measured; 0: it is not", at_least=0)
    history: str = kinds.text(
        "", "status: also print the peaks of the last day in this history", "a directory", example="history"
    )
    cluster_name: str = _cluster_name()
    new_pools: int = kinds.count("0", "pack: brokers of each pool to add until the limits hold; 0: none", at_least=0)
    json: bool = kinds.boolean("Print JSON instead of text")

    NEW_TOPICS: ClassVar[str] = "New topics (fit)"
    bytes_in: float = _quantity("Rate at which clients will produce to each topic, at peak", "20MB/s")
    retention: timedelta = _hours("0", "Time for which its records are kept")
    replication: int = kinds.number("3", "Its replication factor", "", int, at_least=1, at_most=100, whole=True)
    fan_out: float = kinds.number("1", "Bytes that consumers read for each byte produced", "", float, at_most=10_000)


def _history() -> str:
    return kinds.text("", "Directory of the history of metricsfetcher", "a directory", example="history")


@dataclass(frozen=True)
class ForecastOptions(ClusterOptions):
    """Options of `topicmappr forecast`."""

    FORECAST: ClassVar[str] = "Forecast"
    history: str = _history()
    cluster_name: str = _cluster_name()
    pools: str = kinds.text(
        "", "Pools file; its pools have forecasts, too, and the cluster is read", "a TOML file", example="pools.toml"
    )
    storage_share: float = kinds.percent("80", "Share of a broker's storage that may be used", above=0, at_most=100)
    prom_file: str = kinds.text(
        "", "Also write metrics for node_exporter's textfile collector", "a file", example="autothrottle.prom"
    )
    json: bool = kinds.boolean("Print JSON instead of text")


@dataclass(frozen=True)
class TagOptions(DatadogOptions):
    """Options of `topicmappr tag`."""

    TAGS: ClassVar[str] = "Tags"
    datadog: bool = kinds.boolean("Write the tags to Datadog")
    pools: str = kinds.text("", "Pools file; without it, only topics are tags", "a TOML file", example="pools.toml")
    host_tags: tuple[str, ...] = kinds.tags("Tags of the hosts of this cluster, if others have the same broker ids")
    most_topics: int = kinds.count("50", "Topics with a tag on each host: those with the most bytes", at_least=0)
    dry_run: bool = kinds.boolean("Print the changes and write nothing")
    json: bool = kinds.boolean("Print JSON instead of text")


def cluster_defaults(given: Mapping[str, Given]) -> Mapping[str, str]:
    """Return the defaults of a command that depend on its given options."""
    return {"metrics-source": MetricsSource.KAFKA} if is_kafka_alone(given) else {}


COMMAND_OPTIONS: Mapping[str, type[ClusterOptions]] = {
    "rebuild": RebuildCommandOptions,
    "rebalance": RebalanceCommandOptions,
    "scale": ScaleCommandOptions,
    "decommission": DecommissionCommandOptions,
    "relieve": RelieveCommandOptions,
    "uncordon": ClusterOptions,
    "export": ClusterOptions,
    "apply": ApplyOptions,
    "pools": PoolsOptions,
    "capacity": CapacityOptions,
    "forecast": ForecastOptions,
    "tag": TagOptions,
}
"""Command -> its options."""


class FetchSource(StrEnum):
    """Where metricsfetcher reads metrics."""

    DATADOG = "datadog"
    PROMETHEUS = "prometheus"
    KAFKA = "kafka"
    """The brokers themselves (DescribeLogDirs); no metrics system is needed."""


@dataclass(frozen=True)
class FetcherOptions:
    """Options of metricsfetcher."""

    SOURCE: ClassVar[str] = "Source"
    source: FetchSource = kinds.choice(
        FetchSource.DATADOG,
        "Source of the metrics. Without it: datadog with its keys, prometheus with prometheus-url, else kafka with "
        "bootstrap-servers",
        FetchSource,
    )
    api_key: str = kinds.text("", "Datadog API key", example="the key", secret=True)
    app_key: str = kinds.text("", "Datadog application key", example="the key", secret=True)
    datadog_url: str = kinds.url("https://api.datadoghq.com", "Datadog server")
    broker_storage_query: str = kinds.text(
        "avg:system.disk.free{service:kafka,device:/data}", "Datadog query for free storage; broker-id-tag groups it"
    )
    broker_id_tag: str = kinds.tag("broker_id", "Datadog tag with the broker id")
    partition_size_query: str = kinds.text(
        "max:kafka.log.partition.size{service:kafka} by {topic,partition}", "Datadog query for partition sizes"
    )
    span: timedelta = kinds.seconds("3600", "Length of the rollup of partition sizes", whole=True, at_most=30 * 86_400)
    prometheus_url: str = kinds.url("", "Prometheus server", "http://prometheus:9090")
    prometheus_storage_query: str = kinds.text(
        FREE_STORAGE_QUERY, "PromQL for free storage; values of a broker's devices are added up"
    )
    prometheus_size_query: str = kinds.text(PARTITION_SIZE_QUERY, "PromQL for partition sizes, by topic and partition")
    prometheus_ca: str = kinds.file(
        "Certificates of the authorities of Prometheus; those of the system if empty", "ca.crt", "a readable PEM file"
    )
    prometheus_token_file: str = kinds.file("File with a bearer token for Prometheus", "token", "a readable file")
    prometheus_user_file: str = kinds.file(
        "File with USER:PASSWORD for Prometheus", "prometheus-user", "a readable file"
    )
    prometheus_headers_file: str = kinds.file(
        "File with further headers for Prometheus, NAME: VALUE in each line", "prometheus-headers", "a readable file"
    )
    broker_label: BrokerLabel | None = kinds.broker_label("from the host if empty")
    broker_map: Mapping[str, int] = kinds.broker_map()
    bootstrap_servers: tuple[str, ...] = kinds.addresses(
        "localhost:9092",
        "Kafka brokers; for prometheus only without broker-label and broker-map. Without an option of ZooKeeper, the "
        "sample is only in the history",
        aliases=(KAFKA_KIT_SERVERS,),
    )
    kafka_client_config: str = kinds.client_properties()

    DESTINATION: ClassVar[str] = "Destination"
    zk_addr: tuple[str, ...] = kinds.addresses("localhost:2181", "ZooKeeper servers")
    zk_tls_ca: str = kinds.zookeeper_file("tls-ca")
    zk_tls_cert: str = kinds.zookeeper_file("tls-cert")
    zk_tls_key: str = kinds.zookeeper_file("tls-key")
    zk_digest_file: str = kinds.zookeeper_file("digest")
    zk_sasl_file: str = kinds.zookeeper_file("sasl")
    zk_prefix: str = kinds.znode("topicmappr", "Parent of the znodes", root=True)
    compression: bool = kinds.boolean("Compress the znodes with gzip", "true")
    accept_smaller: bool = kinds.boolean("Replace a stored sample that has more brokers or many more partitions")
    verbose: bool = kinds.boolean("Also print every series that is skipped")
    dry_run: bool = kinds.boolean("Fetch and check the metrics; write nothing")
    history: str = kinds.text(
        "", "Directory to which the sample is appended, for forecasts", "a directory", example="history"
    )
    cluster_name: str = _cluster_name()
    rate_sample: timedelta = kinds.seconds(
        "0", "With history and source kafka: time in which the growth of logs is measured; 0: it is not", at_least=0
    )
    zookeeper: bool = kinds.boolean(
        "Store the sample in ZooKeeper; false: only in the history, the default with bootstrap-servers and without an "
        "option of ZooKeeper",
        "true",
    )
    version: bool = kinds.boolean("Print the version and exit")


def fetcher_defaults(given: Mapping[str, Given]) -> Mapping[str, str]:
    """Return the defaults of metricsfetcher that depend on the given options."""
    defaults = {"zookeeper": "false"} if is_kafka_alone(given) else {}
    if given.keys() & {"api-key", "app-key"}:
        return defaults
    if "prometheus-url" in given:
        return {**defaults, "source": FetchSource.PROMETHEUS}
    return {**defaults, "source": FetchSource.KAFKA} if "bootstrap-servers" in given else defaults


FETCHER_PREFIX = "METRICSFETCHER_"
"""Prefix of metricsfetcher's environment variables."""
