"""A test program: `autothrottle` that can stop itself (SIGSTOP) before it writes a broker's throttle to Kafka.

    python self_stopping.py DIRECTORY run --zk-addr=...

A test arms it with the file DIRECTORY/arm, whose content is the point at which to stop before the next write:

    checked   after the check of the term
    sending   immediately before the request is sent

The program renames the file to `stopped` before it stops. It appends one line per write to DIRECTORY/windows: the
seconds from the start of the check of the term to the sending of the request.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kafka.net.connection import KafkaConnection
from kafka.protocol.admin import IncrementalAlterConfigsRequest

from autothrottle.__main__ import main
from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.values import ConfigEdit
from autothrottle.adapters.state_store.ledger import Fence
from autothrottle.ports.kafka import Term

_BROKER = 4
"""Kafka's number of the resource type BROKER."""


class Stopper:
    """Stops the process at the armed point, and measures the time from check to sending."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._lock = directory, threading.Lock()
        self._checked = 0.0

    def on_check(self) -> None:
        """Note the start of a check of the term."""
        self._checked = time.monotonic()

    def on_send(self) -> None:
        """Log the time since the check, and stop if armed; call it before a request is sent."""
        with self._lock, (self._directory / "windows").open("a") as windows:
            windows.write(f"{time.monotonic() - self._checked:.6f}\n")
        self.stop_at("sending")

    def stop_at(self, point: str) -> None:
        """Stop the process, if it is armed for this point."""
        armed = self._directory / "arm"
        with self._lock:
            if not armed.exists() or armed.read_text() != point:
                return
            armed.rename(self._directory / "stopped")
        # A signal to the process would go to its main thread, and this thread would go on until that one is scheduled.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def install(stopper: Stopper) -> None:
    """Wrap the functions of the real program that check the term and send requests."""
    admit, alter, send = Fence.admit, KafkaAdmin.alter_broker_configs, KafkaConnection.send_request

    def hooked_admit(fence: Fence, term: Term, deadline: float, too_late: str) -> float:
        stopper.on_check()
        return admit(fence, term, deadline, too_late)

    def hooked_alter(
        kafka: KafkaAdmin,
        broker_id: int,
        edits: Sequence[ConfigEdit],
        *,
        until: float | None = None,
    ) -> None:
        stopper.stop_at("checked")
        alter(kafka, broker_id, edits, until=until)

    def hooked_send(connection: Any, request: Any, *arguments: Any, **options: Any) -> Any:
        is_write = isinstance(request, IncrementalAlterConfigsRequest)
        if is_write and any(resource.resource_type == _BROKER for resource in request.resources):
            stopper.on_send()
        return send(connection, request, *arguments, **options)

    Fence.admit = hooked_admit  # type: ignore[method-assign, assignment]
    KafkaAdmin.alter_broker_configs = hooked_alter  # type: ignore[method-assign, assignment]
    KafkaConnection.send_request = hooked_send


if __name__ == "__main__":
    install(Stopper(Path(sys.argv[1])))
    sys.exit(main(sys.argv[2:]))
