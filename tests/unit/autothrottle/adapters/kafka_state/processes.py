"""Processes that share one state topic in memory, and what they do with it."""

from __future__ import annotations

import time
from contextlib import ExitStack

from autothrottle.adapters.kafka_state.log import StateLog
from autothrottle.adapters.kafka_state.records import StateEdit
from autothrottle.adapters.kafka_state.tree import Effect
from autothrottle.adapters.memory.state_topic import MemoryPartition, MemoryTopic
from autothrottle.adapters.zookeeper.paths import OwnPaths

OWN = OwnPaths()
SILENCE = 0.5
X, Y = f"{OWN.root}/x", f"{OWN.root}/y"


class Processes:
    """Processes that share one topic."""

    def __init__(self, stack: ExitStack) -> None:
        self.partition, self._stack = MemoryPartition(), stack
        self.topics: dict[int, MemoryTopic] = {}

    def log(self) -> StateLog:
        topic = MemoryTopic(self.partition)
        log = StateLog(topic, "state", OWN.term, SILENCE)
        self._stack.callback(log.close)
        self.topics[id(log)] = topic
        return log

    def topic(self, log: StateLog) -> MemoryTopic:
        return self.topics[id(log)]


def soon(seconds: float = 20.0) -> float:
    return time.monotonic() + seconds


def text(log: StateLog, path: str = X) -> str | None:
    with log.synced(soon()) as tree:
        node = tree.node(path)
    return node.text if node else None


def put(log: StateLog, value: str, path: str = X) -> int:
    with log.current() as tree:
        versions = {path: tree.version(path)}
    result = log.append(StateEdit(versions=versions, texts={path: value}), soon())
    assert result.effect is Effect.APPLIED
    return result.version
