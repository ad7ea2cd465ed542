"""Clients that watch cycles, and clients that make concurrent calls on SIGUSR1.

Run it as `python -m tests.benchmarks.operators PLANNER ADMIN WATCHERS CALLERS`. It uses one thread with the lowest
priority: the figures should contain the work of the services for the clients, but not the work of the clients, which
run on other hosts in production. (Each thread of gRPC's synchronous API wakes ten times a second.)

Every client has its own connection and does not decode responses. The program prints `ready` when all watches are
open. After each round of calls it prints the number of failed calls and the durations.
"""

from __future__ import annotations

import asyncio
import signal
import statistics
import sys
import time
from typing import Any

import grpc
import grpc.aio

from autothrottle.runtime.tuning import give_way
from autothrottle.v1 import admin_pb2

OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 64 * 1024 * 1024)]
FIRST_BROKER = 900_001
"""First broker id for overrides. The cluster has no broker with these ids."""
CALL_SECONDS = 30.0

STATE = "/autothrottle.v1.PlannerService/GetState"
WATCH = "/autothrottle.v1.PlannerService/WatchCycles"
OVERRIDES = "/autothrottle.v1.AdminService/ListOverrides"
OVERRIDE = "/autothrottle.v1.AdminService/SetOverride"


async def watch(planner: str, opened: asyncio.Semaphore) -> None:
    """Watch cycles and discard them. `opened` is released at the first message."""
    async with grpc.aio.insecure_channel(planner, options=OPTIONS) as channel:
        follow: Any = channel.unary_stream(WATCH)
        messages = 0
        async for _ in follow(b""):
            if not messages:
                opened.release()
            messages += 1


class Caller:
    """Makes one call per round: GetState, ListOverrides or SetOverride, depending on its number."""

    def __init__(self, number: int, planner: str, admin: str) -> None:
        method, request = [(STATE, b""), (OVERRIDES, b""), (OVERRIDE, _override(number))][number % 3]
        address = planner if method == STATE else admin
        self._request, self._channel = request, grpc.aio.insecure_channel(address, options=OPTIONS)
        self._method: Any = self._channel.unary_unary(method)

    async def connect(self) -> None:
        """Connect in advance, so that a round contains only calls."""
        await self._channel.channel_ready()

    async def call(self) -> float:
        """Make the call and return its duration in seconds."""
        begun = time.monotonic()
        await self._method(self._request, timeout=CALL_SECONDS)
        return time.monotonic() - begun


def _override(number: int) -> bytes:
    override = admin_pb2.Override(broker_id=FIRST_BROKER + number, rate_bytes_per_second=50_000_000)
    return admin_pb2.SetOverrideRequest(override=override).SerializeToString()


async def main(planner: str, admin: str, watchers: int, callers: int) -> None:
    """Open all watches, then make one round of calls for each SIGUSR1."""
    give_way(19)
    requested = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, requested.set)
    opened = asyncio.Semaphore(0)
    watching = [asyncio.create_task(watch(planner, opened)) for _ in range(watchers)]
    calling = [Caller(number, planner, admin) for number in range(callers)]
    await asyncio.gather(*(caller.connect() for caller in calling), *(opened.acquire() for _ in watching))
    print("ready", flush=True)
    while True:
        await requested.wait()
        requested.clear()
        results = await asyncio.gather(*(caller.call() for caller in calling), return_exceptions=True)
        durations = [result for result in results if isinstance(result, float)] or [CALL_SECONDS]
        failures = [str(result) for result in results if not isinstance(result, float)]
        print(
            f"called {len(failures)} {statistics.median(durations):.3f} {max(durations):.3f} {failures[:1]}", flush=True
        )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
