"""One process of Kafka's, a broker or a controller: its files, its Java command, its start and end.

What brokers are together, a cluster, is in `kafka`. The type to know is `KafkaServer`.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autothrottle.lab.jars import kafka_jars, require_java
from autothrottle.lab.processes import Process

PROPERTIES: Mapping[str, object] = {
    "num.network.threads": 2,
    "num.io.threads": 4,
    "background.threads": 2,
    "auto.create.topics.enable": False,
    "auto.leader.rebalance.enable": False,
    "log.segment.bytes": 16 * 1024 * 1024,
    "log.index.size.max.bytes": 1024 * 1024,
    "log.retention.ms": -1,
    "log.retention.bytes": -1,
    "log.cleaner.dedupe.buffer.size": 4 * 1024 * 1024,
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
}
"""Of every broker: little memory, few threads, small segments, and nothing that happens by itself."""

_LOG4J = """\
log4j.rootLogger=WARN, file
log4j.logger.kafka=INFO
log4j.logger.state.change.logger=WARN
log4j.appender.file=org.apache.log4j.FileAppender
log4j.appender.file.File={path}
log4j.appender.file.layout=org.apache.log4j.PatternLayout
log4j.appender.file.layout.ConversionPattern=[%d] %p %m (%c)%n
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server runs."""

    host: str = "127.0.0.1"
    """The address that it listens on, and by which others reach it."""
    entrance: tuple[str, ...] = ()
    """What stands before its command, so that it runs there; a program that becomes the command."""


HERE = Place()


class KafkaServer:
    """One process of Kafka's and its directory, which outlives a stop."""

    def __init__(
        self,
        name: str,
        directory: Path,
        port: int,
        command: Sequence[str],
        properties: Mapping[str, object],
        place: Place = HERE,
    ) -> None:
        self.name = name
        self.port = port
        self.host = place.host
        self.directory = directory
        self.logs = directory / "logs"
        """One directory for each partition."""
        self.server_log = directory / "server.log"
        """What it logs."""
        directory.mkdir(parents=True)
        configuration, log4j = directory / "server.properties", directory / "log4j.properties"
        log4j.write_text(_LOG4J.format(path=self.server_log))
        given = {"log.dirs": self.logs, **properties}
        configuration.write_text("".join(f"{key}={_spelled(value)}\n" for key, value in given.items()))
        self.command = [*command, f"-Dlog4j.configuration=file:{log4j}"]
        """The Java program without what it runs."""
        self.configuration = configuration
        """Its `server.properties`."""
        self.process = Process(
            name, [*place.entrance, *self.command, "kafka.Kafka", str(configuration)], directory / "output.log"
        )

    def close(self) -> None:
        """Kill it and remove its directory."""
        self.process.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def address(self) -> str:
        """Where it listens, `host:port`."""
        return f"{self.host}:{self.port}"

    @property
    def listening(self) -> bool:
        """Whether it takes connections."""
        try:
            socket.create_connection((self.host, self.port), timeout=2.0).close()
        except OSError:
            return False
        return True

    def log_end(self, lines: int = 30) -> str:
        """Return the last lines that it logged."""
        logged = self.server_log.read_text(errors="replace") if self.server_log.exists() else ""
        return "\n".join(logged.splitlines()[-lines:]) + "\n" + self.process.log_end(lines)

    def wait_until(self, ready: Callable[[], bool], within_seconds: float) -> None:
        """Return as soon as `ready` says so.

        Raises:
            TimeoutError: it does not become ready, or ends first; has the end of what it logged.
        """
        try:
            self.process.wait_until(ready, within_seconds, poll_seconds=0.1)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.log_end()}") from None


class Broker(KafkaServer):
    """One broker."""

    def __init__(
        self,
        broker_id: int,
        directory: Path,
        port: int,
        command: Sequence[str],
        properties: Mapping[str, object],
        place: Place = HERE,
    ) -> None:
        listeners = {"listeners": f"PLAINTEXT://{place.host}:{port}"}
        super().__init__(f"broker {broker_id}", directory, port, command, {**listeners, **properties}, place)
        self.broker_id = broker_id


def java_command(version: str, heap_megabytes: int) -> list[str]:
    """Return a command that runs a program of a Kafka release, whose name has to follow.

    Raises:
        Missing: no Java.
        Unavailable: the release's jars could not be fetched.
    """
    java, jars = str(require_java()), kafka_jars(version)
    memory = ("-Xms64m", f"-Xmx{heap_megabytes}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
    return [java, *memory, "-Djava.awt.headless=true", "-cp", f"{jars}/*"]


def _spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
