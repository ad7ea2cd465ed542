"""Consumers of partitions, each in a process of its own, so that they do not delay the producers of the contest."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Mapping
from contextlib import closing
from multiprocessing.connection import Connection
from typing import NamedTuple

from autothrottle.adapters.kafka_admin.connections import CLIENT, kafka
from autothrottle_lab.servers.kafka import Partition

_POLL_MILLISECONDS = 200
_ENDING_SECONDS = 30.0


class Read(NamedTuple):
    """The delay of one record."""

    at: float
    """Time at which it was sent, `time.monotonic()`."""
    seconds: float
    """Time from then until the consumer had it."""


class Consumers:
    """Consumers that read the newest records of partitions; a context manager."""

    def __init__(self, bootstrap_servers: str, counts: Mapping[Partition, int]) -> None:
        """Prepare the consumers.

        Args:
            bootstrap_servers: as in Kafka's client config.
            counts: partition -> number of consumers that read it.
        """
        spawning = multiprocessing.get_context("spawn")
        self._ends: list[Connection] = []
        self._processes = []
        for number in range(max(counts.values(), default=0)):
            ours, theirs = spawning.Pipe()
            read = [partition for partition, count in counts.items() if count > number]
            self._ends.append(ours)
            self._processes.append(
                spawning.Process(target=_consume, args=(bootstrap_servers, read, theirs), daemon=True)
            )

    def __enter__(self) -> Consumers:
        for process in self._processes:
            process.start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
            process.join()

    def end(self) -> list[Read]:
        """End the consumers; return the records that they have read."""
        for end in self._ends:
            end.send(None)
        found = []
        for end in self._ends:
            if not end.poll(_ENDING_SECONDS):
                raise TimeoutError(f"A consumer does not end within {_ENDING_SECONDS:.0f} s.")
            found += end.recv()
        return found


def _consume(bootstrap_servers: str, partitions: list[Partition], ending: Connection) -> None:
    """Read until a message arrives at `ending`; answer with the records."""
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap_servers.split(","), check_crcs=False, **CLIENT)
    found: list[Read] = []
    with closing(consumer):
        consumer.assign([kafka.TopicPartition(*partition) for partition in partitions])
        consumer.seek_to_end()
        while not ending.poll():
            records = consumer.poll(timeout_ms=_POLL_MILLISECONDS)
            age, now = time.time(), time.monotonic()
            ages = [age - record.timestamp / 1000 for some in records.values() for record in some]
            found += [Read(now - seconds, seconds) for seconds in ages]
    ending.send(found)
