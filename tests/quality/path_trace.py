"""Prints the source files that run between an event and its write, in `autothrottle run` with a real ZooKeeper.

python -m tests.quality.path_trace [--list]

1. From a reassignment, as Kafka's own tool writes it, to the first throttle.
2. From `POST /throttle/<broker>` to the override's znode.

All calls pass the gRPC surface. Only modules of services/autothrottle and clients count, and of those only the ones
with a function that ran in the meantime, in any thread.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

from autothrottle.__main__ import main as autothrottle
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle_lab.demo.scenario import DEMO_NEW_BROKER
from autothrottle_lab.demo.simulated_stage import SimulatedStage
from autothrottle_lab.demo.stage import Interruption
from autothrottle_lab.emulators.datadog import API_KEY, APP_KEY
from autothrottle_lab.servers.processes import free_address

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (f"{ROOT}/services/autothrottle/", f"{ROOT}/clients/")
WITHIN_SECONDS = 60.0


class Recorder:
    """The files whose functions were called since `start`, in all threads that began after `install`."""

    def __init__(self) -> None:
        self._files: set[str] | None = None

    def install(self) -> None:
        """Profile this thread and all that start later."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def start(self) -> None:
        self._files = set()

    def stop(self) -> Collection[str]:
        """Return the files relative to the project, without packages' own modules."""
        files, self._files = self._files or set(), None
        return sorted(
            file.removeprefix(f"{ROOT}/")
            for file in files
            if file.startswith(SOURCES) and "_pb2" not in file and not file.endswith("__init__.py")
        )

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and (files := self._files) is not None:
            files.add(frame.f_code.co_filename)


class Brokers(SimulatedStage):
    """ZooKeeper, simulated brokers and a Datadog emulator; the services run in this process."""

    datadog_url = ""

    def start_services(self, datadog_url: str, options: Mapping[str, str]) -> None:
        self.datadog_url = datadog_url


def drive(brokers: Brokers, recorder: Recorder, api: str, paths: dict[str, Collection[str]]) -> None:
    """Cause both events, one after the other, and end the program."""
    try:
        until(lambda: bool(brokers.leader_address()) and _answers(f"http://{api}/readyz"), "the program is ready")
        recorder.start()
        brokers.submit_reassignment()
        until(lambda: bool(brokers.throttled()), "a throttle is set")
        paths["a reassignment to its first throttle"] = recorder.stop()
        time.sleep(5.0)  # the cycle ends
        recorder.start()
        url = f"http://{api}/throttle/{DEMO_NEW_BROKER}?rate=20"
        urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=WITHIN_SECONDS).close()
        node = OwnPaths().override(DEMO_NEW_BROKER)
        until(lambda: brokers.client.exists(node) is not None, "the override is stored")
        paths["an HTTP override to its znode"] = recorder.stop()
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
    parser.add_argument("--list", action="store_true", help="also print the files")
    arguments = parser.parse_args()
    recorder, paths, api = Recorder(), dict[str, Collection[str]](), free_address()
    with ExitStack() as stack:
        brokers = Brokers(Interruption(), stack, {})
        brokers.build(lambda line: None)
        os.environ |= {"AUTOTHROTTLE_API_KEY": API_KEY, "AUTOTHROTTLE_APP_KEY": APP_KEY}
        recorder.install()
        threading.Thread(target=drive, args=(brokers, recorder, api, paths)).start()
        options = {
            "zk-addr": brokers.zookeeper.connect,
            "datadog-url": brokers.datadog_url,
            "api-listen": api,
            "grpc-listen": free_address(),
            "interval": "300",
        }
        status = autothrottle(["run", *(f"--{name}={value}" for name, value in options.items())])
        sys.setprofile(None)
    for name, files in paths.items():
        print(f"{name}: {len(files)} files")
        if arguments.list:
            print("\n".join(f"  {file}" for file in files))
    return status or int(len(paths) < 2)


if __name__ == "__main__":
    sys.exit(main())
