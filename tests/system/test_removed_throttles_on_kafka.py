"""Other parties remove or change throttles in mid-move on real Kafka: they are back within seconds, at any interval."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from autothrottle.v1 import admin_pb2, admin_pb2_grpc
from autothrottle_lab.observation.traffic import fill
from autothrottle_lab.servers.kafka import KafkaCluster
from autothrottle_lab.servers.processes import Process
from tests.builders import eventually
from tests.server_fixtures import repeat_on_kraft
from tests.system.recovery_watch import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    RecoveryWatch,
    Sample,
    admin_channel,
    state_options,
)
from tests.system.test_throttlectl import address_of
from tests.system.test_throttles_of_others_on_kafka import state_of

pytestmark = pytest.mark.measures

MB = 1_000_000
INTERVAL = 180
"""The default: no scheduled cycle runs during a test."""
DESTINATION = 1005
RATE = MB
"""Throttle of the move, bytes/s."""
SLOW = {LEADER_RATE: str(RATE), FOLLOWER_RATE: str(RATE)}
"""Kafka's `<default>` throttles: without a broker's own rate they apply, so that the move does not end at once."""
WITHIN_SECONDS = 5.0
"""An edit is noticed within 2 s; the rest is tolerance for a busy machine."""


@dataclass(slots=True)
class Move:
    """A throttled move whose throttles another party edits."""

    cluster: KafkaCluster
    topic: str
    watch: RecoveryWatch
    process: Process

    def seconds_until_restored(self, edit: Callable[[], None], is_edited: Callable[[Sample], bool]) -> float:
        """Return the time from an edit until it is reported, and undone in a sample.

        The samples may miss the edit: it is undone within 0.2 s.
        """
        reports, edited = self._reports(), time.monotonic()
        edit()
        eventually(lambda: self._reports() > reports, 30)
        restored = self.watch.wait_until(lambda sample: not is_edited(sample), 30, "the edit is undone")
        assert restored.moving, "the move has not ended"
        return restored.at - edited

    def _reports(self) -> int:
        return self.process.log.read_text().count(": another party ")

    def clear_all_rates(self) -> None:
        """Remove the rates of all brokers, as kafka-reassign-partitions does with --cancel."""
        for broker_id in self.cluster.brokers:
            self.cluster.set_configs_as_a_user({LEADER_RATE: None, FOLLOWER_RATE: None}, broker_id=broker_id)


@contextmanager
def moving(cluster: KafkaCluster, directory: Path, megabytes: int) -> Iterator[Move]:
    """Throttle a move of two partitions to 1 MB/s, and end it fast afterwards."""
    topic = f"edited-{megabytes}"
    cluster.create_topic(topic, {p: [1001 + p] for p in range(2)})
    fill(cluster, topic, megabytes * MB // 2)
    before = cluster.stored_configs()
    with ExitStack() as stack:
        options = {
            **stack.enter_context(state_options(cluster)),
            **{"metrics-source": "kafka", "capacity": "20", "interval": str(INTERVAL), "session-timeout": "6"},
            **{"api-listen": "127.0.0.1:0", "grpc-listen": "127.0.0.1:0"},
        }
        command = [sys.executable, "-m", "autothrottle", "run", *(f"--{k}={v}" for k, v in options.items())]
        process = stack.enter_context(Process("run", command, directory / "run.log"))
        eventually(lambda: state_of(process) is not None, 60)
        cluster.set_configs_as_a_user(dict(SLOW), default=True)
        admin = admin_pb2_grpc.AdminServiceStub(stack.enter_context(admin_channel(address_of(process))))
        request = admin_pb2.SubmitReassignmentRequest(throttle_bytes_per_second=RATE)
        for partition in range(2):
            request.partitions.add(topic=topic, partition=partition, replicas=[DESTINATION])
        watch = stack.enter_context(RecoveryWatch(cluster, topic, every_seconds=0.05))
        assert admin.SubmitReassignment(request, timeout=60).submitted == 2
        watch.wait_until(lambda s: len(s.moving) == 2 and s.lists == s.expected and len(s.rates) >= 3, 30, "throttled")
        try:
            yield Move(cluster, topic, watch, process)
        finally:
            cluster.set_configs_as_a_user(dict.fromkeys(SLOW), default=True)
            fast = admin_pb2.Override(rate_bytes_per_second=500 * MB, autoremove=True, beyond_capacity=True)
            admin.SetOverride(admin_pb2.SetOverrideRequest(override=fast), timeout=60)
            watch.wait_until(lambda s: not s.moving and not s.rates and not any(s.lists), 120, "all is cleaned up")
    after = cluster.stored_configs()
    assert {name: keys for name, keys in after.items() if keys} == {n: keys for n, keys in before.items() if keys}
    cluster.delete_topic(topic)


@repeat_on_kraft
@pytest.mark.timeout(600)
def test_removed_and_changed_throttles_are_back_within_seconds(each_cluster: KafkaCluster, tmp_path: Path) -> None:
    """Only the next scheduled cycle restored them: 214 MB were copied at a throttle of 3.6 MB/s.

    The edits are those of Strimzi's Topic Operator, Cruise Control and Kafka's own tool.
    """
    with moving(each_cluster, tmp_path, 36) as move:
        took = {name: move.seconds_until_restored(*edit) for name, edit in edits_of(move).items()}
    print("\n" + ", ".join(f"{name}: {seconds:.2f} s" for name, seconds in took.items()))
    assert max(took.values()) <= WITHIN_SECONDS


Edit = tuple[Callable[[], None], Callable[[Sample], bool]]
"""(edits throttles, whether a sample shows the edit)."""


def edits_of(move: Move) -> dict[str, Edit]:
    """Return the edits to try, by name."""
    user, follower = move.cluster.set_configs_as_a_user, (DESTINATION, FOLLOWER_RATE)
    return {
        "follower list removed": (
            partial(user, {FOLLOWER_REPLICAS: None}, topic=move.topic),
            lambda s: not s.lists[1],
        ),
        "leader list emptied to one entry": (
            partial(user, {LEADER_REPLICAS: "0:1001"}, topic=move.topic),
            lambda s: len(s.lists[0]) < 2,
        ),
        "rate removed": (
            partial(user, {FOLLOWER_RATE: None}, broker_id=DESTINATION),
            lambda s: follower not in s.rates,
        ),
        "rates of all brokers removed": (
            move.clear_all_rates,
            lambda s: len(s.rates) < 3,
        ),
        "rate changed": (
            partial(user, {LEADER_RATE: str(2 * RATE)}, broker_id=1001),
            lambda s: s.rates.get((1001, LEADER_RATE)) == 2 * RATE,
        ),
    }


@pytest.mark.repeat
@pytest.mark.timeout(600)
def test_a_party_that_goes_on_is_undone_every_ten_seconds_and_named_with_its_rhythm(
    each_cluster: KafkaCluster, tmp_path: Path
) -> None:
    """Each restoration was an event, three lines of the log and a write, as often as the party removed the list."""
    seconds, ending, removals = 45, threading.Event(), list[float]()
    with moving(each_cluster, tmp_path, 200) as move:

        def remove() -> None:
            while not ending.wait(0.5):
                if each_cluster.stored_configs().get(f"topics/{move.topic}", {}).get(FOLLOWER_REPLICAS):
                    removals.append(time.monotonic())
                    each_cluster.set_configs_as_a_user({FOLLOWER_REPLICAS: None}, topic=move.topic)

        before = len(move.process.log.read_text().splitlines())
        party = threading.Thread(target=remove)
        party.start()
        try:
            time.sleep(seconds)
            state = state_of(move.process)
        finally:
            ending.set()
            party.join()
        lines = move.process.log.read_text().splitlines()[before:]
        move.watch.wait_until(lambda s: s.lists == s.expected, 15, "the list is back after the party has stopped")
    print(f"\n{len(removals)} removals in {seconds} s, {len(lines)} lines:", *lines, sep="\n")
    assert 5 <= len(removals) <= 3 + seconds / 10 + 1
    assert len(lines) <= 6
    assert state is not None and state.last_cycle is not None
    (finding,) = [text for text in state.last_cycle.findings if "another program" in text]
    assert finding.startswith(f"another program removes the throttled replica lists of topic {move.topic} every few ")
