"""Bulk reads and bulk watches: the two requests of ZooKeeper's protocol that kazoo lacks.

kazoo takes 130 µs per node, which is 13 s for the states of 100,000 partitions; a bulk read takes a few µs per node.
The requests use kazoo's own connection, in order with all its other requests.

Source: MultiOperationRecord, MultiResponse and SetWatches of ZooKeeper 3.9. Servers support bulk reads from 3.6 on.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, NoAuthError, NoNodeError, UnimplementedError

from autothrottle.adapters.concurrency.deadlines import seconds_left

BATCH_NODES = 1_000
"""Limit of nodes per request. Their paths are far below the server's 1 MB limit, and it is busy for milliseconds."""

_GET_DATA = 4
_END = struct.pack("!iBi", -1, 1, -1)
_READ_HEADER = struct.pack("!iBi", _GET_DATA, 0, -1)
_LENGTH = struct.Struct("!i")
_RESULT = struct.Struct("!iBii")
"""(operation type, done flag, error code), then the length of the data, or the error code again."""
_STAT = struct.Struct("!8xq16xi32x")
"""(zxid of the last write of the data, version of the data)."""


Node = tuple[bytes | None, int, int]
"""(data, zxid of the last write, version). A plain tuple, because the garbage collector stops tracking those; 100,000
tracked objects double the time of a read."""

DENIED: Node = (b"(ZooKeeper denies access to this node)", 0, -1)
"""Stands for a node that ZooKeeper does not let us read. No parser accepts it, so that the node counts as unreadable
and not as missing, and no write to it succeeds."""


@dataclass(frozen=True, slots=True, repr=False)
class _MultiRead:
    """Reads the data of many nodes: None for each missing one, `DENIED` for each that may not be read."""

    type: ClassVar[int] = 22
    paths: Sequence[str]

    def serialize(self) -> bytes:
        return b"".join(_READ_HEADER + _text(path) + b"\0" for path in self.paths) + _END

    def deserialize(self, buffer: bytes, offset: int) -> list[Node | None]:
        nodes: list[Node | None] = []
        for _ in self.paths:
            kind, _, error, length = _RESULT.unpack_from(buffer, offset)
            offset += _RESULT.size
            if kind != _GET_DATA:
                if error not in (NoNodeError.code, NoAuthError.code):
                    raise EXCEPTIONS[error]()
                nodes.append(None if error == NoNodeError.code else DENIED)
                continue
            end = offset + max(length, 0)
            mzxid, version = _STAT.unpack_from(buffer, end)
            nodes.append((bytes(buffer[offset:end]) if length >= 0 else None, mzxid, version))
            offset = end + _STAT.size
        return nodes


@dataclass(frozen=True, slots=True, repr=False)
class _SetWatches:
    """Watches the data of many nodes. For a node written after `zxid`, or missing, the event comes at once."""

    type: ClassVar[int] = 101
    zxid: int
    paths: Sequence[str]

    def serialize(self) -> bytes:
        data = b"".join(map(_text, self.paths))
        # No watches for the creation of nodes, and none for children.
        return struct.pack("!qi", self.zxid, len(self.paths)) + data + struct.pack("!ii", 0, 0)

    def deserialize(self, buffer: bytes, offset: int) -> None:
        """The answer has no content."""


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _LENGTH.pack(len(encoded)) + encoded


def get_many_async(client: KazooClient, paths: Sequence[str]) -> Any:
    """Request the data of at most `BATCH_NODES` nodes; the answer is a list of `Node`, with None for a missing node.

    The answer raises `UnimplementedError` if the server is older than 3.6.
    """
    return _sent(client, _MultiRead(paths))


def read_nodes(client: KazooClient, paths: Sequence[str], deadline: float) -> list[Node | None]:
    """Read any number of nodes in batches; None: the node does not exist.

    Args:
        client: connected.
        paths: of the nodes.
        deadline: on the monotonic clock.
    """
    batches = [paths[start : start + BATCH_NODES] for start in range(0, len(paths), BATCH_NODES)]
    pending = [(batch, get_many_async(client, batch)) for batch in batches]
    return [node for batch, answer in pending for node in nodes_of(client, batch, answer, deadline)]


def nodes_of(client: KazooClient, paths: Sequence[str], answer: Any, deadline: float) -> Sequence[Node | None]:
    """Wait for the answer of `get_many_async`. If the server is older than 3.6, read each node separately."""
    try:
        nodes: Sequence[Node | None] = answer.get(timeout=seconds_left(deadline))
        return nodes
    except UnimplementedError:
        return _read_singly(client, paths, deadline)


def _read_singly(client: KazooClient, paths: Sequence[str], deadline: float) -> list[Node | None]:
    pending = [client.get_async(path) for path in paths]
    return [_node(answer, deadline) for answer in pending]


def _node(answer: Any, deadline: float) -> Node | None:
    try:
        data, stat = answer.get(timeout=seconds_left(deadline))
    except NoNodeError:
        return None
    except NoAuthError:
        return DENIED
    return data, stat.mzxid, stat.version


def watch_many_async(
    client: KazooClient, paths: Sequence[str], watch: Callable[[Any], None], zxid: int, is_alone: bool = False
) -> Any:
    """Watch the data of at most `BATCH_NODES` nodes that were read at `zxid` or later.

    No change is missed: for a node that was written after `zxid`, or that is missing, the watch fires at once.

    Args:
        client: connected.
        paths: of the nodes.
        watch: called with each event.
        zxid: the server's last transaction before the read.
        is_alone: True if no other watch of this client ever covers these paths. They then share one set in memory;
            100,000 separate sets take 20 MB.
    """
    # Register as kazoo does, and before the request, because the first events arrive before its answer.
    if is_alone:
        shared = {watch}
        client._data_watchers.update({path: shared for path in paths})
    else:
        for path in paths:
            client._data_watchers[path].add(watch)
    return _sent(client, _SetWatches(zxid, paths))


def _sent(client: KazooClient, request: _MultiRead | _SetWatches) -> Any:
    answer = client.handler.async_result()
    client._call(request, answer)
    return answer
