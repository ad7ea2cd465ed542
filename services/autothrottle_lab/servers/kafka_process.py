"""One Kafka process, a broker or a controller: its files, its Java command, its start and end.

`kafka` combines brokers into a cluster. The type to know is `KafkaServer`.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from autothrottle_lab.servers.class_archive import DUMP_SECONDS, class_archive_options
from autothrottle_lab.servers.jars import kafka_jars, require_java
from autothrottle_lab.servers.processes import Process, free_ports

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

_START_SECONDS = 120.0

_PROPERTIES_ONCE = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={logs}
log.cleaner.dedupe.buffer.size=4194304
"""
_LOG4J_ONCE = """\
log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.SimpleLayout
"""
"""The files of the broker whose loaded classes are archived."""


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
    return [*command, *class_archive_options(jars.with_name(f"{jars.name}.jsa"), partial(_run_once, command))]


def _run_once(command: Sequence[str], options: Sequence[str], directory: Path) -> None:
    """Start a broker with these Java options and stop it."""
    logs = directory / "logs"
    logs.mkdir()
    (logs / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\n")
    broker, controller = free_ports(2)
    configuration, log4j = directory / "server.properties", directory / "log4j.properties"
    configuration.write_text(_PROPERTIES_ONCE.format(broker=broker, controller=controller, logs=logs))
    log4j.write_text(_LOG4J_ONCE)
    java = [*command, *options, f"-Dlog4j.configuration=file:{log4j}", "kafka.Kafka", str(configuration)]
    with Process("Kafka", java, directory / "output.log") as process:
        process.wait_until(lambda: "Kafka Server started" in process.log.read_text(errors="replace"), _START_SECONDS)
        process.terminate()
        process.wait(DUMP_SECONDS)


def _property_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
