"""Clients that watch cycles, and others that call at once when they get SIGUSR1.

A program of its own, `python -m tests.benchmarks.operators PLANNER ADMIN WATCHERS CALLERS`, with the lowest priority
and one thread: what the services have to do for the clients is in a figure, what the clients do themselves, on other
hosts, is kept out of it as far as the machine allows. (Each thread of gRPC's synchronous API wakes ten times a second.)
Every client has a connection of its own, and answers are not decoded. It says `ready` when all watches stand, and after
each round of calls how many failed and how long they took.
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

from autothrottle.runtime.priority import give_way
from autothrottle.v1 import admin_pb2

OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 64 * 1024 * 1024)]
FIRST_BROKER = 900_001
"""Whose overrides are set: none of the cluster's."""
CALL_SECONDS = 30.0

STATE = "/autothrottle.v1.PlannerService/GetState"
WATCH = "/autothrottle.v1.PlannerService/WatchCycles"
OVERRIDES = "/autothrottle.v1.AdminService/ListOverrides"
OVERRIDE = "/autothrottle.v1.AdminService/SetOverride"


async def watch(planner: str, standing: asyncio.Semaphore) -> None:
    """Follow the cycles for ever, receive, and keep nothing."""
    async with grpc.aio.insecure_channel(planner, options=OPTIONS) as channel:
        follow: Any = channel.unary_stream(WATCH)
        number = 0
        async for _ in follow(b""):
            if not number:
                standing.release()
            number += 1


class Caller:
    """Makes one call in each round: the state, the list of overrides, or an override, by turns."""

    def __init__(self, number: int, planner: str, admin: str) -> None:
        method, request = [(STATE, b""), (OVERRIDES, b""), (OVERRIDE, _override(number))][number % 3]
        address = planner if method == STATE else admin
        self._request, self._channel = request, grpc.aio.insecure_channel(address, options=OPTIONS)
        self._method: Any = self._channel.unary_unary(method)

    async def connect(self) -> None:
        """Connect, so that a round is the calls and nothing else."""
        await self._channel.channel_ready()

    async def call(self) -> float:
        """Return how long the call took, seconds."""
        begun = time.monotonic()
        await self._method(self._request, timeout=CALL_SECONDS)
        return time.monotonic() - begun


def _override(number: int) -> bytes:
    override = admin_pb2.Override(broker_id=FIRST_BROKER + number, rate_bytes_per_second=50_000_000)
    return admin_pb2.SetOverrideRequest(override=override).SerializeToString()


async def main(planner: str, admin: str, watchers: int, callers: int) -> None:
    """Watch, and call when told to."""
    give_way(19)
    asked = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, asked.set)
    standing = asyncio.Semaphore(0)
    watching = [asyncio.create_task(watch(planner, standing)) for _ in range(watchers)]
    calling = [Caller(number, planner, admin) for number in range(callers)]
    await asyncio.gather(*(caller.connect() for caller in calling), *(standing.acquire() for _ in watching))
    print("ready", flush=True)
    while True:
        await asked.wait()
        asked.clear()
        found = await asyncio.gather(*(caller.call() for caller in calling), return_exceptions=True)
        took = [one for one in found if isinstance(one, float)] or [CALL_SECONDS]
        failures = [str(one) for one in found if not isinstance(one, float)]
        print(f"called {len(failures)} {statistics.median(took):.3f} {max(took):.3f} {failures[:1]}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
