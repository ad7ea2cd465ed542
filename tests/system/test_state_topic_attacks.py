"""Records of other parties in the state topic, and topics of other programs, on Kafka 4."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest

from autothrottle.adapters.kafka_admin.connections import CLIENT, kafka
from autothrottle.adapters.kafka_admin.topic_log import TopicLog
from autothrottle.adapters.kafka_admin.values import KafkaSettings
from autothrottle.adapters.kafka_state.records import CopyHeader
from autothrottle.adapters.kafka_state.topic import TopicRecord
from autothrottle.adapters.kafka_state.tree import Tree
from autothrottle.core.errors import AutothrottleError
from autothrottle.runtime.command_line import EXIT_USAGE
from autothrottle_lab.servers.kafka import KafkaCluster
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from tests.builders import eventually
from tests.system.test_state_in_kafka import FAST, SECONDS, Reassignment, Replicas

SESSION = "--session-timeout=6"
MOST_GROWTH_BYTES = 60_000_000
"""Of a process that meets a batch which would inflate to 300 MB."""
_numbers = count(1)


@pytest.fixture
def topic(kraft_cluster: KraftCluster) -> Iterator[str]:
    """The name of a state topic of its own on the shared cluster."""
    name = f"attacked-{next(_numbers)}"
    yield name
    if any(existing == name for existing, _ in kraft_cluster.partitions()):
        kraft_cluster.delete_topic(name)


def records(cluster: KafkaCluster, topic: str) -> list[TopicRecord]:
    """Return all records of a state topic."""
    with closing(TopicLog(KafkaSettings(tuple(cluster.bootstrap_servers.split(","))), topic)) as log:
        deadline = time.monotonic() + SECONDS
        topic_id, offset = log.locate(deadline)
        all_records: list[TopicRecord] = []
        while (answer := log.read(topic_id, offset, -1, 0.0, deadline)).records:
            all_records += answer.records
            offset = answer.next_offset
    return all_records


def append(cluster: KafkaCluster, topic: str, values: Sequence[bytes], codec: str | None = None) -> None:
    """Append records, as a client with Write alone can."""
    producer = kafka.KafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, compression_type=codec, max_request_size=400_000_000, **CLIENT
    )
    with closing(producer):
        for future in [producer.send(topic, value, partition=0) for value in values]:
            future.get(SECONDS)


def memory_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def is_strict(cluster: KafkaCluster, topic: str) -> bool:
    """Whether the strict rules hold, and a snapshot has replaced the records before."""
    try:
        log = records(cluster, topic)
    except AutothrottleError:
        return False
    return bool(log) and log[0].offset > 0 and any(b'"strict":true' in record.value for record in log)


def test_foreign_records_change_nothing_and_a_process_that_starts_after_them_joins(
    kraft_cluster: KraftCluster, topic: str, tmp_path: Path
) -> None:
    """A record of 130 bytes that looked like an old snapshot gave later processes an empty state, and a second leader.

    A small record that inflated to 300 MB took as much memory in every process, and a copy of an earlier record could
    take effect once more.
    """
    with (
        Replicas(kraft_cluster, tmp_path, topic, *FAST, SESSION) as replicas,
        Reassignment(kraft_cluster, replicas) as reassignment,
    ):
        replicas.start(2)
        reassignment.start()
        eventually(lambda: is_strict(kraft_cluster, topic), SECONDS)
        state = replicas.state()
        assert state is not None
        log = records(kraft_cluster, topic)
        memory = {process.pid: memory_bytes(process.pid) for process in replicas.processes.values()}
        end = log[-1].offset + 1
        empty = Tree("/autothrottle/term")
        append(kraft_cluster, topic, [b"", b"\xff", b"{}", json.dumps({"v": 1, "id": "x"}).encode()])
        append(kraft_cluster, topic, empty.parts(CopyHeader("x", end))[1])
        append(kraft_cluster, topic, empty.parts(CopyHeader("y", end, lost_before=end + 1000))[1])
        append(kraft_cluster, topic, [record.value for record in log[-20:]])
        append(kraft_cluster, topic, [bytes(300_000_000)], codec="gzip")
        attacked = datetime.now(UTC)
        replicas.add(replicas.launch())
        cycle = replicas.next_cycle(attacked)
        assert (cycle.term, reassignment.is_throttled()) == (state.term, True)
        eventually(lambda: len(re.findall("records that are not autothrottle's", replicas.log())) >= 3, SECONDS)
        assert "disagree" not in replicas.log() and "was not that of the state topic" not in replicas.log()
        growth = {pid: memory_bytes(pid) - before for pid, before in memory.items()}
        assert max(growth.values()) < MOST_GROWTH_BYTES, growth
        reassignment.finish()
        replicas.stop()


def offsets(cluster: KafkaCluster, topic: str) -> tuple[int, int]:
    """Return the offsets of the first record of a topic, and after its last one."""
    consumer = kafka.KafkaConsumer(bootstrap_servers=cluster.bootstrap_servers, **CLIENT)
    partition = kafka.TopicPartition(topic, 0)
    with closing(consumer):
        return consumer.beginning_offsets([partition])[partition], consumer.end_offsets([partition])[partition]


def test_topic_of_another_program_is_refused_and_stays_as_it_is(
    kraft_cluster: KraftCluster, topic: str, tmp_path: Path
) -> None:
    """It counted as safe. After some megabytes, autothrottle deleted the records of the other program."""
    settings = {"retention.ms": "-1", "retention.bytes": "-1", "compression.type": "gzip", "min.insync.replicas": "2"}
    kraft_cluster.create_topic(topic, {0: [1001, 1002, 1003]}, settings)
    append(kraft_cluster, topic, [json.dumps({"event": number}).encode() for number in range(50)])
    with Replicas(kraft_cluster, tmp_path, topic, *FAST, SESSION) as replicas:
        started = [replicas.launch(), replicas.launch("--shadow")]
        for process in started:
            assert process.wait(SECONDS) == EXIT_USAGE, process.log_end()
            assert f"The topic {topic} has records of another program" in process.log_end()
        empty = tmp_path / "state.json"
        empty.write_text('{"version": 1, "fence": 0, "nodes": {}, "audit": []}')
        store = [f"--bootstrap-servers={kraft_cluster.bootstrap_servers}", f"--state-topic={topic}"]
        for command in (["state", "import", str(empty), *store], ["check", *store, *FAST]):
            answer = subprocess.run([sys.executable, "-m", "autothrottle", *command], capture_output=True, text=True)
            assert answer.returncode != 0
            assert "has records of another program" in answer.stdout + answer.stderr
    assert offsets(kraft_cluster, topic) == (0, 50)
