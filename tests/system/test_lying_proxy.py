"""A proxy between a process and its servers that lies: the process survives it, and work goes on after it."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from autothrottle.core.cluster.configs import FOLLOWER_RATE
from autothrottle_client import AdminClient, AutothrottleError, ClusterState
from autothrottle_lab.servers.processes import Process, scratch_directory
from autothrottle_lab.servers.zookeeper import ZooKeeperEnsemble
from tests.builders import eventually
from tests.chaos.lied_calls import ALTER_CONFIGS, LIST_REASSIGNMENTS, LOG_DIRS
from tests.chaos.lies import (
    API_VERSIONS,
    DESCRIBE_CONFIGS,
    FETCH,
    KAFKA_CODES,
    LATE_SECONDS,
    METADATA,
    PRODUCE,
    ZOOKEEPER_CODES,
    Liar,
    Lie,
    LieKind,
)
from tests.chaos.on_kafka.stage import SOURCES, KafkaStage, SharedCluster
from tests.chaos.proxy import Framing, Link
from tests.chaos.resources import EXTRA, ResourceCount, resource_count
from tests.chaos.schedule import Schedule
from tests.chaos.stage import BEFORE, IDLE, Stage

SECONDS = 60.0
LIE_SECONDS = 4.0
RETURN_SECONDS = 10.0
"""Longest time from the end of the lies to the end of a cycle."""
SESSION_SECONDS = 3.0
EXTRA_MEGABYTES = 40.0
_KINDS = tuple(LieKind)
_USED = (API_VERSIONS, METADATA, DESCRIBE_CONFIGS, ALTER_CONFIGS, LIST_REASSIGNMENTS, LOG_DIRS, PRODUCE, FETCH)
"""The APIs that each cycle uses, and the one that opens a connection."""
_numbers = itertools.count(9_000)


def kafka_lie(seed: int) -> Lie:
    """Return the lie of a seed: about one API, or all of them."""
    choices, kind = random.Random(f"living {seed}"), _KINDS[seed % len(_KINDS)]
    apis = frozenset({choices.choice(_USED)}) if choices.random() < 0.6 else frozenset()
    return Lie(kind, apis, seed, choices.sample(KAFKA_CODES, 20), choices.choice([1.0, 0.5]))


def zookeeper_lie(seed: int) -> Lie:
    """Return the lie of a seed about all requests."""
    choices, kind = random.Random(f"living {seed}"), _KINDS[seed % len(_KINDS)]
    return Lie(kind, seed=seed, codes=choices.sample(ZOOKEEPER_CODES, 8), share=choices.choice([1.0, 0.3]))


@dataclass(slots=True)
class Subject:
    """A process behind a lying proxy."""

    process: Process
    link: Link
    liar: Liar
    address: str
    untouched: Callable[[], object]
    """Reads what the process must not change."""

    def state(self) -> ClusterState | None:
        try:
            with AdminClient([self.address]) as admin:
                state = admin.state()
        except AutothrottleError:
            return None
        return state if state.last_cycle and state.last_cycle.term == state.term else None

    def has_cycle_after(self, time_of_end: datetime) -> bool:
        state = self.state()
        cycle = state.last_cycle if state else None
        return cycle is not None and cycle.start_time > time_of_end and not cycle.error

    def megabytes(self) -> float:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.partition("VmRSS:")[2].split()[0]) / 1024

    def play(self, lies: Sequence[Lie]) -> None:
        """Tell the lies one after the other, and check what must hold after each."""
        began = self.state()
        assert began is not None
        before, megabytes, untouched = resource_count(self.process.pid), self.megabytes(), self.untouched()
        for lie in lies:
            self.liar.begin(lie)
            if lie.apis == {API_VERSIONS}:
                self.link.cut()
            time.sleep(LIE_SECONDS)
            self.liar.end()
            ended = time.monotonic() + (LATE_SECONDS if lie.kind is LieKind.LATE else 0.0)
            time_of_end = datetime.now(UTC)
            while not self.has_cycle_after(time_of_end):
                assert self.process.running, f"{lie}: {self.process.log_end()}"
                assert time.monotonic() < ended + RETURN_SECONDS, (
                    f"{lie}: no cycle {RETURN_SECONDS:g} s after it: {self.process.log_end()}"
                )
                time.sleep(0.1)
            late = time.monotonic() - ended
            text = self.process.log.read_text("utf-8", "replace")
            assert "Traceback" not in text, f"{lie}: {text[text.index('Traceback') :][:3000]}"
            if lie.kind is not LieKind.FLIPPED:
                assert self.untouched() == untouched, lie
            untouched = self.untouched()
            print(f"{lie.kind.name:10} {sorted(lie.apis)} share {lie.share}: a cycle {late:.1f} s after it")
        eventually(lambda: self._excess(before) <= 0, SECONDS)
        growth = self.megabytes() - megabytes
        print(f"changed answers: {dict(self.liar.lies)}; {growth:.1f} MB more; {resource_count(self.process.pid)}")
        assert growth <= EXTRA_MEGABYTES
        assert sum(self.liar.lies.values()) >= len(lies) / 2, "too few lies reached the client"

    def _excess(self, before: ResourceCount) -> int:
        count = resource_count(self.process.pid)
        return max(count.descriptors - before.descriptors, count.threads - before.threads) - EXTRA


def schedule() -> Schedule:
    return Schedule(next(_numbers), False, (), SESSION_SECONDS)


@pytest.fixture(scope="module")
def brokers() -> Iterator[SharedCluster]:
    with scratch_directory() as directory, SharedCluster(directory, "kafka") as cluster:
        yield cluster


@pytest.mark.repeat
def test_lies_of_kafka_cost_no_term_for_longer_and_no_throttle_of_others(brokers: SharedCluster) -> None:
    with scratch_directory() as directory, KafkaStage(brokers, schedule(), directory) as stage:
        stage.start("run-1")
        eventually(lambda: stage.listens("run-1"), SECONDS)
        eventually(lambda: stage.leader()[0] > 0, SECONDS)
        eventually(lambda: is_submitted(stage), SECONDS)
        eventually(stage.is_throttled, SECONDS)
        others = f"brokers/{SOURCES[0]}"
        link, liar = stage.links["run-1"], Liar(Framing.KAFKA)
        link.liar = liar
        subject = Subject(
            stage.processes["run-1"], link, liar, stage.socket("run-1"), lambda: stage.config(others).get(FOLLOWER_RATE)
        )
        link.cut()  # so that the proxy knows all requests
        eventually(lambda: subject.state() is not None, SECONDS)
        subject.play([kafka_lie(seed) for seed in range(30)])
        stage.finish_reassignment()
        eventually(lambda: stage.configs() == stage.expected, SECONDS)


def is_submitted(stage: KafkaStage) -> bool:
    try:
        stage.submit_through_api()
    except AutothrottleError:
        return False
    return True


@pytest.fixture(scope="module")
def ensemble() -> Iterator[ZooKeeperEnsemble]:
    with scratch_directory() as directory, ZooKeeperEnsemble(directory) as servers:
        yield servers


@pytest.mark.repeat
def test_lies_of_zookeeper_cost_no_term_for_longer_and_no_throttle_of_others(ensemble: ZooKeeperEnsemble) -> None:
    with ExitStack() as stack:
        directory = stack.enter_context(scratch_directory())
        stage = stack.enter_context(Stage(ensemble, schedule(), directory))
        stage.start("run-1")
        eventually(lambda: stage.listens("run-1"), SECONDS)
        eventually(lambda: stage.leader()[0] > 0, SECONDS)
        stage.submit_reassignment()
        eventually(stage.is_throttled, SECONDS)
        link, liar = stage.links["run-1"], Liar(Framing.ZOOKEEPER)
        link.liar = liar
        idle = f"brokers/{IDLE}"
        subject = Subject(stage.processes["run-1"], link, liar, stage.socket("run-1"), lambda: stage.config(idle)[0])
        link.cut()
        eventually(lambda: subject.state() is not None, SECONDS)
        subject.play([zookeeper_lie(seed) for seed in (*range(14), 39)])
        assert stage.config(idle)[0] == BEFORE[idle]
