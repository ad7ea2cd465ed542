"""The ledger in a topic of Kafka beside the one in ZooKeeper, and the size of the topic."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest

from autothrottle.adapters.kafka_admin.topic_log import TopicLog
from autothrottle.adapters.kafka_admin.values import KafkaSettings
from autothrottle.adapters.kafka_state.ledger import KafkaLedger
from autothrottle.adapters.kafka_state.log import StateLog
from autothrottle.adapters.kafka_state.records import StateEdit
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper_state.ledger import ZooKeeperLedger
from autothrottle.core.cluster.configs import ConfigResource, LedgerEntry, format_replicas
from autothrottle.core.errors import Unavailable
from autothrottle.core.records import OutcomeStatus
from autothrottle.ports.state_store import Ledger
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from autothrottle_lab.servers.processes import scratch_directory
from autothrottle_lab.servers.zookeeper import ZooKeeperEnsemble
from tests.benchmarks.figures import Figures
from tests.builders import ledger_entry
from tests.system.zookeeper_tree import Tree, session

BROKERS, TOPICS, PARTITIONS = 1_000, 1_000, 100
SIZE = f"{BROKERS:,} brokers, {TOPICS * PARTITIONS:,} partitions"
RUNS = 9
BROKER_IDS = (1001, 1002, 1003)


@pytest.fixture(scope="module")
def cluster() -> Iterator[KraftCluster]:
    """Three brokers that delete old segments every few seconds, because the cycles of the benchmark have no pauses."""
    properties = {"log.retention.check.interval.ms": 5_000, "log.initial.task.delay.ms": 1_000}
    with scratch_directory() as directory, KraftCluster(directory, BROKER_IDS, broker_properties=properties) as cluster:
        yield cluster


class TopicState:
    """The state in a new topic, and its newest term."""

    def __init__(self, cluster: KraftCluster, name: str, stack: ExitStack) -> None:
        self.cluster, self.name, self.own, self._stack = cluster, name, OwnPaths(), stack
        self.log = self.new_log()
        self.ledger = KafkaLedger(self.log, self.own)
        edit = StateEdit(versions={self.own.term: 0}, texts={self.own.term: "{}"})
        self.fence = self.log.append(edit, soon()).version

    def new_log(self) -> StateLog:
        settings = KafkaSettings(tuple(self.cluster.bootstrap_servers.split(",")))
        log = StateLog(TopicLog(settings, self.name), self.name, self.own.term, 4.0)
        self._stack.callback(log.close)
        log.prepare(soon(), lambda: False)
        return log

    def disk_bytes(self) -> int:
        """Return the size of the largest replica, with the segments that wait for their deletion."""
        return max(
            sum(file.stat().st_size for file in Path(broker.logs).glob(f"{self.name}-0*/*.log*"))
            for broker in self.cluster.brokers.values()
        )


def soon() -> float:
    return time.monotonic() + 60


def seconds(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def rates(rate: int, brokers: int = BROKERS) -> Mapping[ConfigResource, LedgerEntry]:
    entry = ledger_entry(leader_replication_throttled_rate=str(rate), follower_replication_throttled_rate=str(rate))
    return {ConfigResource.broker(b): entry for b in range(1, brokers + 1)}


def lists(topics: int = TOPICS) -> Mapping[ConfigResource, LedgerEntry]:
    value = format_replicas(frozenset(f"{p}:{1 + p * 3 % BROKERS}" for p in range(PARTITIONS)))
    entry = ledger_entry(leader_replication_throttled_replicas=value, follower_replication_throttled_replicas=value)
    return {ConfigResource.topic(f"topic-{t}"): entry for t in range(topics)}


def write(ledger: Ledger, fence: int, entries: Mapping[ConfigResource, LedgerEntry]) -> None:
    outcomes = ledger.write(fence, entries, soon())
    assert {outcome.status for outcome in outcomes.values()} == {OutcomeStatus.APPLIED}


def test_ledger_writes_of_a_cycle(figures: Figures, cluster: KraftCluster) -> None:
    """The intents and the confirmations of a cycle that changes all rates, in both stores by turns."""
    with scratch_directory() as directory, ZooKeeperEnsemble(directory) as ensemble, ExitStack() as stack:
        state = TopicState(cluster, "state-writes", stack)
        tree = Tree(stack.enter_context(session(ensemble.servers[0], 60)))
        stores: dict[str, tuple[Ledger, int]] = {
            "Kafka": (state.ledger, state.fence),
            "ZooKeeper": (ZooKeeperLedger(tree.client, tree.own), tree.begin_term()),
        }
        for ledger, fence in stores.values():
            write(ledger, fence, {**rates(1), **lists()})
        samples: dict[str, list[float]] = {name: [] for name in stores}
        for run in range(RUNS):
            for name, (ledger, fence) in stores.items():
                both = [seconds(partial(write, ledger, fence, rates(2 * run + half))) for half in (2, 3)]
                samples[name].append(sum(both) * 1000)
        for name, values in samples.items():
            figures.add(f"ledger writes of a cycle, {name}", SIZE, "ms", values)


@pytest.mark.parametrize(("brokers", "topics", "cycles"), [(BROKERS, TOPICS, 1_000), (30, 100, 100_000)])
def test_size_of_the_topic_and_start(
    figures: Figures, cluster: KraftCluster, brokers: int, topics: int, cycles: int
) -> None:
    """Cycles that change all rates, with snapshots as the leader writes them; then a start with the fullest topic.

    100,000 cycles of a large cluster would take hours. A small one also writes many snapshots.
    """
    size = f"{brokers:,} brokers, {topics * PARTITIONS:,} partitions"
    with ExitStack() as stack:
        state = TopicState(cluster, f"state-size-{brokers}", stack)
        write(state.ledger, state.fence, {**rates(1, brokers), **lists(topics)})
        largest, snapshots = 0, 0
        starts: list[float] = []
        for cycle in range(cycles):
            write(state.ledger, state.fence, rates(cycle, brokers))
            largest = max(largest, state.disk_bytes())
            if state.log.is_snapshot_due:
                if len(starts) < RUNS:
                    starts.append(seconds(state.new_log) * 1000)
                with suppress(Unavailable):  # a leader tries again after its next heartbeat, too
                    state.log.write_snapshot()
                    snapshots += 1
        assert snapshots > 1
        figures.add(f"size of the state topic, largest in {cycles:,} cycles", size, "MB", [largest / 1e6])
        figures.add("start with a full state topic", size, "ms", starts)
