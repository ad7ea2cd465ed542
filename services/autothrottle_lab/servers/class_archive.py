"""An archive of Kafka's loaded classes (AppCDS), with which a broker starts in half of the CPU time.

It is written once for each Kafka release, beside the release's jars: a broker starts, stops, and Java dumps what it
has loaded. Java ignores an archive that does not fit its version or the jars.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from autothrottle_lab.servers.jars import make_once
from autothrottle_lab.servers.processes import Process, free_ports, scratch_directory

log = logging.getLogger(__name__)

_START_SECONDS, _DUMP_SECONDS = 120.0, 120.0

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={logs}
"""
_LOG4J = """\
log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.SimpleLayout
"""
_STARTED = "Kafka Server started"


def class_archive_options(command: Sequence[str], jars: Path) -> list[str]:
    """Return the Java options that use the archive; write it first if it does not exist.

    Args:
        command: Java, its options and the class path of the brokers.
        jars: directory of the release's jars.

    Returns:
        An empty list if Java could not write an archive, for example for releases without KRaft.
    """
    archive = jars.with_name(f"{jars.name}.jsa")
    make_once(archive, lambda: _write(command, archive))
    return [f"-XX:SharedArchiveFile={archive}"] if archive.stat().st_size else []


def _write(command: Sequence[str], archive: Path) -> None:
    """Write the archive, or an empty file if that fails, so that later starts do not try again."""
    partial = archive.with_suffix(f".{os.getpid()}")
    with scratch_directory() as directory:
        logs = directory / "logs"
        logs.mkdir()
        (logs / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\n")
        broker, controller = free_ports(2)
        configuration, log4j = directory / "server.properties", directory / "log4j.properties"
        configuration.write_text(_PROPERTIES.format(broker=broker, controller=controller, logs=logs))
        log4j.write_text(_LOG4J)
        options = [f"-XX:ArchiveClassesAtExit={partial}", f"-Dlog4j.configuration=file:{log4j}"]
        process = Process("Kafka", [*command, *options, "kafka.Kafka", str(configuration)], directory / "output.log")
        with process:
            try:
                process.wait_until(lambda: _STARTED in process.log.read_text(errors="replace"), _START_SECONDS)
                process.terminate()
                process.wait(_DUMP_SECONDS)
            except TimeoutError as error:
                log.info("Brokers start without an archive of classes: %s", error)
    if not partial.exists():
        partial.touch()
    partial.rename(archive)
