"""Stops, a restart, a pause and an uninstallation during a reassignment on Kafka 4, with the state in a topic."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.values import KafkaSettings
from autothrottle.core.cluster.configs import THROTTLE_KEYS
from autothrottle.core.quotas.keys import ClientQuotaEntity, QuotaKey
from autothrottle_client import AdminClient, PauseMode, PlannerClient, QuotaEntity, QuotaValues
from autothrottle_lab.observation.metadata_log import ConfigWritten
from autothrottle_lab.observation.traffic import fill
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from autothrottle_lab.servers.services import Deployment, ServiceProcesses
from tests.builders import eventually
from tests.system.recovery_watch import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    RecoveryWatch,
    Sample,
    exported_state,
    state_options,
)

MB = 1_000_000
TOPIC, OTHER = "stopped-and-started", "of-another-party"
FIRST, SECOND = 1005, 1004
"""Destinations."""
PARTITIONS, RATE = 4, 2 * MB
PATIENCE = timedelta(seconds=30)
"""Time limit of a call beside other clusters."""
SECONDS = 60.0
"""Deadline of a step on a busy machine."""
ENTITY, PRODUCER = ClientQuotaEntity(client_id="backfill"), QuotaKey.PRODUCER_BYTE_RATE
FOREIGN_RATES = {LEADER_RATE: "31000000", FOLLOWER_RATE: "32000000", "log.cleaner.threads": "2"}


class Installation:
    """The services on one cluster, and its topics."""

    def __init__(self, cluster: KraftCluster, of_cluster: Mapping[str, str], directory: Path) -> None:
        self.cluster, self._of_cluster, self._directory = cluster, of_cluster, directory
        options = {"policy": "static", "static-rate": str(RATE // MB), "interval": "2", "session-timeout": "3"}
        self._deployment = Deployment("", "", directory, {**options, **of_cluster, "metrics-source": "none"})

    def services(self) -> ServiceProcesses:
        return ServiceProcesses(self._deployment)

    def uninstall(self) -> tuple[int, str]:
        """Run `autothrottle uninstall`; return its exit status and its last line."""
        with self._deployment.process("uninstall", "uninstall", {}) as process:
            return process.wait(SECONDS), process.log_end(1)

    def state(self) -> Mapping[str, str]:
        """Return path -> text of the state that outlives the services."""
        return exported_state(self._of_cluster, self._directory)

    def producer_quota(self) -> float | None:
        """Return the quota of the backfill in Kafka."""
        with kafka_admin(self.cluster) as admin:
            return admin.client_quotas().get(ENTITY, {}).get(PRODUCER)

    def throttle_changes(self, offset: int) -> list[ConfigWritten]:
        """Return the writes of throttles after an offset of the metadata log."""
        changes = [record.change for record in self.cluster.metadata.records(offset)]
        return [c for c in changes if isinstance(c, ConfigWritten) and c.key in THROTTLE_KEYS]


def kafka_admin(cluster: KraftCluster) -> closing[KafkaAdmin]:
    return closing(KafkaAdmin(KafkaSettings(tuple(cluster.bootstrap_servers.split(",")))))


@contextmanager
def foreign_configs(cluster: KraftCluster) -> Iterator[None]:
    """Configs of another party: a quota, rates of a broker that takes part, and a list of a topic that does not."""
    with kafka_admin(cluster) as admin:
        admin.alter_client_quotas(ENTITY, {PRODUCER: 9 * MB})
    cluster.create_topic(OTHER, {0: [1004]}, {"retention.ms": "86400000"})
    cluster.set_configs_as_a_user(FOREIGN_RATES, broker_id=1001)
    cluster.set_configs_as_a_user({FOLLOWER_REPLICAS: "0:1004"}, topic=OTHER)
    try:
        yield
    finally:
        with kafka_admin(cluster) as admin:
            admin.alter_client_quotas(ENTITY, {PRODUCER: None})
        cluster.set_configs_as_a_user(dict.fromkeys(FOREIGN_RATES), broker_id=1001)
        cluster.delete_topic(OTHER)


@pytest.fixture
def installation(kraft_cluster: KraftCluster, tmp_path: Path) -> Iterator[Installation]:
    with ExitStack() as stack:
        of_cluster = stack.enter_context(state_options(kraft_cluster))
        stack.enter_context(foreign_configs(kraft_cluster))
        kraft_cluster.create_topic(TOPIC, {p: [1001 + p % 2] for p in range(PARTITIONS)})
        stack.callback(kraft_cluster.delete_topic, TOPIC)
        fill(kraft_cluster, TOPIC, 90 * MB)
        yield Installation(kraft_cluster, of_cluster, tmp_path)


def is_throttled(sample: Sample) -> bool:
    return bool(sample.moving) and is_rated(sample) and sample.lists == sample.expected


def is_rated(sample: Sample) -> bool:
    """Whether a destination has our rate."""
    return RATE in {sample.rates.get((broker_id, FOLLOWER_RATE)) for broker_id in (FIRST, SECOND)}


def wait_for_cycles(services: ServiceProcesses, count: int = 2) -> None:
    """Wait until this many cycles of one term have begun and ended."""
    with AdminClient([services.addresses["admin"]], timeout=PATIENCE) as admin:

        def last() -> tuple[int, int]:
            cycle = admin.state().last_cycle
            return (0, 0) if cycle is None else (cycle.term, cycle.number)

        term, number = last()
        eventually(lambda: (c := last())[0] > 0 and (c >= (term, number + count + 1)), SECONDS)


@pytest.mark.timeout(600)
def test_throttles_and_quotas_survive_stops_and_end_with_the_uninstallation(installation: Installation) -> None:
    cluster = installation.cluster
    configs = cluster.stored_configs()
    with RecoveryWatch(cluster, TOPIC) as watch:
        with (
            installation.services() as services,
            AdminClient([services.addresses["admin"]], timeout=PATIENCE) as admin,
        ):
            admin.submit_reassignment({(TOPIC, p): (FIRST,) for p in range(PARTITIONS)})
            watch.wait_until(is_throttled, SECONDS, "the reassignment is throttled")
            # A pause removes the throttles, and nothing of another party.
            admin.pause(PauseMode.CLEAR, "a test")
            watch.wait_until(lambda s: not any(s.lists) and not is_rated(s), SECONDS, "the throttles are removed")
            assert cluster.stored_configs() == configs
            watch.wait_until(lambda s: not s.moving, SECONDS, "the reassignment ends without throttles")
            admin.resume()
            admin.submit_reassignment({(TOPIC, p): (SECOND,) for p in range(PARTITIONS)})
            watch.wait_until(is_throttled, SECONDS, "the next reassignment is throttled")
            quota = QuotaValues(producer_byte_rate=MB)
            admin.quotas.set(QuotaEntity(client_id="backfill"), quota, until_recovered=True)
            eventually(lambda: installation.producer_quota() == MB, SECONDS)
            # The leader is killed: the next one keeps the throttles and the quota.
            with PlannerClient(services.addresses["planner-1"]) as planner:
                services.planner(planner.state().leader_address).kill()
            wait_for_cycles(services)
            assert is_throttled(watch.samples[-1])
            assert installation.producer_quota() == MB
            throttled = cluster.stored_configs()
            assert set(services.stop()) == {0}
        # After a restart, nothing is written again.
        with installation.services() as services:
            offset = cluster.metadata.last_offset()
            wait_for_cycles(services)
            assert cluster.stored_configs() == throttled
            assert installation.throttle_changes(offset) == []
            status, line = installation.uninstall()
            assert status == 1 and line.endswith("A planner is still running; stop all planners, then run this again")
            assert is_throttled(watch.samples[-1])
            with AdminClient([services.addresses["admin"]], timeout=PATIENCE) as admin:
                admin.set_override(50 * MB, broker_id=1003)
            # With a write in flight, the uninstallation would wait for a minute.
            wait_for_cycles(services)
            for process in services.processes.values():
                process.kill()
        assert {f"ledger/brokers/{SECOND}", f"ledger/topics/{TOPIC}"} < installation.state().keys()
        began = time.monotonic()
        status, line = installation.uninstall()
        print(f"\nuninstalled within {time.monotonic() - began:.1f} s: {line}")
        assert status == 0, line
        assert "overrides and the term remain in topic state-" in line
        assert watch.samples[-1].moving, "the reassignment ended before the uninstallation"
        assert cluster.stored_configs() == configs
        assert installation.producer_quota() == 9 * MB
        state = installation.state()
        assert [path for path in state if path.startswith("ledger/")] == []
        assert "override_rate/1003" in state
