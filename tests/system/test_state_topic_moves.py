"""The topic of our own state is reassigned as any other topic on Kafka 4, while it holds the state."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.values import KafkaSettings
from autothrottle.core.cluster.configs import THROTTLE_KEYS
from autothrottle.topicmappr.command_line import main
from autothrottle.v1 import admin_pb2_grpc
from autothrottle_client import AdminClient, Cycle
from autothrottle_lab.observation.traffic import fill
from autothrottle_lab.servers.kafka import KafkaCluster
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from tests.builders import eventually
from tests.server_fixtures import BROKERS
from tests.system.recovery_watch import CycleRecorder, RecoveryWatch, admin_channel, submit
from tests.system.test_state_in_kafka import FAST, MB, SECONDS, Replicas, state_leader

MOST_SECONDS = 10.0
"""Longest time without a cycle."""


@pytest.fixture
def topic(kraft_cluster: KraftCluster) -> Iterator[str]:
    """The name of a state topic of its own on the shared cluster."""
    name = "moving-state"
    yield name
    kraft_cluster.delete_topic(name)


class CycleTimes(CycleRecorder):
    """Records when each cycle without an error has ended, on the monotonic clock."""

    def __init__(self, replicas: Replicas) -> None:
        super().__init__(AdminClient(list(replicas.processes), timeout=timedelta(seconds=30)))
        self.ends = [time.monotonic()]

    def record(self, cycle: Cycle, at: float) -> None:
        if not cycle.error:
            self.ends.append(at)

    def longest_gap(self) -> float:
        """Return the longest time without a cycle so far, seconds."""
        ends = [*self.ends, time.monotonic()]
        return max(end - start for start, end in pairwise(ends))


def decommission(cluster: KafkaCluster, replicas: Replicas, broker_id: int, directory: Path, topics: str) -> None:
    """Cordon a broker and move its replicas away, as an operator does; return when they have moved."""
    source = f"--bootstrap-servers={cluster.bootstrap_servers}", "--topics", topics
    execution = "--execute", f"--admin-addr={next(iter(replicas.processes))}", "--ignore-warns"
    assert main(["decommission", str(broker_id), *source, *execution, f"--out-path={directory}"]) == 0
    names = topics.split(",")
    eventually(lambda: not any(name in names for name, _ in cluster.reassigning()), SECONDS)


def uncordon(cluster: KafkaCluster, broker_id: int) -> None:
    assert main(["uncordon", str(broker_id), f"--bootstrap-servers={cluster.bootstrap_servers}"]) == 0


@contextmanager
def frozen(cluster: KafkaCluster, broker_id: int) -> Iterator[None]:
    """Let a broker copy nothing."""
    cluster.brokers[broker_id].freeze()
    try:
        yield
    finally:
        cluster.brokers[broker_id].thaw()


def start_reassignment(cluster: KafkaCluster, topic: str, replicas: list[int], but: int) -> None:
    """Start a reassignment as another tool does, through the brokers but one that is frozen."""
    servers = tuple(broker.address for broker_id, broker in cluster.brokers.items() if broker_id != but)
    with closing(KafkaAdmin(KafkaSettings(servers))) as admin:
        assert not admin.alter_reassignments({(topic, 0): replicas})
    eventually(lambda: (topic, 0) in cluster.reassigning())


def post(replicas: Replicas, path: str, body: object) -> Any:
    """Call a route of the gateway, as the page does."""
    (address,) = set(re.findall(r" Admin API: (\S+)", replicas.log()))
    request = urllib.request.Request(
        f"http://{address.removeprefix('http://')}{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=SECONDS) as response:
        return json.load(response)


def test_the_broker_that_leads_the_state_topic_is_decommissioned(
    kraft_cluster: KraftCluster, topic: str, tmp_path: Path
) -> None:
    """The plan was refused as a whole: "__autothrottle_state-0 does not exist". Discovery hid the topic from everyone.

    So its broker could not be decommissioned with autothrottle.
    """
    cluster = kraft_cluster
    with Replicas(cluster, tmp_path, topic, *FAST) as replicas:
        replicas.start()
        configs = cluster.stored_configs()[f"topics/{topic}"]
        leader = state_leader(cluster, topic)
        with CycleTimes(replicas) as cycles:
            decommission(cluster, replicas, leader, tmp_path, topic)
            state = cluster.partitions([topic])[topic, 0]
            assert leader not in state.replicas and len(state.isr) == 3
            replicas.throttlectl("set", "50MB/s", "--beyond-capacity", "--broker", str(leader))
            uncordon(cluster, leader)
            print(f"\nat most {cycles.longest_gap():.1f} s without a cycle")
            assert cycles.longest_gap() <= MOST_SECONDS
            assert replicas.log().count("Leading in term") == 1

        # The plan and the submission of the page.
        leaving = next(b for b in state.replicas if b != state_leader(cluster, topic))
        request = {"scope": {"topics": [topic], "brokers": BROKERS}, "leaving": [leaving]}
        (plan,) = post(replicas, "/v1/placement/decommission", request)["plan"]["partitions"]
        assert post(replicas, "/v1/reassignments", {"partitions": [plan]})["submitted"] == 1
        eventually(lambda: cluster.partitions([topic])[topic, 0].replicas == tuple(plan["replicas"]))
        assert plan["topic"] == topic and leaving not in plan["replicas"]

        # A reassignment that lasts is shown, and cancelled.
        joining = next(b for b in BROKERS if b not in plan["replicas"])
        with frozen(cluster, joining):
            start_reassignment(cluster, topic, [*plan["replicas"][:2], joining], but=joining)
            for command in (("reassignments",), ("top", "--once")):
                assert topic in replicas.throttlectl(*command)
            eventually(lambda: "1 topics in reassignment" in replicas.throttlectl("state"))
            assert f"Topics with ongoing reassignments: [{topic}]" in replicas.log()
            assert cluster.stored_configs()[f"topics/{topic}"] == configs, "it has no throttled list"
            cancelled = {"partitions": [{"topic": topic, "partition": 0}]}
            assert post(replicas, "/v1/reassignments/cancel", cancelled)["cancelled"] == 1
            eventually(lambda: (topic, 0) not in cluster.reassigning())
        assert {*cluster.partitions([topic])[topic, 0].replicas} == {*plan["replicas"]}

        # Two replicas are exchanged one after the other.
        file = tmp_path / "reassignment.json"
        target = [*(b for b in BROKERS if b not in plan["replicas"]), plan["replicas"][0]]
        rows = [{"topic": topic, "partition": 0, "replicas": target}]
        file.write_text(json.dumps({"version": 1, "partitions": rows}))
        assert replicas.throttlectl("reassign", str(file)).endswith("1 partitions arrived\n")
        assert cluster.partitions([topic])[topic, 0].replicas == tuple(target)
        replicas.throttlectl("remove", "--all")
        eventually(lambda: not any(c.keys() & {*THROTTLE_KEYS} for c in cluster.stored_configs().values()))
        assert cluster.stored_configs()[f"topics/{topic}"] == configs
        replicas.stop()


@pytest.mark.repeat
@pytest.mark.timeout(900)
def test_every_broker_is_decommissioned_and_returned_while_a_topic_moves(
    kraft_cluster: KraftCluster, topic: str, tmp_path: Path
) -> None:
    cluster, moving, others = kraft_cluster, "moving-beside-state", "settled-beside-state"
    cluster.create_topic(moving, {p: [1001, 1002] for p in range(4)})
    cluster.create_topic(others, {p: [BROKERS[p], BROKERS[p - 1]] for p in range(5)})
    fill(cluster, moving, 30 * MB, record_bytes=20_000)
    fill(cluster, others, MB // 2, record_bytes=20_000)
    with Replicas(cluster, tmp_path, topic, *FAST) as replicas, RecoveryWatch(cluster, moving) as watch:
        replicas.start(2)
        replicas.throttlectl("set", "0.5MB/s")
        with admin_channel(next(iter(replicas.processes))) as channel:
            submit(admin_pb2_grpc.AdminServiceStub(channel), {(moving, p): (1001, 1003) for p in range(4)})
        with CycleTimes(replicas) as cycles:
            for broker_id in BROKERS:
                decommission(cluster, replicas, broker_id, tmp_path, f"{topic},{others}")
                assert all(broker_id not in state.replicas for state in cluster.partitions([topic, others]).values())
                if broker_id not in (1001, 1002, 1003):
                    cluster.stop_broker(broker_id)
                    cluster.start_broker(broker_id)
                uncordon(cluster, broker_id)
            gap = cycles.longest_gap()
        print(f"\nat most {gap:.1f} s without a cycle")
        assert (moving, 0) in cluster.reassigning(), "the move ended early"
        assert gap <= MOST_SECONDS
        assert replicas.log().count("Leading in term") == 1
        assert watch.unthrottled_seconds() == 0
        assert not cluster.stored_configs()[f"topics/{topic}"].keys() & {*THROTTLE_KEYS}
        replicas.throttlectl("set", "500MB/s", "--beyond-capacity")
        cluster.wait_until_reassigned(SECONDS)
        replicas.throttlectl("remove", "--all")
        eventually(lambda: not any(c.keys() & {*THROTTLE_KEYS} for c in cluster.stored_configs().values()))
        replicas.stop()
    for name in (moving, others):
        cluster.delete_topic(name)
