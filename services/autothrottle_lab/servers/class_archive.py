"""An archive of a Java server's loaded classes (AppCDS), with which it starts in half of the CPU time.

It is written once: a server starts, stops, and Java dumps what it has loaded. Java ignores an archive that does not fit
its version or the jars.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from autothrottle_lab.servers.jars import make_once
from autothrottle_lab.servers.processes import scratch_directory

log = logging.getLogger(__name__)

DUMP_SECONDS = 120.0
"""Limit of the time that a server takes to end when Java writes its archive."""


def class_archive_options(archive: Path, run_once: Callable[[Sequence[str], Path], None]) -> list[str]:
    """Return the Java options that use an archive; write it first if it does not exist.

    Args:
        archive: its path. Servers with other jars need another path.
        run_once: given Java options and an empty directory, starts a server and stops it by SIGTERM; raises
            TimeoutError if that fails.

    Returns:
        An empty list if Java could not write the archive. Kafka releases without KRaft have none, and a read-only
        directory gets none.
    """
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        make_once(archive, lambda: _write(archive, run_once))
        return [f"-XX:SharedArchiveFile={archive}"] if archive.stat().st_size else []
    except OSError as error:
        log.info("Servers start without an archive of classes: %s", error)
        return []


def _write(archive: Path, run_once: Callable[[Sequence[str], Path], None]) -> None:
    """Write the archive, or an empty file if that fails, so that later starts do not try again."""
    partial = archive.with_suffix(f".{os.getpid()}")
    with scratch_directory() as directory:
        try:
            run_once([f"-XX:ArchiveClassesAtExit={partial}"], directory)
        except TimeoutError as error:
            log.info("Servers start without an archive of classes: %s", error)
            partial.unlink(missing_ok=True)  # Java may have written a part of it
    if not partial.exists():
        partial.touch()
    partial.rename(archive)
