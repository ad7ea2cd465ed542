"""One caller of the gRPC API, in a process of its own: it lists overrides at a rate and reports each response.

Run it as `python -m tests.request_caller ADDRESS TOKEN RATE IN_PROGRESS SECONDS`. Each of IN_PROGRESS loops sends its
share of RATE requests per second, and waits for each response before it sends the next request. The result is one line
of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import grpc
import grpc.aio

from tests.paths import ROOT

METHOD = "/autothrottle.v1.AdminService/ListOverrides"
CALL_SECONDS = 30.0


@dataclass
class Responses:
    """What a caller saw."""

    times: list[float] = field(default_factory=list)
    """When each response arrived, in seconds since the first request."""
    latencies: list[float] = field(default_factory=list)
    """Seconds from each of these requests to its response."""
    refused: int = 0
    """Number of requests that were refused, which are not among the others."""

    def rate(self, seconds: float) -> float:
        """Responses per second over the first seconds."""
        return sum(time < seconds for time in self.times) / seconds


async def send(method: Any, period: float, first: float, until: float, begin: float, found: Responses) -> None:
    """Send a request every `period` seconds from `first`; times are on the monotonic clock."""
    due = first
    while due < until:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        sent = time.monotonic()
        try:
            await method(b"", timeout=CALL_SECONDS)
            found.times.append(time.monotonic() - begin)
            found.latencies.append(time.monotonic() - sent)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            found.refused += 1
        due = max(due + period, time.monotonic())


async def call(address: str, token: str, rate: float, in_progress: int, seconds: float) -> Responses:
    """Return the responses to a caller."""
    found = Responses()
    metadata = (("authorization", f"Bearer {token}"),)
    async with grpc.aio.insecure_channel(address) as channel:
        await channel.channel_ready()
        unary: Any = channel.unary_unary(METHOD)
        begin = time.monotonic()

        async def method(request: bytes, timeout: float) -> None:
            await unary(request, timeout=timeout, metadata=metadata)

        starts = (begin + number / rate for number in range(in_progress))
        await asyncio.gather(
            *(send(method, in_progress / rate, start, begin + seconds, begin, found) for start in starts)
        )
    return found


async def start(address: str, token: str, rate: float, in_progress: int, seconds: float) -> asyncio.subprocess.Process:
    """Start this program."""
    arguments = map(str, (address, token, rate, in_progress, seconds))
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.request_caller", *arguments, stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )


def responses(*callers: tuple[str, str, float, int, float]) -> list[Responses]:
    """Run callers at the same time, each with the arguments of the program; return what each of them saw."""

    async def one(arguments: tuple[str, str, float, int, float]) -> Responses:
        process = await start(*arguments)
        printed, _ = await process.communicate()
        assert process.returncode == 0
        return Responses(**json.loads(printed))

    async def run() -> Sequence[Responses]:
        return await asyncio.gather(*map(one, callers))

    return [*asyncio.run(run())]


if __name__ == "__main__":
    address, token, rate, in_progress, seconds = sys.argv[1:]
    print(json.dumps(asdict(asyncio.run(call(address, token, float(rate), int(in_progress), float(seconds))))))
