"""One Kafka process, a broker or a controller: its files, its Java command, its start and end.

`kafka` combines brokers into a cluster. The type to know is `KafkaServer`.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autothrottle_lab.servers.class_archive import class_archive_options
from autothrottle_lab.servers.jars import kafka_jars, require_java
from autothrottle_lab.servers.processes import Process

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
"""Configs of every broker: little memory, few threads, small segments, no automatic rebalancing or retention."""

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
    """The address that it listens on and advertises."""
    command_prefix: tuple[str, ...] = ()
    """Words before its command, such as `ip netns exec NAME`; the prefix program must exec the command."""


LOCAL = Place()


class KafkaServer:
    """One Kafka process and its directory. The directory survives a stop."""

    def __init__(
        self,
        name: str,
        directory: Path,
        port: int,
        command: Sequence[str],
        properties: Mapping[str, object],
        place: Place = LOCAL,
        listener: str = "PLAINTEXT",
    ) -> None:
        self.port = port
        self.host = place.host
        self.directory = directory
        self.logs = directory / "logs"
        """Log directory, with one subdirectory per partition."""
        self.server_log = directory / "server.log"
        """Log file of the process."""
        directory.mkdir(parents=True)
        configuration, log4j = directory / "server.properties", directory / "log4j.properties"
        log4j.write_text(_LOG4J.format(path=self.server_log))
        given = {"listeners": f"{listener}://{place.host}:{port}", "log.dirs": self.logs, **properties}
        configuration.write_text("".join(f"{key}={_property_value(value)}\n" for key, value in given.items()))
        self.command = [*command, f"-Dlog4j.configuration=file:{log4j}"]
        """Java command without the main class."""
        self.configuration = configuration
        """Path of `server.properties`."""
        self.process = Process(
            name, [*place.command_prefix, *self.command, "kafka.Kafka", str(configuration)], directory / "output.log"
        )

    def close(self) -> None:
        """Kill the process and remove its directory."""
        self.process.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def address(self) -> str:
        """Address, `host:port`."""
        return f"{self.host}:{self.port}"

    @property
    def listening(self) -> bool:
        """Whether it accepts connections."""
        try:
            socket.create_connection((self.host, self.port), timeout=2.0).close()
        except OSError:
            return False
        return True

    def log_end(self, lines: int = 30) -> str:
        """Return the last lines of its log file and its output."""
        logged = self.server_log.read_text(errors="replace") if self.server_log.exists() else ""
        return "\n".join(logged.splitlines()[-lines:]) + "\n" + self.process.log_end(lines)

    def wait_until(self, ready: Callable[[], bool], within_seconds: float) -> None:
        """Return as soon as `ready` returns true.

        Raises:
            TimeoutError: it does not become ready, or it ends first; the message has the end of its log.
        """
        try:
            self.process.wait_until(ready, within_seconds, poll_seconds=0.1)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.log_end()}") from None


def java_command(version: str, heap_megabytes: int) -> list[str]:
    """Return a Java command with the jars of a Kafka release; append a main class to run it.

    Raises:
        Missing: Java is missing or too old.
        Unavailable: the download of the jars failed.
    """
    java, jars = str(require_java()), kafka_jars(version)
    memory = ("-Xms64m", f"-Xmx{heap_megabytes}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
    command = [java, *memory, "-Djava.awt.headless=true", "-cp", f"{jars}/*"]
    return [*command, *class_archive_options(command, jars)]


def _property_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
