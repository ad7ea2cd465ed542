"""Members as messages, and as the client reads them."""

from __future__ import annotations

import dataclasses

from autothrottle.core.members import Member
from autothrottle.v1 import admin_pb2
from autothrottle.wire.members import member_to_message
from autothrottle_client.model import cluster_state_from_message
from tests.builders import NOON


def test_the_client_reads_what_a_member_said() -> None:
    said = Member("run", ("discovery", "planner"), "1.2.3", "unix:/run/a.sock", "host1", 2**22, NOON)
    response = admin_pb2.GetClusterStateResponse(members=[member_to_message(said)])
    (read,) = cluster_state_from_message(response).members
    assert dataclasses.astuple(read) == dataclasses.astuple(said)
