"""`autothrottle` that stops itself (SIGSTOP) around a write to Kafka, once it is asked to; a program for tests.

    python self_stopping.py DIRECTORY run --zk-addr=...

It stops before the next write of a broker's throttle when DIRECTORY holds a file `arm`, which names the place:
`checked`, after the check of the term, or `sending`, when nothing is left but to hand the request over. The
file is renamed to `stopped` right before that. `windows` gets a line for each such write: seconds from the beginning of
the check to the sending.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from kafka.net.connection import KafkaConnection
from kafka.protocol.admin import IncrementalAlterConfigsRequest

from autothrottle.__main__ import main
from autothrottle.adapters.kafka_admin.client import ConfigEdit, KafkaAdmin
from autothrottle.adapters.kafka_admin.fence import Fence

_BROKER = 4
"""Kafka's number of the kind of resource."""


class Stopper:
    """Where it stops, and how long the ways are."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._lock = directory, threading.Lock()
        self._checked = 0.0

    def checks(self) -> None:
        """The check of the term begins."""
        self._checked = time.monotonic()

    def sends(self) -> None:
        """A request is handed to its connection."""
        with self._lock, (self._directory / "windows").open("a") as windows:
            windows.write(f"{time.monotonic() - self._checked:.6f}\n")
        self.stop_at("sending")

    def stop_at(self, place: str) -> None:
        """Stop the process, when it shall be here."""
        armed = self._directory / "arm"
        with self._lock:
            if not armed.exists() or armed.read_text() != place:
                return
            armed.rename(self._directory / "stopped")
        os.kill(os.getpid(), signal.SIGSTOP)


def hook(stopper: Stopper) -> None:
    """Put the stopper into the real program."""
    passed, alter, send = Fence.admit, KafkaAdmin.alter_broker_configs, KafkaConnection.send_request

    def passing(fence: Fence, term: int, deadline: float, too_late: str) -> float:
        stopper.checks()
        return passed(fence, term, deadline, too_late)

    def altering(
        kafka: KafkaAdmin,
        broker_id: int,
        edits: Sequence[ConfigEdit],
        *,
        timeout: timedelta | None = None,
        until: float | None = None,
    ) -> None:
        stopper.stop_at("checked")
        alter(kafka, broker_id, edits, timeout=timeout, until=until)

    def sending(connection: Any, request: Any, *arguments: Any, **options: Any) -> Any:
        is_write = isinstance(request, IncrementalAlterConfigsRequest)
        if is_write and any(resource.resource_type == _BROKER for resource in request.resources):
            stopper.sends()
        return send(connection, request, *arguments, **options)

    Fence.admit = passing  # type: ignore[method-assign, assignment]
    KafkaAdmin.alter_broker_configs = altering  # type: ignore[method-assign, assignment]
    KafkaConnection.send_request = sending


if __name__ == "__main__":
    hook(Stopper(Path(sys.argv[1])))
    sys.exit(main(sys.argv[2:]))
