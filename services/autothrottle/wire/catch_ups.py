"""Catch-ups to messages."""

from __future__ import annotations

from autothrottle.core.catch_up import CatchUp
from autothrottle.v1 import admin_pb2
from autothrottle.wire.times import time_to_message


def catch_up_to_message(catch_up: CatchUp) -> admin_pb2.CatchUp:
    """Return a catch-up as a message."""
    return admin_pb2.CatchUp(
        broker_id=catch_up.broker_id,
        author=catch_up.author,
        time=None if catch_up.time is None else time_to_message(catch_up.time),
    )
