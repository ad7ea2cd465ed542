"""Members to messages."""

from __future__ import annotations

from autothrottle.core.members import Member
from autothrottle.v1 import admin_pb2
from autothrottle.wire.times import time_to_message


def member_to_message(member: Member) -> admin_pb2.Member:
    """Return a member as a message."""
    return admin_pb2.Member(
        service=member.service,
        roles=member.roles,
        version=member.version,
        address=member.address,
        host=member.host,
        pid=member.pid,
        start_time=time_to_message(member.started),
    )
