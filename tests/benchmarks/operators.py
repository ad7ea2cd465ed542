"""Clients that watch cycles, and others that call at once when they get SIGUSR1.

A program of its own, `python -m tests.benchmarks.operators PLANNER ADMIN WATCHERS CALLERS`, with the lowest priority:
what the services have to do for the clients is in a figure, what the clients do themselves is kept out of it as far as
the machine allows. Every client has a connection of its own, and answers are not decoded. It says `ready` when all
watches stand, and after each round of calls how many failed and how long they took.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import threading
import time
from typing import Any

import grpc

from autothrottle.v1 import admin_pb2, admin_pb2_grpc, planner_pb2, planner_pb2_grpc

OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 64 * 1024 * 1024)]
FIRST_BROKER = 900_001
"""Whose overrides are set: none of the cluster's."""
CALL_SECONDS = 30


class Watcher(threading.Thread):
    """Follows the cycles for ever."""

    def __init__(self, planner: str, standing: threading.Semaphore) -> None:
        super().__init__(daemon=True)
        self._planner, self._standing = planner, standing

    def run(self) -> None:
        """Receive, and keep nothing."""
        channel = grpc.insecure_channel(self._planner, options=OPTIONS)
        watch: Any = channel.unary_stream("/autothrottle.v1.PlannerService/WatchCycles")
        for number, _ in enumerate(watch(b"")):
            if not number:
                self._standing.release()


class Caller(threading.Thread):
    """Makes one call in each round: the state, the list of overrides, or an override, by turns."""

    def __init__(self, number: int, planner: str, admin: str, start: threading.Barrier, end: threading.Barrier) -> None:
        super().__init__(daemon=True)
        self._number, self._start_of_round, self._end_of_round = number, start, end
        self._planner = planner_pb2_grpc.PlannerServiceStub(grpc.insecure_channel(planner, options=OPTIONS))
        self._admin = admin_pb2_grpc.AdminServiceStub(grpc.insecure_channel(admin, options=OPTIONS))
        self.seconds = 0.0
        self.failure = ""

    def run(self) -> None:
        """Wait for the rounds."""
        self._admin.ListOverrides(admin_pb2.ListOverridesRequest(), timeout=CALL_SECONDS)  # connects
        self._planner.GetState(planner_pb2.GetStateRequest(without_cycle=True), timeout=CALL_SECONDS)
        while True:
            self._start_of_round.wait()
            begun = time.monotonic()
            try:
                self._call()
            except grpc.RpcError as error:
                self.failure = str(error)
            self.seconds = time.monotonic() - begun
            self._end_of_round.wait()

    def _call(self) -> None:
        if self._number % 3 == 0:
            self._planner.GetState(planner_pb2.GetStateRequest(), timeout=CALL_SECONDS)
        elif self._number % 3 == 1:
            self._admin.ListOverrides(admin_pb2.ListOverridesRequest(), timeout=CALL_SECONDS)
        else:
            override = admin_pb2.Override(broker_id=FIRST_BROKER + self._number, rate_bytes_per_second=50_000_000)
            self._admin.SetOverride(admin_pb2.SetOverrideRequest(override=override), timeout=CALL_SECONDS)


def main(planner: str, admin: str, watchers: int, callers: int) -> None:
    """Watch, and call when told to."""
    os.nice(19)
    asked = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: asked.set())
    standing = threading.Semaphore(0)
    for _ in range(watchers):
        Watcher(planner, standing).start()
    start, end = threading.Barrier(callers + 1), threading.Barrier(callers + 1)
    calling = [Caller(number, planner, admin, start, end) for number in range(callers)]
    for caller in calling:
        caller.start()
    for _ in range(watchers):
        standing.acquire()
    print("ready", flush=True)
    while True:
        while not asked.wait(0.01):  # a signal comes through between two waits
            pass
        asked.clear()
        start.wait()
        end.wait()
        took = [caller.seconds for caller in calling]
        failures = [caller.failure for caller in calling if caller.failure]
        print(f"called {len(failures)} {statistics.median(took):.3f} {max(took):.3f} {failures[:1]}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
