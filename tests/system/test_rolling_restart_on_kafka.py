"""A rolling restart of the chart's replicas during a recovery on real Kafka 4."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from autothrottle.adapters.decision_log.files import LoggedDecisions
from autothrottle.composition.cluster import new_state
from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.runtime.configuration import StateStore
from autothrottle.runtime.configuration_reader import parse
from autothrottle.runtime.shutdown import Shutdown
from autothrottle_lab.observation.traffic import fill
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from autothrottle_lab.servers.processes import run_command
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import eventually
from tests.pages import issue_certificate
from tests.quality.deployment import NO_HELM, find_helm, render
from tests.system.chart_pods import PROGRAMS, Pod
from tests.system.recovery_watch import FOLLOWER_RATE, RecoveryWatch

pytestmark = pytest.mark.skipif(find_helm() is None, reason=NO_HELM)

MB = 1_000_000
DESTINATION = 1005
STATE = "autothrottle-rolling"
"""Name of the state topic, and root of the state in ZooKeeper."""
DECISIONS = "/var/lib/autothrottle/decisions"
INTERVAL = timedelta(seconds=5)
MOST_DELAY = timedelta(seconds=2)


def values(state: Mapping[str, str], cluster: KraftCluster) -> Mapping[str, Any]:
    """The chart's values: the addresses, and a recovery that lasts for a minute."""
    scale = {"default-capacity": 6, "min-rate": 1, "metrics-window": 12, "interval": INTERVAL.seconds}
    servers = cluster.bootstrap_servers.split(",")
    return {"config": {**state, "bootstrap-servers": servers, **scale, "decisions": DECISIONS}}


def ledger_entries(flags: Sequence[str]) -> Collection[ConfigResource]:
    """Return the resources with a ledger entry, as a process with these options reads them."""
    with Shutdown() as stack:
        copy = new_state(parse(flags, {}), stack).ledger_reader().read(timedelta(seconds=10))
        return {*copy.entries, *copy.unreadable}


class Replicas:
    """Both pods, and `throttlectl` with their certificate."""

    def __init__(self, pods: tuple[Pod, ...], certificates: Path) -> None:
        self.pods, self._certificates = pods, certificates

    def throttlectl(self, *arguments: str) -> tuple[int, str]:
        files = {"cert": "tls.crt", "key": "tls.key", "ca": "ca.crt"}
        tls = [f"--tls-{name}={self._certificates / file}" for name, file in files.items()]
        addresses = ",".join(pod.grpc_address for pod in self.pods)
        options = ["--addr", addresses, "--tls-server-name", "autothrottle", "--timeout", "20", *tls]
        return run_command([str(PROGRAMS / "throttlectl"), *arguments, *options], 60)

    def leader(self) -> Pod | None:
        """Return the pod that leads; None: unknown."""
        status, output = self.throttlectl("state", "-o", "json")
        address = json.loads(output)["leader_address"] if status == 0 else ""
        return next((pod for pod in self.pods if pod.grpc_address == address), None)

    def cycles(self) -> dict[tuple[int, int], datetime]:
        """Return (term, number) -> start of all cycles in both decision logs."""
        found: dict[tuple[int, int], datetime] = {}
        for log in (LoggedDecisions(str(pod.path(DECISIONS))) for pod in self.pods):
            for reassignment in {record.reassignment_id for record in log.reassignments()}:
                found |= {(record.term, record.cycle): record.time for record in log.decisions(reassignment)}
        return found


@pytest.mark.measures
@pytest.mark.repeat
@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", StateStore)
def test_rolling_restart_delays_no_cycle_of_a_recovery_and_leaves_nothing(
    store: StateStore, zookeeper: ZooKeeperServer, kraft_cluster: KraftCluster, tmp_path: Path
) -> None:
    cluster, topic = kraft_cluster, f"moving-rolling-{store.value}"
    in_kafka = store is StateStore.KAFKA
    state = {"state-topic": STATE} if in_kafka else {"zk-addr": zookeeper.connect, "zk-config-prefix": STATE}
    flags = [f"--{name}={value}" for name, value in state.items()]
    issue_certificate(tmp_path, "autothrottle")
    secrets = {"autothrottle-tls": {name: (tmp_path / name).read_text() for name in ("tls.crt", "tls.key", "ca.crt")}}
    resources = render(values(state, cluster))
    cluster.create_topic(topic, {p: [1001 + p % 3, 1001 + (p + 1) % 3] for p in range(12)})
    fill(cluster, topic, 40 * MB, record_bytes=20_000)
    before = cluster.stored_configs()
    first, second = (Pod(resources, number, tmp_path / f"pod-{number}", secrets) for number in (0, 1))
    replicas = Replicas((first, second), tmp_path)
    with first.process, second.process:
        for pod in replicas.pods:
            pod.wait_until_ready()
        eventually(lambda: replicas.leader() is not None)
        with RecoveryWatch(cluster, topic) as watch:
            cluster.reassign_through_bootstrap({(topic, p): [1001 + p % 3, DESTINATION] for p in range(12)})
            watch.wait_until(lambda s: (DESTINATION, FOLLOWER_RATE) in s.rates and bool(s.lists[1]), 30, "throttled")
            handovers = []
            for pod in reversed(replicas.pods):  # in the order of a StatefulSet
                if replicas.leader() is pod:
                    handovers.append(datetime.now(UTC))
                pod.restart()
                assert all(pod.passes("livenessProbe") for pod in replicas.pods)
            assert watch.samples[-1].moving, "the recovery ended before the restarts"
            assert replicas.throttlectl("set", "500MB/s", "--beyond-capacity", "--autoremove")[0] == 0
            watch.wait_until(lambda s: not s.moving, 120, "the reassignment ends")
            watch.wait_until(lambda s: not s.rates and not any(s.lists), 30, "clean")
        eventually(lambda: not ledger_entries([*flags, f"--bootstrap-servers={cluster.bootstrap_servers}"]), 10)
        for pod in replicas.pods:
            pod.process.terminate()
            assert pod.process.wait(pod.grace_seconds) == 0
    if in_kafka:
        cluster.delete_topic(STATE)
    assert cluster.stored_configs() == before
    cluster.delete_topic(topic)
    assert_cycles_are_on_time(replicas.cycles(), handovers)


def assert_cycles_are_on_time(cycles: Mapping[tuple[int, int], datetime], handovers: Sequence[datetime]) -> None:
    """Check the times between consecutive cycles, and from a leader's SIGTERM to the first cycle of the next one."""
    starts = sorted(cycles.values())
    gaps = [after - before for before, after in pairwise(starts)]
    first = {term: min(at for (other, _), at in cycles.items() if other == term) for term, _ in cycles}
    waits = [min(at for at in first.values() if at > handover) - handover for handover in handovers]
    print(
        f"\n{len(starts)} cycles in {len(first)} terms; longest time between two: {max(gaps).total_seconds():.2f} s; "
        f"from SIGTERM to the next term's first cycle: {', '.join(f'{wait.total_seconds():.2f} s' for wait in waits)}"
    )
    assert len(first) >= 2 and len(waits) >= 1
    assert max(gaps) <= INTERVAL + MOST_DELAY
    assert max(waits) <= MOST_DELAY
