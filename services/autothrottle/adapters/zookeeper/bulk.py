"""Bulk reads, bulk watches and watches of whole subtrees: requests of ZooKeeper's protocol that kazoo lacks.

kazoo takes 130 µs per node, which is 13 s for the states of 100,000 partitions; a bulk read takes a few µs per node.
The requests use kazoo's own connection, in order with all its other requests.

Source: MultiOperationRecord, MultiResponse, SetWatches, AddWatchRequest and RemoveWatchesRequest of ZooKeeper 3.9.
Servers support bulk reads and watches of subtrees from 3.6 on. Older ones answer that they do not, and close the
connection.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, repeat
from typing import Any, ClassVar
from weakref import WeakSet

from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, MarshallingError, NoAuthError, NoNodeError, UnimplementedError
from kazoo.protocol.serialization import Watch
from kazoo.protocol.states import Callback

from autothrottle.adapters.concurrency.subscriptions import seconds_left
from autothrottle.adapters.state_store.nodes import Node as Node

BATCH_NODES = 1_000
"""Limit of nodes per request. Their paths are far below the server's 1 MB limit, and it is busy for milliseconds."""

_GET_DATA = 4
_END = struct.pack("!iBi", -1, 1, -1)
_ADD_WATCH, _REMOVE_WATCHES = 106, 18
_PERSISTENT_RECURSIVE, _ANY_WATCH = 1, 3
_LENGTH = struct.Struct("!i")
_RESULT = struct.Struct("!iBii")
"""(operation type, done flag, error code), then the length of the data, or the error code again."""
_STAT = struct.Struct("!8xq16xi32x")
"""(zxid of the last write of the data, version of the data)."""


DENIED: Node = (b"(ZooKeeper denies access to this node)", 0, -1)
"""Stands for a node that ZooKeeper does not let us read. No parser accepts it, so that the node counts as unreadable
and not as missing, and no write to it succeeds."""


_without_bulk_reads: WeakSet[KazooClient] = WeakSet()
"""Clients whose server is older than 3.6. They do not ask again, because each time would cost the connection."""

WITHOUT_SUBTREE_WATCHES = (UnimplementedError, MarshallingError)
"""Errors of servers that cannot watch subtrees: they are older than 3.6, or have another manager of watches."""


@dataclass(frozen=True, slots=True, repr=False)
class _MultiRead:
    """Reads the data of many nodes: None for each missing one, `DENIED` for each that may not be read."""

    type: ClassVar[int] = 22
    paths: Sequence[str]
    is_data_only: bool = False
    """Whether the answer has the data of each node (b"" for null data) in place of a `Node`."""

    def serialize(self) -> bytes:
        texts = [path.encode() for path in self.paths]
        return b"".join(chain.from_iterable(zip(map(_read_header, map(len, texts)), texts, repeat(b"\0")))) + _END

    def deserialize(self, buffer: bytes, offset: int) -> list[Any]:
        nodes: list[Any] = []
        is_data_only, result, stat = self.is_data_only, _RESULT.unpack_from, _STAT.unpack_from
        for _ in self.paths:
            kind, _, error, length = result(buffer, offset)
            offset += _RESULT.size
            if kind != _GET_DATA:
                if error not in (NoNodeError.code, NoAuthError.code):
                    raise EXCEPTIONS[error]()
                denied = DENIED[0] if is_data_only else DENIED
                nodes.append(None if error == NoNodeError.code else denied)
                continue
            end = offset + length if length > 0 else offset
            if is_data_only:
                nodes.append(buffer[offset:end])
            else:
                nodes.append((buffer[offset:end] if length >= 0 else None, *stat(buffer, end)))
            offset = end + _STAT.size
        return nodes


@cache
def _read_header(path_length: int) -> bytes:
    return struct.pack("!iBii", _GET_DATA, 0, -1, path_length)


@dataclass(frozen=True, slots=True, repr=False)
class _SetWatches:
    """Watches the data of many nodes. For a node written after `zxid`, or missing, the event comes at once."""

    type: ClassVar[int] = 101
    zxid: int
    paths: Sequence[str]
    missing: Sequence[str] = ()
    """Nodes to watch for their creation; if one exists, the event comes at once."""

    def serialize(self) -> bytes:
        lists = (self.paths, self.missing, ())  # no watches for children
        return struct.pack("!q", self.zxid) + b"".join(
            _LENGTH.pack(len(paths)) + b"".join(map(_text, paths)) for paths in lists
        )

    def deserialize(self, buffer: bytes, offset: int) -> None:
        """The answer has no content."""


@dataclass(frozen=True, slots=True, repr=False)
class _SubtreeWatch:
    """Adds or removes the watch of a path and of all nodes below it, which ends with the connection."""

    type: int
    path: str
    mode: int

    def serialize(self) -> bytes:
        return _text(self.path) + _LENGTH.pack(self.mode)

    def deserialize(self, buffer: bytes, offset: int) -> None:
        """The answer has no content."""


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _LENGTH.pack(len(encoded)) + encoded


def get_many_async(client: KazooClient, paths: Sequence[str]) -> Any:
    """Request the data of at most `BATCH_NODES` nodes; the answer is a list of `Node`, with None for a missing node.

    The answer raises `UnimplementedError` if the server is older than 3.6.
    """
    return _sent_if_supported(client, _MultiRead(paths))


def get_data_async(client: KazooClient, paths: Sequence[str]) -> Any:
    """Like `get_many_async`, but the answer has only the data of each node, in half of the time."""
    return _sent_if_supported(client, _MultiRead(paths, is_data_only=True))


def _sent_if_supported(client: KazooClient, request: _MultiRead) -> Any:
    if client not in _without_bulk_reads:
        return _sent(client, request)
    answer = client.handler.async_result()
    answer.set_exception(UnimplementedError())
    return answer


def data_of(client: KazooClient, paths: Sequence[str], answer: Any, deadline: float) -> Sequence[bytes | None]:
    """Wait for the answer of `get_data_async`. If the server is older than 3.6, read each node separately."""
    try:
        data: Sequence[bytes | None] = answer.get(timeout=seconds_left(deadline))
        return data
    except UnimplementedError:
        _without_bulk_reads.add(client)
        return [node and (node[0] or b"") for node in _read_singly(client, paths, deadline)]


def read_nodes(client: KazooClient, paths: Sequence[str], deadline: float) -> list[Node | None]:
    """Read any number of nodes in batches, or separately if the server is older than 3.6.

    Args:
        client: connected.
        paths: of the nodes.
        deadline: on the monotonic clock.

    Returns:
        The nodes in the same order; None: the node does not exist.
    """
    batches = [paths[start : start + BATCH_NODES] for start in range(0, len(paths), BATCH_NODES)]
    pending = [get_many_async(client, batch) for batch in batches]
    try:
        return [node for answer in pending for node in answer.get(timeout=seconds_left(deadline))]
    except UnimplementedError:
        _without_bulk_reads.add(client)
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


def watch_many_async(client: KazooClient, paths: Sequence[str], watch: Callable[[Any], None], zxid: int) -> Any:
    """Watch the data of at most `BATCH_NODES` nodes that were read at `zxid` or later.

    No change is missed: for a node that was written after `zxid`, or that is missing, the watch fires at once.

    Args:
        client: connected.
        paths: of the nodes.
        watch: called with each event.
        zxid: the server's last transaction before the read.
    """
    # Register as kazoo does, and before the request, because the first events arrive before its answer.
    for path in paths:
        client._data_watchers[path].add(watch)
    return set_watches_async(client, paths, zxid)


def set_watches_async(client: KazooClient, paths: Sequence[str], zxid: int, missing: Sequence[str] = ()) -> Any:
    """Watch nodes like `watch_many_async`, and missing nodes for their creation, for a listener of all events."""
    return _sent(client, _SetWatches(zxid, paths, missing))


def watch_subtree_async(client: KazooClient, path: str) -> Any:
    """Watch all nodes below a path, for a listener of all events, until the connection ends.

    The client must not have another watch of this path: servers before 3.9 keep only the last mode of a path. The
    answer raises `WITHOUT_SUBTREE_WATCHES` if the server cannot do this.
    """
    return _sent(client, _SubtreeWatch(_ADD_WATCH, path, _PERSISTENT_RECURSIVE))


def unwatch_subtree(client: KazooClient, path: str) -> None:
    """Undo `watch_subtree_async`; without effect if the watch does not exist."""
    _sent(client, _SubtreeWatch(_REMOVE_WATCHES, path, _ANY_WATCH))


def listen_to_events(client: KazooClient, heard: Callable[[str], Callable[[], None] | None]) -> None:
    """Let kazoo's thread for watches call what `heard` returns for the path of each event of a watch.

    kazoo itself delivers events only to watches of the same path, of which each takes 300 bytes of memory.

    Args:
        client: its connection may be open.
        heard: called from kazoo's thread for the connection; None: the event does not matter.
    """
    connection, handler = client._connection, client.handler
    deliver = connection._read_watch_event

    def read_event(buffer: bytes, offset: int) -> None:
        if (callback := heard(Watch.deserialize(buffer, offset)[0].path)) is not None:
            handler.dispatch_callback(Callback("watch", callback, ()))
        deliver(buffer, offset)

    connection._read_watch_event = read_event


def _sent(client: KazooClient, request: Any) -> Any:
    answer = client.handler.async_result()
    client._call(request, answer)
    return answer
