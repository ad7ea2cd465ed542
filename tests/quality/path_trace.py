"""Prints the source files that run between an event and its write, in `autothrottle run` with a real ZooKeeper.

python -m tests.quality.path_trace [--list]

1. From a reassignment, as Kafka's own tool writes it, to the first throttle.
2. From `POST /throttle/<broker>` to the override's znode.

All calls pass the gRPC surface. Only modules of services/autothrottle and clients count, and of those only the ones
with a function that ran in the meantime. There are two numbers:

- Path: functions in the threads that serve the event, until the first transaction that writes it. The threads of
  `PATHS` count as a whole. A thread of a gRPC server counts while it serves a method of `PATHS`, with its interceptors.
  Each event begins when the cycles of the start or of the event before it have ended, so that these do not count.
- Process: functions in any thread, also in those that serve no event (readings of metrics, the watchdog, registrations)
  or another one (the cycle after an override), until this script sees the write.

To compare with another commit, copy this file to a worktree of it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import grpc._server
import kazoo.client

from autothrottle.__main__ import main as autothrottle
from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle_lab.demo.scenario import DEMO_NEW_BROKER
from autothrottle_lab.demo.simulated_stage import SimulatedStage
from autothrottle_lab.demo.stage import Interruption
from autothrottle_lab.emulators.datadog import API_KEY, APP_KEY
from autothrottle_lab.emulators.kafka import format_reassignment
from autothrottle_lab.servers.processes import free_address

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (f"{ROOT}/services/autothrottle/", f"{ROOT}/clients/")
WITHIN_SECONDS = 60.0
_CYCLES_SECONDS = 5.0
"""Time in which the cycles of a start or of an event end. They take less than a second."""


@dataclass(frozen=True, slots=True)
class EventPath:
    """What serves one event."""

    name: str
    threads: tuple[str, ...]
    """Names of threads that serve it."""
    methods: tuple[str, ...]
    """Beginnings of the names of gRPC methods that serve it."""
    writer: str
    """Beginning of the name of the gRPC method that writes to ZooKeeper."""
    nodes: str
    """Beginning of the paths of the znodes, the first of which is written at the end of the path."""


REASSIGNMENT = EventPath(
    "a reassignment to its first throttle",
    # The watcher of discovery, the planner's watch on discovery, and the planner's loop.
    ("zookeeper-snapshots", "snapshot-watch", "planner"),
    # Without GetFetchSettings: another thread reads these settings, and no cycle waits for them.
    (
        "/autothrottle.v1.DiscoveryService/GetSnapshot",
        "/autothrottle.v1.DiscoveryService/WatchSnapshots",
        "/autothrottle.v1.DiscoveryService/GetQuotaState",
        "/autothrottle.v1.DiscoveryService/GetClients",
        "/autothrottle.v1.ApplierService/",
    ),
    "/autothrottle.v1.ApplierService/",
    f"{KafkaPaths().configs}/",
)
OVERRIDE = EventPath(
    "an HTTP override to its znode",
    # The HTTP server, and the thread in which it calls the admin service.
    ("gateway-http", "AnyIO worker thread"),
    ("/autothrottle.v1.AdminService/SetOverride",),
    "/autothrottle.v1.AdminService/SetOverride",
    OwnPaths().overrides,
)
PATHS = (REASSIGNMENT, OVERRIDE)


class Recorder:
    """The files whose functions were called since `start`, in all threads that began after `install`."""

    def __init__(self) -> None:
        self._path: EventPath | None = None
        self._process: set[str] = set()
        self._until_write: set[str] = set()
        self._before_write: set[str] = set()
        self._rpc_names: dict[int, str] = {}
        """Id of an event of the gRPC server -> the method that it calls."""
        self._served = threading.local()
        self.results: dict[EventPath, tuple[Collection[str], Collection[str]]] = {}
        """Path -> (files of the path, files of the process)."""

    def install(self) -> None:
        """Profile this thread and all that start later."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def start(self, path: EventPath) -> None:
        self._process, self._until_write, self._before_write = set(), set(), set()
        self._path = path

    def stop(self) -> None:
        """Store the files relative to the project, without packages' own modules."""
        path, self._path = self._path, None
        assert path is not None
        self.results[path] = (_own(self._until_write), _own(self._process))

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if code.co_filename == grpc._server.__file__:
            self._note_server(frame, event)
        elif event == "return" and code.co_name == "commit_async" and code.co_filename == kazoo.client.__file__:
            self._note_write(frame.f_locals["self"].operations)
        elif event == "call" and code.co_filename.startswith(SOURCES) and (path := self._path) is not None:
            self._process.add(code.co_filename)
            if threading.current_thread().name in path.threads or self._method().startswith(path.methods):
                self._before_write.add(code.co_filename)

    def _note_server(self, frame: FrameType, event: str) -> None:
        """Follow which method the current thread of a gRPC server serves."""
        function, served = frame.f_code.co_name, self._served
        if event == "return" and getattr(served, "frame", None) is frame:
            served.frame, served.method = None, ""
        elif event == "call" and function == "_handle_call":
            rpc, registered = frame.f_locals["rpc_event"], frame.f_locals["method_with_handler"].name()
            details = rpc.call_details
            served.frame = frame
            served.method = registered or (details.method.decode() if details is not None else "")
            self._rpc_names[id(rpc)] = served.method
        elif event == "call" and function in ("_unary_response_in_pool", "_stream_response_in_pool"):
            served.frame, served.method = frame, self._rpc_names.pop(id(frame.f_locals["rpc_event"]), "")

    def _note_write(self, operations: Iterable[Any]) -> None:
        path = self._path
        if path is None or self._until_write or not self._method().startswith(path.writer):
            return
        if any(operation.path.startswith(path.nodes) for operation in operations):
            self._until_write = set(self._before_write)

    def _method(self) -> str:
        return getattr(self._served, "method", "")


def _own(files: Collection[str]) -> Collection[str]:
    return sorted(
        file.removeprefix(f"{ROOT}/") for file in files if "_pb2" not in file and not file.endswith("__init__.py")
    )


class Brokers(SimulatedStage):
    """ZooKeeper, simulated brokers and a Datadog emulator; the services run in this process."""

    datadog_url = ""

    def start_services(self, datadog_url: str, options: Mapping[str, str]) -> None:
        self.datadog_url = datadog_url


def drive(brokers: Brokers, recorder: Recorder, api: str) -> None:
    """Cause both events, one after the other, and end the program."""
    try:
        until(lambda: bool(brokers.leader_address()) and _answers(f"http://{api}/readyz"), "the program is ready")
        time.sleep(_CYCLES_SECONDS)
        recorder.start(REASSIGNMENT)
        brokers.client.create(KafkaPaths().reassign_partitions, format_reassignment(brokers.targets))
        until(lambda: bool(brokers.throttled()), "a throttle is set")
        recorder.stop()
        time.sleep(_CYCLES_SECONDS)
        recorder.start(OVERRIDE)
        url = f"http://{api}/throttle/{DEMO_NEW_BROKER}?rate=20"
        urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=WITHIN_SECONDS).close()
        node = OwnPaths().override(DEMO_NEW_BROKER)
        until(lambda: brokers.client.exists(node) is not None, "the override is stored")
        recorder.stop()
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def until(condition: Callable[[], bool], name: str) -> None:
    """Wait for a condition.

    Raises:
        TimeoutError: it did not become true within `WITHIN_SECONDS`.
    """
    deadline = time.monotonic() + WITHIN_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name}: not within {WITHIN_SECONDS:g} s")
        time.sleep(0.005)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def main() -> int:
    """Run the program and print the number of files of each path."""
    parser = argparse.ArgumentParser(prog="python -m tests.quality.path_trace", description=main.__doc__)
    parser.add_argument(
        "--list", action="store_true", help="also print the files; those beside the path in parentheses"
    )
    arguments = parser.parse_args()
    recorder, api = Recorder(), free_address()
    with ExitStack() as stack:
        brokers = Brokers(Interruption(), stack, {})
        brokers.build(lambda line: None)
        os.environ |= {"AUTOTHROTTLE_API_KEY": API_KEY, "AUTOTHROTTLE_APP_KEY": APP_KEY}
        recorder.install()
        threading.Thread(target=drive, args=(brokers, recorder, api)).start()
        options = {
            "zk-addr": brokers.zookeeper.connect,
            "datadog-url": brokers.datadog_url,
            "api-listen": api,
            "grpc-listen": free_address(),
            "interval": "300",
        }
        status = autothrottle(["run", *(f"--{name}={value}" for name, value in options.items())])
        sys.setprofile(None)
    for path, (files, files_of_process) in recorder.results.items():
        print(f"{path.name}: {len(files)} files on the path, {len(files_of_process)} in the process")
        if arguments.list:
            print("\n".join(f"  {file}" if file in files else f"  ({file})" for file in files_of_process))
    return status or int(len(recorder.results) < len(PATHS))


if __name__ == "__main__":
    sys.exit(main())
