"""Answers of the admin service as JSON: a large one is converted in a process of its own.

The gateway may share its process with the loop that decides throttles (`autothrottle run`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from google.protobuf.message import Message
from starlette.responses import Response

from autothrottle.gateway import rest
from autothrottle.gateway.responses import document
from autothrottle.runtime.child_processes import ChildProcesses

_LARGE = 256 * 1024
"""Size in bytes from which an answer is converted in a process: it would take 0.1 s, and starting a process 0.5 s."""

_TIMEOUT = timedelta(seconds=60)

_PROCESSES = ChildProcesses(
    "autothrottle.gateway.json_process", "conversions to JSON", "ask for less at a time, or use the gRPC API"
)


@dataclass(frozen=True, slots=True)
class EncodedAnswer:
    """A message for the other process."""

    kind: str
    """Full name of its type."""
    content: bytes


def answer(message: Message) -> Response:
    """Return the response with an answer of the admin service.

    Raises:
        Invalid, Unavailable: a large answer cannot be converted now.
    """
    if message.ByteSize() < _LARGE:
        return document(200, *rest.response(message))
    encoded = EncodedAnswer(message.DESCRIPTOR.full_name, message.SerializeToString())
    return Response(_PROCESSES.run(encoded, _TIMEOUT), 200, media_type="application/json")
