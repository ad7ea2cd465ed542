"""Points in time to messages and back; always UTC, exact to the microsecond."""

from __future__ import annotations

from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp


def time_to_message(time: datetime) -> Timestamp:
    """Return a point in time as a message.

    >>> time_to_message(datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC))
    seconds: 1
    nanos: 5000
    <BLANKLINE>
    """
    message = Timestamp()
    message.FromDatetime(time)
    return message


def time_from_message(message: Timestamp) -> datetime:
    """Return the point in time that a message holds, UTC."""
    return message.ToDatetime(tzinfo=UTC)
