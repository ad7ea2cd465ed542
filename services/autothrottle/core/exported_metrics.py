"""The table of the metrics that services export, and their samples. The type to know is `ExportedMetric`.

Names start with `autothrottle_` and end with the unit. `adapters.exposition` sends samples to Prometheus and over OTLP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_UNITS = {"_seconds": "s", "_bytes": "By", "_bytes_per_second": "By/s"}
"""End of a name -> unit."""


@dataclass(frozen=True, slots=True)
class ExportedMetric:
    """A metric that services export."""

    name: str
    help: str
    """Its meaning, with the service that exports it and its values if they are not a measurement."""
    labels: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Its kind in Prometheus: `counter`, which only grows, from 0 at the start of the process, or `gauge`."""
        return "counter" if self.name.endswith("_total") else "gauge"

    @property
    def unit(self) -> str:
        """Its unit in UCUM, as in OTLP: `s`, `By`, `By/s`, or `1` for numbers."""
        return next((unit for suffix, unit in _UNITS.items() if self.name.endswith(suffix)), "1")

    def sample(self, value: float, *labels: object) -> MetricSample:
        """Return a sample; `labels` are the values of the labels, in their order."""
        return MetricSample(self, value, tuple(map(str, labels)))


class MetricSample(NamedTuple):
    """The value of a metric for one set of labels. A tuple, because a large cluster has 12,000 of them."""

    metric: ExportedMetric
    value: float
    labels: tuple[str, ...]
    """Values of `metric.labels`, in their order."""


SampleSource = Callable[[], Iterable[MetricSample]]
"""Returns the current samples; it neither blocks nor raises."""

CLUSTER = "cluster"
"""Label that every metric has in addition: the value of `--cluster-name`."""


def series_of(source: SampleSource, cluster: str) -> Mapping[ExportedMetric, Sequence[tuple[dict[str, str], float]]]:
    """Return metric -> (labels, value) of each of its series now, with the label `cluster`."""
    series: dict[ExportedMetric, list[tuple[dict[str, str], float]]] = {}
    for metric, value, labels in source():
        named = {CLUSTER: cluster, **dict(zip(metric.labels, labels, strict=True))}
        series.setdefault(metric, []).append((named, float(value)))
    return series


_POOL = "pool"
"""Label: the pool of the broker; "" without --pools, and for a broker in no pool or in several."""
_BROKER = ("broker_id", _POOL)
_SIDE = ("broker_id", "role", _POOL)

# Every service.
BUILD_INFO = ExportedMetric("autothrottle_build_info", "Version of the service; always 1", ("service", "version"))
HEALTH_CHECK = ExportedMetric(
    "autothrottle_health_check_ok", "Last result of a health check of the process; 1: ok, 0: failed", ("check",)
)
LOG_DROPS = ExportedMetric(
    "autothrottle_log_lines_dropped_total",
    "Log lines of the process that were not written, because the reader of the log did not accept them",
)

# Every service with certificates or files of credentials.
CREDENTIALS_OK = ExportedMetric(
    "autothrottle_credentials_ok",
    "Whether the current file of a credential is in use; 1: yes, 0: it is faulty or cannot be read, so that its valid "
    "part or the previous content is in use; option: the option, property or variable with the file",
    ("option",),
)
CERTIFICATE_EXPIRY = ExportedMetric(
    "autothrottle_certificate_expiry_seconds",
    "Time until the first certificate in a file expires, negative after it; option: the option, property or variable "
    "with the file",
    ("option",),
)

# Every service with the state in Kafka.
STATE_DIFFERENCES = ExportedMetric(
    "autothrottle_state_differences",
    "Running processes whose state is not that of the state topic, which this process has read again to be sure",
)
STATE_LOSSES = ExportedMetric(
    "autothrottle_state_losses_total",
    "How often this process has missed records of the state topic; kind: tail (the newest ones, after an unclean "
    "election or on a restored disk), beginning (another party deleted or compacted records), or topic (the topic was "
    "deleted)",
    ("kind",),
)

# Every service with a pools file.
POOLS_FILE_OK = ExportedMetric(
    "autothrottle_pools_file_ok",
    "Whether the current file of --pools is in use; 1: yes, 0: it is faulty, and the last good one is in use",
)

# The planner.
LEADER = ExportedMetric("autothrottle_leader", "Whether this planner leads; 1: yes, 0: no")
CYCLES = ExportedMetric("autothrottle_cycles_total", "Cycles that this planner ran; result: ok or failed", ("result",))
CONFIG_WRITES = ExportedMetric(
    "autothrottle_config_writes_total",
    "Config changes by this planner, also by ramp steps; resource: brokers, topics or quotas; outcome: applied, "
    "unchanged (already in place) or refused",
    ("resource", "outcome"),
)

# The planner that leads.
TERM = ExportedMetric("autothrottle_term", "Number of the leader's term")
CYCLE_AGE = ExportedMetric(
    "autothrottle_cycle_age_seconds", "Time since a cycle ended without an error, or since the term began"
)
CYCLE_DURATION = ExportedMetric("autothrottle_cycle_duration_seconds", "Duration of the last cycle")
CYCLE_INTERVAL = ExportedMetric("autothrottle_cycle_interval_seconds", "Configured time between scheduled cycles")
PAUSED = ExportedMetric("autothrottle_paused", "Whether an operator has paused all decisions; 1: yes, 0: no")
OVERRIDES = ExportedMetric("autothrottle_overrides", "Active overrides; scope: cluster or broker", ("scope",))
FOREIGN_THROTTLES = ExportedMetric(
    "autothrottle_foreign_throttles", "Throttles that another party set, while nothing is in reassignment"
)

# The reassignments.
TOPICS = ExportedMetric("autothrottle_reassigning_topics", "Topics in reassignment")
BYTES_LEFT = ExportedMetric(
    "autothrottle_reassignment_left_bytes", "Bytes left to copy; absent: nothing is in reassignment, or unknown"
)
ETA = ExportedMetric(
    "autothrottle_reassignment_eta_seconds",
    "Time until the last byte is copied; bound: expected, or the earliest or latest that recent rates allow; absent: "
    "unknown",
    ("bound",),
)
INVALID_RESOURCES = ExportedMetric(
    "autothrottle_invalid_resources",
    "Resources that could not be read in the last cycle; all others were decided. kind: topology (topics, partitions, "
    "the list of reassignments), config (also ledger entries, and lists that no broker applies), override, catch_up, "
    "quota, yield_rule or load",
    ("kind",),
)
STALLED = ExportedMetric(
    "autothrottle_stalled_followers", "Brokers that copy nothing for three cycles although their links have room"
)
INEFFECTIVE = ExportedMetric(
    "autothrottle_ineffective_throttles",
    "Link sides that replicate above their throttle for two quota windows: the broker does not apply it",
)
CONTESTED = ExportedMetric(
    "autothrottle_contested_throttles",
    "Brokers and topics whose throttles another program edits again and again while something moves",
)

# Each broker in each of its roles in the reassignments.
THROTTLE = ExportedMetric(
    "autothrottle_throttle_bytes_per_second",
    "Throttle of the broker in this role, as Kafka has it; also of brokers that take part in no reassignment",
    _SIDE,
)
THROTTLE_TARGET = ExportedMetric(
    "autothrottle_throttle_target_bytes_per_second",
    "Rate that the last cycle decided; the throttle differs while it rises in steps, if it could not be written, and "
    "in shadow mode; absent while paused",
    _SIDE,
)
QUOTA_RATE = ExportedMetric(
    "autothrottle_throttled_replication_bytes_per_second",
    "Throttled replication as the broker's own quota measures it, with the fetches of in-sync replicas in its lists; "
    "absent: the exporter does not report it",
    _SIDE,
)
CAPACITY = ExportedMetric("autothrottle_capacity_bytes_per_second", "Capacity of the link side", _SIDE)
UTILIZATION = ExportedMetric(
    "autothrottle_utilization_bytes_per_second", "Measured traffic of the link side, clients and replication", _SIDE
)
HEADROOM = ExportedMetric(
    "autothrottle_headroom_bytes_per_second",
    "Share of the link side that the policy gives to replication, also under an override or a pause; absent: no "
    "metrics",
    _SIDE,
)
CLIENT_LOAD = ExportedMetric(
    "autothrottle_client_load_bytes_per_second",
    "Client load that the policy assumes, also under an override or a pause; absent: no metrics, or the policy static",
    _SIDE,
)
PRODUCE_RATE = ExportedMetric(
    "autothrottle_produce_bytes_per_second",
    "Produce rate to the partitions in reassignment; a throttle below it never lets the reassignment end",
    _SIDE,
)
METRICS_AGE = ExportedMetric(
    "autothrottle_metrics_age_seconds", "Age of the newest load metrics of the broker", _BROKER
)
METRICS_FAILURES = ExportedMetric(
    "autothrottle_metrics_failures", "Consecutive scheduled cycles without load metrics of the broker", _BROKER
)

# The queues of every planner.
QUEUE_LENGTH = ExportedMetric(
    "autothrottle_queue_length",
    "Items that wait in a queue of a planner; queue: events or decision_log",
    ("queue",),
)
DECISION_LOG_DROPS = ExportedMetric(
    "autothrottle_decision_log_dropped_total",
    "Cycles missing in the decision log, because the disk was full or too slow",
)

# The pools, of every admin process with a history.
POOL_EXHAUSTION = ExportedMetric(
    "autothrottle_pool_exhaustion_seconds",
    "Time until the daily peak of a resource reaches the limit of the pool; resource: storage, network_in or "
    "network_out; +Inf: not within a year; absent: unknown, or fewer than 14 days are measured",
    (_POOL, "resource"),
)

# The request quotas of every process that serves the API.
_ENTITY = ("user", "client_id")
REQUEST_RATE = ExportedMetric(
    "autothrottle_request_rate",
    "Requests per second of an entity with a request quota, over the last 11 s at most; the 50 busiest entities; an "
    "empty label: the quota does not depend on it",
    _ENTITY,
)
REQUEST_THROTTLE_TIME = ExportedMetric(
    "autothrottle_request_throttle_seconds",
    "Mean delay of the responses to an entity with a request quota, over the same time; the same entities",
    _ENTITY,
)

METRICS: tuple[ExportedMetric, ...] = tuple(one for one in list(globals().values()) if isinstance(one, ExportedMetric))
"""All metrics, in the order of their declarations."""
