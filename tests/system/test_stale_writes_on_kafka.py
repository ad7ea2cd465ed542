"""A planner on Kafka 4 that is stopped right before a write and wakes when another one leads.

Kafka knows nothing of our terms, so that a stale write can only be made improbable, and repaired.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from autothrottle_client import AdminClient
from autothrottle_lab.observation.metadata_log import ConfigWritten, MetadataRecord
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from autothrottle_lab.servers.processes import Process
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import eventually
from tests.system import self_stopping
from tests.system.recovery_watch import FOLLOWER_RATE, LEADER_RATE, admin_backend_options
from tests.system.test_throttlectl import KEYS, address_of

MB = 1_000_000
SESSION_SECONDS, INTERVAL = 3, 2
BROKER = 1003
LONG = 120
"""Seconds that a busy machine may take for what takes two or three."""
LANDED_SECONDS = 5.0
"""By then what a planner sends when it wakes has landed, on a busy machine too."""


class Candidate:
    """One process of all services that can be told to stop itself."""

    def __init__(self, name: str, options: dict[str, str], directory: Path, stack: ExitStack) -> None:
        self.directory = directory / name
        self.directory.mkdir()
        flags = [f"--{option}={value}" for option, value in options.items()]
        command = [sys.executable, self_stopping.__file__, str(self.directory), "run", *flags]
        self.process = stack.enter_context(Process(name, command, self.directory / "log", KEYS))
        self.admin = stack.enter_context(AdminClient([address_of(self.process)]))

    def stop_at(self, place: str) -> None:
        (self.directory / "stopped").unlink(missing_ok=True)
        new = self.directory / "new"
        new.write_text(place)
        new.rename(self.directory / "arm")  # as a whole, since it is looked for all the time

    def has_stopped(self) -> bool:
        return (self.directory / "stopped").exists()

    def windows(self) -> list[float]:
        """Seconds from the beginning of each check of the term to the sending of its write."""
        return [float(line) for line in (self.directory / "windows").read_text().split()]

    def log(self) -> str:
        return self.process.log.read_text(errors="replace")


@pytest.fixture
def candidates(
    kraft_cluster: KraftCluster, zookeeper: ZooKeeperServer, tmp_path: Path
) -> Iterator[tuple[Candidate, Candidate]]:
    """Two of them, the first of which leads."""
    options = {
        "zk-addr": zookeeper.connect,
        "zk-config-prefix": "autothrottle-stale",
        "zk-session-timeout": str(SESSION_SECONDS),
        "interval": str(INTERVAL),
        "datadog-url": "http://127.0.0.1:1",
        "api-listen": "127.0.0.1:0",
        **admin_backend_options(kraft_cluster),
    }
    with ExitStack() as stack:
        first = Candidate("first", options, tmp_path, stack)
        eventually(lambda: "Leading in term 1" in first.log(), LONG)
        yield first, Candidate("second", options, tmp_path, stack)


def rates(cluster: KraftCluster) -> set[str]:
    """The rates that stand on the broker."""
    config = cluster.stored_configs().get(f"brokers/{BROKER}", {})
    return {config[key] for key in (LEADER_RATE, FOLLOWER_RATE) if key in config}


def written(cluster: KraftCluster, after: int, rate: int) -> list[MetadataRecord]:
    """The records that set a rate on the broker."""
    return [
        record
        for record in cluster.metadata.records(after)
        if isinstance(record.change, ConfigWritten)
        and (record.change.entity, record.change.value) == (f"brokers/{BROKER}", str(rate))
    ]


def put(cluster: KraftCluster, by: Candidate, rate: int) -> None:
    """Set the broker's override, and return when its rates stand."""
    by.admin.set_override(rate, broker_id=BROKER)
    eventually(lambda: rates(cluster) == {str(rate)}, LONG)


def woken_with_a_stale_write(cluster: KraftCluster, old: Candidate, new: Candidate, place: str, rate: int) -> int:
    """Stop the leader around its write of `rate`; when the other has written `rate + 1`, wake it; return the offset."""
    old.stop_at(place)
    new.admin.set_override(rate, broker_id=BROKER)
    eventually(old.has_stopped, LONG)
    eventually(lambda: rates(cluster) == {str(rate)}, LONG)  # by the other, which leads now
    put(cluster, new, rate + 1)
    offset = cluster.metadata.last_offset()
    old.process.thaw()
    return offset


@pytest.mark.timeout(600)
def test_planner_woken_after_its_session_writes_nothing_and_a_request_in_flight_is_repaired(
    kraft_cluster: KraftCluster, candidates: tuple[Candidate, Candidate]
) -> None:
    first, second = candidates
    before = kraft_cluster.stored_configs()
    # Each is lower than the one before, or hardly higher: a raise would be written in steps.
    for rate in range(60, 55, -1):
        put(kraft_cluster, first, rate * MB)

    offset = woken_with_a_stale_write(kraft_cluster, first, second, "checked", 50 * MB)
    eventually(lambda: f"brokers/{BROKER}: not written" in first.log(), LONG)
    put(kraft_cluster, second, 45 * MB)
    assert written(kraft_cluster, offset, 50 * MB) == [], "it was too late, and nothing was sent"

    offset = woken_with_a_stale_write(kraft_cluster, second, first, "sending", 40 * MB)
    woken = time.time()
    repaired = f"another party changed the rate from {40 * MB + 1} to {40 * MB}; repaired"
    # Which of its threads runs first when it wakes is left to chance: the one that sends, or the one that gives up.
    given_up = f"brokers/{BROKER}: not written"
    eventually(lambda: written(kraft_cluster, offset, 40 * MB) or given_up in second.log(), LONG)
    # A planner that gave up its term may still have sent the request. If it takes effect after the throttle was
    # removed, it stays and counts as foreign.
    time.sleep(LANDED_SECONDS)
    if stale := written(kraft_cluster, offset, 40 * MB):
        eventually(lambda: repaired in first.log(), LONG)
    eventually(lambda: rates(kraft_cluster) == {str(40 * MB + 1)}, LONG)

    first.admin.remove_override(BROKER)
    eventually(lambda: kraft_cluster.stored_configs() == before, LONG)
    windows = first.windows()
    print(
        f"\ncheck of the term to the sending: median {1000 * statistics.median(windows):.1f} ms, most "
        f"{1000 * max(windows):.1f} ms of {len(windows)} writes; stopped after the check and woken after the session: "
        f"0 stale writes; stopped at the sending: {told(kraft_cluster, stale, woken)}"
    )


def told(cluster: KraftCluster, stale: Sequence[MetadataRecord], woken: float) -> str:
    if not stale:
        return "0"
    copied = stale[0]
    repaired = written(cluster, copied.offset, 40 * MB + 1)[0]
    return (
        f"1, landed {copied.time.timestamp() - woken:.3f} s after it woke, "
        f"repaired {(repaired.time - copied.time).total_seconds():.2f} s later"
    )
