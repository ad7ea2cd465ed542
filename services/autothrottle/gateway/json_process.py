"""The program of the processes that convert large answers to JSON, which takes seconds for 100,000 partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autothrottle.runtime.child_processes import answer_work

if TYPE_CHECKING:
    from autothrottle.gateway.large_answers import EncodedAnswer


def as_json(answer: EncodedAnswer) -> bytes:
    """Return an answer as a JSON document."""
    from google.protobuf.descriptor_pool import Default
    from google.protobuf.message_factory import GetMessageClass

    from autothrottle.gateway import rest
    from autothrottle.gateway.responses import json_text
    from autothrottle.v1 import admin_pb2, placement_pb2, quotas_pb2

    assert admin_pb2 and placement_pb2 and quotas_pb2, "they add their messages to the pool"
    kind = GetMessageClass(Default().FindMessageTypeByName(answer.kind))
    value, _ = rest.response(kind.FromString(answer.content))
    return json_text(value).encode()


if __name__ == "__main__":
    answer_work(as_json)
