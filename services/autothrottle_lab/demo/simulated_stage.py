"""The demo's stage with simulated brokers, which use a real ZooKeeper and feed a Datadog emulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack

from autothrottle.adapters.zookeeper.codec import parse_config
from autothrottle.adapters.zookeeper.paths import KafkaPaths
from autothrottle.core.cluster.configs import THROTTLED_TYPES, ConfigResource
from autothrottle_lab.demo.scenario import DEMO_NEW_BROKER, demo_cluster, demo_scenario
from autothrottle_lab.demo.stage import UNMEASURED, Interruption, Reading, Report, Stage, size
from autothrottle_lab.emulators.broker_endpoints import ClusterEndpoints
from autothrottle_lab.emulators.kafka import SimulatedKafka
from autothrottle_lab.observation.observer import Configs, read_timeline
from autothrottle_lab.simulate.recording import bound
from autothrottle_lab.simulation.cluster import Cluster

GOALS = {
    "recovery / shortest": ("recovery_over_ideal", 1.25, ""),
    "  deferred share": ("deferred_percent", 0.5, " %"),
    "first throttle after": ("first_throttle_seconds", 1.0, " s"),
}

_KAFKA = KafkaPaths()
_PAST_SECONDS = 60.0
"""History that Datadog has at the start, so that the first metrics window is full."""


class SimulatedStage(Stage):
    """A stage with the brokers of `demo_scenario`, their clients and Datadog in the demo's own process."""

    opening = "starting ZooKeeper, 6 simulated brokers, a Datadog emulator, 2 planners and the other services"
    run_seconds = 110.0  # the reassignment alone takes at least 46 s

    def __init__(self, interruption: Interruption, stack: ExitStack, options: Mapping[str, str]) -> None:
        super().__init__(interruption, stack, options)
        self._scenario = demo_scenario()
        self._cluster = demo_cluster(self._scenario)
        self.targets = self._scenario.targets
        self.total_bytes = round(sum(reassignment.size for reassignment in self._scenario.reassignments))

    def build(self, say: Callable[[str], None]) -> None:
        self.start_zookeeper()
        datadog = self.start_datadog(self._cluster.brokers)
        connect = self.zookeeper.connect
        kafka = SimulatedKafka(connect, self._cluster, on_sample=datadog.record, past_seconds=_PAST_SECONDS)
        self._kafka = self.stack.enter_context(kafka)
        endpoints = self.stack.enter_context(ClusterEndpoints(kafka.inspect, self._cluster.brokers))
        bootstrap_servers = ",".join(endpoints.bootstrap_servers)
        self.start_services(datadog.url, {**self.options, "bootstrap-servers": bootstrap_servers})

    def record_start(self) -> None:
        self._at_start = self._kafka.inspect(client_bytes)

    def record_end(self) -> None:
        self._at_end = self._kafka.inspect(client_bytes)

    def set_client_load(self, factor: int) -> None:
        """Do nothing: the scenario's script changes the client load."""

    def reading(self) -> tuple[Reading, int]:
        def of_new_broker(cluster: Cluster) -> tuple[Reading, int]:
            side = cluster.brokers[DEMO_NEW_BROKER].inbound
            return (cluster.now, side.client_carried, side.replication), cluster.bytes_left()

        return self._kafka.inspect(of_new_broker)

    def is_reassigning(self) -> bool:
        return bool(self._kafka.inspect(Cluster.moving))

    def configs(self) -> Configs:
        resources = [
            ConfigResource(f"{kind.value}/{name}")
            for kind in THROTTLED_TYPES
            for name in sorted(self.client.get_children(f"{_KAFKA.configs}/{kind.value}"))
        ]
        return {str(resource): parse_config(self.client.get(_KAFKA.config(resource))[0]) for resource in resources}

    def report(self, cycles: int) -> Report:
        offered, deferred = (round(end - start) for start, end in zip(self._at_start, self._at_end, strict=True))
        deferred_percent = 100 * deferred / offered
        timeline = read_timeline(self.zookeeper.transactions())
        return Report(
            "Measured from ZooKeeper's transaction log and the brokers' counters:",
            timeline,
            bound(self._scenario),
            offered,
            cycles,
            [
                ("  deferred", size(deferred)),
                ("  deferred share", f"{deferred_percent:.2f} %"),
                ("  median latency", UNMEASURED),
                ("  99 % latency", UNMEASURED),
            ],
            GOALS,
            {
                "shortest possible": "the new broker uses all capacity that clients leave free",
                "client bytes": "all brokers, both directions",
                "  deferred": "delayed because the link was full",
                "  median latency": "simulated clients send no records",
            },
            {
                "kafka": None,
                "client_bytes_deferred": deferred,
                "deferred_percent": deferred_percent,
                "client_failures": None,
                "client_seconds_median": None,
                "client_seconds_99": None,
            },
            self.total_bytes,
            self.unthrottled_bytes(timeline),
        )


def client_bytes(cluster: Cluster) -> tuple[float, float]:
    """Return the bytes that clients have offered to all brokers, and the part of them that had to wait."""
    sides = list(cluster.sides())
    return sum(side.client_offered for side in sides), sum(side.client_deferred for side in sides)
