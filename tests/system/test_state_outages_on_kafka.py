"""Our state in Kafka during long outages and under client quotas, on brokers of its own."""

from __future__ import annotations

import os
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.topic_log import TopicLog
from autothrottle.adapters.kafka_admin.values import KafkaSettings
from autothrottle.adapters.kafka_state.topic import LostTail
from autothrottle.core.errors import Unavailable
from autothrottle.core.quotas.keys import DEFAULT, ClientQuotaEntity, QuotaKey
from autothrottle_client import AdminClient, AutothrottleError
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from autothrottle_lab.servers.processes import Process, run_command, scratch_directory
from tests.builders import eventually
from tests.examples import examples
from tests.system.test_state_in_kafka import DESTINATION, SECONDS, Reassignment, Replicas
from tests.system.version_matrix import SMALL_FETCHES

OUTAGE_SECONDS = examples(30, 60)
DESCRIPTORS = 1024
MOST_LOG_LINES = 40
"""Of a process in an outage of a minute: what became unreachable, and each failed cycle, whose waits double."""
RETURN_SECONDS = 10.0
LOW_RATE = 1_024.0
"""Bytes/s."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[KraftCluster]:
    with scratch_directory() as directory, KraftCluster(directory, broker_properties=SMALL_FETCHES) as cluster:
        yield cluster


def usage(process: Process) -> tuple[int, int]:
    """Return the numbers of descriptors and of threads of a process."""
    return len(os.listdir(f"/proc/{process.pid}/fd")), len(os.listdir(f"/proc/{process.pid}/task"))


def log_lines(process: Process) -> int:
    return len(process.log.read_text("utf-8").splitlines())


@pytest.mark.measures
def test_outage_of_all_brokers_uses_up_nothing_and_work_goes_on_after_it(cluster: KraftCluster, tmp_path: Path) -> None:
    """Each refused connection left an open socket. After 28 s at a limit of 1,024 descriptors no API answered.

    The process did not recover when the brokers returned, and wrote 10,000 log lines a minute.
    """
    with Replicas(cluster, tmp_path, "state-in-an-outage") as replicas:
        process = replicas.launch()
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        replicas.add(process)
        eventually(lambda: replicas.state() is not None, SECONDS)
        with Reassignment(cluster, replicas) as move:
            replicas.throttlectl("set", "0.5MB/s")
            before, lines = usage(process), log_lines(process)
            for broker in cluster.brokers.values():
                broker.kill()
            most = before
            for _ in range(OUTAGE_SECONDS):
                time.sleep(1)
                most = max(most[0], usage(process)[0]), max(most[1], usage(process)[1])
            lines = log_lines(process) - lines
            for broker in cluster.brokers.values():
                broker.start()
            for broker_id in cluster.brokers:
                cluster._wait_until_serving(broker_id, SECONDS)
            returned = time.monotonic()
            eventually(lambda: is_submitted(replicas, move.name), SECONDS)
            eventually(move.is_throttled, SECONDS)
            seconds = time.monotonic() - returned
            print(f"\ndescriptors and threads {before}, at most {most}; {lines} lines; throttled {seconds:.1f} s later")
            assert most[0] <= before[0] + 5 and most[1] <= before[1] + 10
            assert lines <= MOST_LOG_LINES
            assert seconds <= RETURN_SECONDS
            move.finish()


def is_submitted(replicas: Replicas, topic: str) -> bool:
    """Submit the reassignment of a topic; return whether Kafka accepted it."""
    targets = {(topic, p): (1001 + p % 2, DESTINATION) for p in range(4)}
    try:
        with AdminClient(list(replicas.processes)) as admin:
            answer = admin.submit_reassignment(targets)
    except AutothrottleError:
        return False
    return len(targets) == answer.submitted + answer.already_in_progress


@pytest.fixture
def low_quotas(cluster: KraftCluster) -> Iterator[KafkaAdmin]:
    """Low rates for all users and for all client ids."""
    entities = [ClientQuotaEntity(user=DEFAULT), ClientQuotaEntity(client_id=DEFAULT)]
    keys = [QuotaKey.CONSUMER_BYTE_RATE, QuotaKey.PRODUCER_BYTE_RATE]
    with closing(KafkaAdmin(KafkaSettings(tuple(cluster.bootstrap_servers.split(","))))) as admin:
        for entity in entities:
            admin.alter_client_quotas(entity, dict.fromkeys(keys, LOW_RATE))
        eventually(lambda: len(admin.client_quotas()) == len(entities))
        yield admin
        for entity in admin.client_quotas():
            admin.alter_client_quotas(entity, dict.fromkeys(keys, None))


@pytest.mark.repeat
def test_exceeded_client_quotas_delay_the_state_and_are_named(
    cluster: KraftCluster, low_quotas: KafkaAdmin, tmp_path: Path
) -> None:
    """A fetch beyond a quota has no partition in its answer. It ended the term, and a restart was not up after 60 s."""
    with Replicas(cluster, tmp_path, "state-under-quotas") as replicas:
        replicas.start()
        finding = "default user limits this client to producer_byte_rate=1024, consumer_byte_rate=1024"
        eventually(lambda: any(finding in line for line in findings(replicas)), SECONDS)
        assert "set to 5MB/s" in replicas.throttlectl("set", "5MB/s")
        command = [sys.executable, "-m", "autothrottle", "check", *replicas.flags]
        output = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS).stdout
        (line,) = (line for line in output.splitlines() if finding.partition("limits")[2] in line)
        words = shlex.split(line.partition(" Fix: ")[2])
        assert words[0] == "kafka-configs.sh"
        java = [*cluster.brokers[1001].command, "kafka.admin.ConfigCommand", *words[1:]]
        status, text = run_command(java, SECONDS)
        assert status == 0, text
        exempted = ClientQuotaEntity(DEFAULT, "autothrottle")
        eventually(lambda: low_quotas.client_quotas().get(exempted, {}).get(QuotaKey.CONSUMER_BYTE_RATE, 0) > LOW_RATE)


def findings(replicas: Replicas) -> list[str]:
    state = replicas.state()
    return [] if state is None or state.last_cycle is None else list(state.last_cycle.findings)


@pytest.mark.repeat
@pytest.mark.parametrize("grows_again", [False, True], ids=["short", "grown again"])
def test_log_that_lost_its_tail_is_noticed_after_the_restart_of_its_broker(
    cluster: KraftCluster, grows_again: bool
) -> None:
    """A reader whose position was beyond the end never read again, and one in a log that grew again missed records."""
    name, broker = f"lost-tail-{grows_again}", cluster.brokers[1003]
    cluster.create_topic(name, {0: [1003]})
    with closing(TopicLog(KafkaSettings(tuple(cluster.bootstrap_servers.split(","))), name)) as log:
        topic_id, _ = log.locate(soon())
        log.append([b"a"], soon())
        segment = broker.logs / f"{name}-0" / f"{0:020}.log"
        size = segment.stat().st_size
        log.append([b"b", b"c"], soon())
        last = log.read(topic_id, 0, -1, 1.0, soon()).records[-1]
        broker.kill()
        os.truncate(segment, size)
        for checkpoint in broker.logs.glob("*-checkpoint"):
            checkpoint.unlink()
        cluster.start_broker(1003)
        eventually(lambda: is_located(log))
        if grows_again:
            log.append([b"d"] * 9, soon())
        with pytest.raises(LostTail):
            log.read(topic_id, last.offset + 1, last.epoch, 0.5, soon())
        assert [record.value for record in log.read(topic_id, 0, -1, 0.5, soon()).records][:2] != [b"a", b"b"]


def soon() -> float:
    return time.monotonic() + 20.0


def is_located(log: TopicLog) -> bool:
    try:
        log.locate(soon())
    except Unavailable:
        return False
    return True
