"""The state in a topic as the subject of the contracts: in memory, or in Kafka."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta

from autothrottle.adapters.kafka_state.election import KafkaElection
from autothrottle.adapters.kafka_state.log import StateLog
from autothrottle.adapters.kafka_state.membership import KafkaMembership
from autothrottle.adapters.kafka_state.records import StateEdit
from autothrottle.adapters.kafka_state.topic import Records, ReplicaChange, Topic
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.core.errors import Missing, Unavailable
from autothrottle.core.operators.audit import MAX_AUDIT_RECORDS
from autothrottle.ports.state_store import Election
from tests.builders import eventually

PREFIX = "autothrottle"


class CutTopic:
    """A topic whose connection can be cut (a `Topic`)."""

    def __init__(self, topic: Topic) -> None:
        self.topic, self.is_cut = topic, False

    def append(self, values: Sequence[bytes], deadline: float) -> None:
        self._reached().append(values, deadline)

    def read(self, topic_id: str, offset: int, epoch: int, wait: float, deadline: float) -> Records:
        return self._reached().read(topic_id, offset, epoch, min(wait, 0.1), deadline)

    def locate(self, deadline: float) -> tuple[str, int]:
        return self._reached().locate(deadline)

    def create(self, deadline: float) -> None:
        self._reached().create(deadline)

    def risks(self, deadline: float) -> Mapping[str, str]:
        return self._reached().risks(deadline)

    def fetch_repair(self, deadline: float, is_stuck: bool) -> ReplicaChange | None:
        return self._reached().fetch_repair(deadline, is_stuck)

    def change_replicas(self, change: ReplicaChange, deadline: float) -> Sequence[int]:
        return self._reached().change_replicas(change, deadline)

    def delete_before(self, offset: int, deadline: float) -> None:
        self._reached().delete_before(offset, deadline)

    def close(self) -> None:
        self.topic.close()

    def _reached(self) -> Topic:
        if self.is_cut:
            raise Unavailable("the connection is cut")
        return self.topic


class TopicSource:
    """Creates clients of one topic, and changes it as an operator does."""

    def client(self) -> Topic:
        """Return a new client."""
        raise NotImplementedError

    def delete(self) -> None:
        """Delete the topic."""
        raise NotImplementedError


class StateSubject:
    """Processes that share one state topic, each with its own log."""

    def __init__(
        self, source: TopicSource, stack: ExitStack, seconds: float = 1.5, audit_records: int = MAX_AUDIT_RECORDS
    ) -> None:
        self.source, self.seconds, self._stack, self._audit_records = source, seconds, stack, audit_records
        self.own = OwnPaths(PREFIX)
        self._topics: dict[int, CutTopic] = {}
        self.log = self.new_log()

    def new_log(self) -> StateLog:
        """Return the log of a new process."""
        topic = CutTopic(self.source.client())
        log = StateLog(topic, "state", self.own.term, self.seconds * 2 / 3, self._audit_records)
        self._stack.callback(log.close)
        self._topics[id(log)] = topic
        log.prepare(time.monotonic() + 60, lambda: False)
        return log

    def topic(self, log: StateLog) -> CutTopic:
        return self._topics[id(log)]

    def candidate(self) -> KafkaElection:
        election = KafkaElection(self.new_log(), self.own, timedelta(seconds=self.seconds))
        self._stack.callback(election.leave)
        return election

    def membership(self) -> KafkaMembership:
        membership = KafkaMembership(self.new_log(), self.own, timedelta(seconds=self.seconds))
        self._stack.callback(membership.leave)
        return membership

    def candidates(self) -> int:
        with self.log.synced(time.monotonic() + 30) as tree:
            paths = [f"{self.own.election}/{name}" for name in tree.children(self.own.election)]
        return sum(self.log.silence(path) <= self.seconds for path in paths)

    def depose(self, leader: Election) -> None:
        assert isinstance(leader, KafkaElection)
        topic = self.topic(leader._state)
        topic.is_cut = True
        eventually(lambda: leader.term is None)
        time.sleep(self.seconds)
        topic.is_cut = False

    def wipe(self) -> None:
        """Delete the topic, and let another process begin anew before the others can restore it."""
        for topic in self._topics.values():
            topic.is_cut = True
        self.source.delete()
        beginner = self.source.client()
        while True:
            try:
                beginner.create(time.monotonic() + 5)
                beginner.append(
                    [StateEdit(versions={"/other": 0}, texts={"/other": ""}).encoded()], time.monotonic() + 5
                )
                break
            except (Missing, Unavailable):
                time.sleep(0.05)
        beginner.close()
        for topic in self._topics.values():
            topic.is_cut = False

    def begin_term(self) -> int:
        """Begin a term without a leader; return its fence."""
        with self.log.synced(time.monotonic() + 30) as tree:
            versions = {self.own.term: tree.fence}
        return self.log.append(StateEdit(versions=versions, texts={self.own.term: "{}"}), time.monotonic() + 30).version
