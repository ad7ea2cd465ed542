"""Copies the state out of ZooKeeper, and into an empty tree."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from autothrottle.adapters.state_store.state_copy import AuditText, StateCopy, dated, is_copied, refuse_filled
from autothrottle.adapters.zookeeper.bulk import DENIED, read_nodes
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import new_origin, origin_path, read_origin, translated_errors
from autothrottle.core.cluster.configs import ResourceType
from autothrottle.core.errors import Unavailable

_TIMEOUT_SECONDS = 10.0


def export_state(client: KazooClient, own: OwnPaths) -> StateCopy:
    """Return the state. Planners may run: each node is read once, after all writes before the call.

    Raises:
        Unavailable: ZooKeeper does not answer, or denies access to a node.
    """
    with translated_errors("exporting our state"):
        client.sync_async(own.root).get(timeout=_TIMEOUT_SECONDS)
        nodes = {path.removeprefix(f"{own.root}/"): text for path, text in _texts(client, own).items()}
        return StateCopy(_fence(client, own), nodes, list(_audit(client, own)))


def _texts(client: KazooClient, own: OwnPaths) -> Mapping[str, str]:
    """Return path -> text of all nodes with a text."""
    parents = (own.root, own.overrides, *(f"{own.ledger}/{kind.value}" for kind in ResourceType))
    paths = [f"{parent}/{name}" for parent in parents for name in _children(client, parent)]
    copied = [path for path in paths if is_copied(own, path)]
    nodes = dict(zip(copied, read_nodes(client, copied, time.monotonic() + _TIMEOUT_SECONDS), strict=True))
    if DENIED in nodes.values():
        raise Unavailable(f"ZooKeeper denies access to nodes below {own.root}, which the copy would lack")
    return {path: node[0].decode(errors="backslashreplace") for path, node in nodes.items() if node and node[0]}


def _children(client: KazooClient, path: str) -> list[str]:
    try:
        return sorted(client.get_children_async(path).get(timeout=_TIMEOUT_SECONDS))
    except NoNodeError:
        return []


def _fence(client: KazooClient, own: OwnPaths) -> int:
    try:
        version = int(client.get_async(own.term).get(timeout=_TIMEOUT_SECONDS)[1].version)
    except NoNodeError:
        return 0
    return read_origin(client, own, _TIMEOUT_SECONDS) + version


def _audit(client: KazooClient, own: OwnPaths) -> Iterator[AuditText]:
    for name in _children(client, own.audit):
        with suppress(NoNodeError):
            data, stat = client.get_async(f"{own.audit}/{name}").get(timeout=_TIMEOUT_SECONDS)
            written = datetime.fromtimestamp(stat.ctime / 1000, UTC)
            yield AuditText(written, int(stat.czxid), (data or b"").decode(errors="backslashreplace"))


def import_state(client: KazooClient, own: OwnPaths, copy: StateCopy) -> None:
    """Load a copy into an empty tree. The ledger comes last, so that a part of it is never taken for all.

    Raises:
        Conflict: the tree has state, or a planner runs.
        Unavailable: ZooKeeper does not answer; a part may be loaded.
    """
    with translated_errors("importing our state"):
        texts, records = len(_texts(client, own)), len(_children(client, own.audit))
        entries = texts + records + bool(_fence(client, own))
        fix = f"delete {own.root} in ZooKeeper, or give another zk-config-prefix"
        refuse_filled(own.root, entries, len(_children(client, own.election)), fix)
        client.ensure_path_async(own.audit).get(timeout=_TIMEOUT_SECONDS)
        client.ensure_path_async(own.term).get(timeout=_TIMEOUT_SECONDS)
        origin = max(new_origin(time.time_ns() // 1_000_000), copy.fence)
        client.create_async(origin_path(own, origin)).get(timeout=_TIMEOUT_SECONDS)
        for record in copy.audit:
            client.create_async(own.audit_record, dated(record), sequence=True).get(timeout=_TIMEOUT_SECONDS)
        paths = {f"{own.root}/{path}": text for path, text in copy.nodes.items()}
        for path, text in sorted(paths.items(), key=lambda item: item[0].startswith(own.ledger)):
            _write(client, path, text.encode())


def _write(client: KazooClient, path: str, data: bytes) -> None:
    client.ensure_path_async(path).get(timeout=_TIMEOUT_SECONDS)
    client.set_async(path, data).get(timeout=_TIMEOUT_SECONDS)
