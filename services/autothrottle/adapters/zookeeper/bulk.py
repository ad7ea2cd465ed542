"""Many reads in one request, and many watches in one: the two requests of ZooKeeper's protocol that kazoo lacks.

kazoo takes 130 µs for each node that it reads, which is 13 s for the states of 100,000 partitions; here a node takes a
few. What is sent goes through kazoo's own connection, in order with everything else.

Source: MultiOperationRecord, MultiResponse and SetWatches of ZooKeeper 3.9; servers read many at once from 3.6 on.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, NoNodeError, UnimplementedError

from autothrottle.adapters.deadlines import seconds_left

BATCH_NODES = 1_000
"""In one request: their paths are far below the 1 MB that a server takes, and it is busy for some milliseconds."""

_GET_DATA = 4
_END = struct.pack("!iBi", -1, 1, -1)
_READ_HEADER = struct.pack("!iBi", _GET_DATA, 0, -1)
_LENGTH = struct.Struct("!i")
_RESULT = struct.Struct("!iBii")
"""(kind, done, error) and the length of the data, or once more the error."""
_STAT = struct.Struct("!8xq16xi32x")
"""The transaction that wrote the data last, and the data's version."""


Node = tuple[bytes | None, int, int]
"""What a node holds, the transaction that wrote it last, and its version. A plain tuple: the garbage collector forgets
those, and 100,000 objects that it does not forget double the time of a reading."""


@dataclass(frozen=True, slots=True, repr=False)
class _MultiRead:
    """The data of many nodes; the answer has None for each that is not there, and any other refusal is an error."""

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
                if error != NoNodeError.code:
                    raise EXCEPTIONS[error]()
                nodes.append(None)
                continue
            end = offset + max(length, 0)
            mzxid, version = _STAT.unpack_from(buffer, end)
            nodes.append((bytes(buffer[offset:end]) if length >= 0 else None, mzxid, version))
            offset = end + _STAT.size
        return nodes


@dataclass(frozen=True, slots=True, repr=False)
class _SetWatches:
    """Watches of the data of many nodes; for what was written after `zxid`, or is gone, the event comes at once."""

    type: ClassVar[int] = 101
    zxid: int
    paths: Sequence[str]

    def serialize(self) -> bytes:
        data = b"".join(map(_text, self.paths))
        # No watches for the creation of nodes, none for children.
        return struct.pack("!qi", self.zxid, len(self.paths)) + data + struct.pack("!ii", 0, 0)

    def deserialize(self, buffer: bytes, offset: int) -> None:
        """Take the answer: it says nothing."""


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _LENGTH.pack(len(encoded)) + encoded


def get_many_async(client: KazooClient, paths: Sequence[str]) -> Any:
    """Ask for the data of at most `BATCH_NODES` nodes; the answer is a list of `Node`, None where none is there.

    The answer is an error, `UnimplementedError`, when the server is older than 3.6.
    """
    return _sent(client, _MultiRead(paths))


def read_nodes(client: KazooClient, paths: Sequence[str], deadline: float) -> list[Node | None]:
    """Return what stands at each of the paths, as many at a time as the server takes; None: no node is there.

    Args:
        client: connected.
        paths: any number.
        deadline: of `time.monotonic`.
    """
    batches = [paths[start : start + BATCH_NODES] for start in range(0, len(paths), BATCH_NODES)]
    asked = [(batch, get_many_async(client, batch)) for batch in batches]
    return [node for batch, answer in asked for node in nodes_of(client, batch, answer, deadline)]


def nodes_of(client: KazooClient, paths: Sequence[str], answer: Any, deadline: float) -> Sequence[Node | None]:
    """Wait for the answer of `get_many_async`; a server older than 3.6 has none, and is asked for each node then."""
    try:
        nodes: Sequence[Node | None] = answer.get(timeout=seconds_left(deadline))
        return nodes
    except UnimplementedError:
        return _read_singly(client, paths, deadline)


def _read_singly(client: KazooClient, paths: Sequence[str], deadline: float) -> list[Node | None]:
    asked = [client.get_async(path) for path in paths]
    return [_node(answer, deadline) for answer in asked]


def _node(answer: Any, deadline: float) -> Node | None:
    try:
        data, stat = answer.get(timeout=seconds_left(deadline))
    except NoNodeError:
        return None
    return data, stat.mzxid, stat.version


def watch_many_async(
    client: KazooClient, paths: Sequence[str], watch: Callable[[Any], None], zxid: int, is_alone: bool = False
) -> Any:
    """Watch the data of at most `BATCH_NODES` nodes that were read when the server had seen `zxid`, or later.

    Nothing is missed in between: for a node that was written after `zxid`, or is gone, the watch fires at once.

    Args:
        client: connected.
        paths: of the nodes.
        watch: called with each event.
        zxid: the transaction that the server had seen.
        is_alone: whether nothing else than `watch` ever watches these paths with this client: 100,000 sets of one
            are 20 MB.
    """
    # As kazoo registers its own; before the request, since the first events come before its answer.
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
