"""Server-sent event streams: their limit, and clients that do not read. The type to know is `EventStream`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from sse_starlette import EventSourceResponse
from sse_starlette.sse import SendTimeoutError
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from autothrottle.runtime.call_limits import LimitReached, Slots
from autothrottle.runtime.connections import share_of_descriptors

MOST_STREAMS = 256
"""Event streams, half of them for one host."""

SEND_SECONDS = 30.0
"""A stream whose client does not read for so long is dropped. Its page connects again and gets the newest versions."""

_DROP_SECONDS = 0.05
"""Time for the server to notice that a connection is dropped."""

log = logging.getLogger(__name__)


class StreamingConnection(Protocol):
    """The connection of a stream."""

    def become_stream(self) -> None:
        """Count the connection as a stream only, without the time limit of requests."""

    def drop(self) -> None:
        """Close it at once, with what is not sent yet."""


class EventStreams:
    """The limits of a server's event streams, which count separately from its requests and connections."""

    def __init__(self) -> None:
        self.slots = Slots("gateway", "open event streams", share_of_descriptors(MOST_STREAMS, 8))
        self.send_seconds = SEND_SECONDS


class EventStream(EventSourceResponse):
    """A response that sends encoded events."""

    def __init__(
        self,
        streams: EventStreams,
        events: AsyncIterator[bytes],
        host: str,
        connection: StreamingConnection | None,
        refusal: Callable[[str], Response],
    ) -> None:
        """Prepare the response.

        Args:
            streams: the limits of its server.
            events: the encoded events.
            host: host of the client.
            connection: the client's connection; None: the server has no limits for connections.
            refusal: returns the response, instead of the stream, when the limit is reached.
        """
        super().__init__(events, send_timeout=streams.send_seconds)
        self._slots, self._host, self._connection, self._refusal = streams.slots, host, connection, refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._slots.slot(self._host):
                if self._connection is not None and scope["method"] != "HEAD":
                    self._connection.become_stream()
                await super().__call__(scope, receive, send)
        except LimitReached as error:
            await self._refusal(str(error))(scope, receive, send)
        except SendTimeoutError:
            if self._connection is not None:
                self._connection.drop()
                await asyncio.sleep(_DROP_SECONDS)
