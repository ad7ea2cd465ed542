"""One node in ZooKeeper that holds a whole map, changed by compare-and-set together with its audit record."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Generic, TypeVar

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import NoNodeError

from autothrottle.adapters.zookeeper.mirror import FollowedNode
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.adapters.zookeeper.term import FenceCheck, term_check
from autothrottle.adapters.zookeeper_state.audit import AuditTrail, committed
from autothrottle.core.control.audit import AuditRecord
from autothrottle.core.errors import Invalid
from autothrottle.ports.kafka import Watch

log = logging.getLogger(__name__)

_NOTHING = "nothing was written"

K = TypeVar("K")
V = TypeVar("V")


class AuditedNode(Generic[K, V]):
    """Thread-safe. Without the node, the map is empty."""

    def __init__(
        self,
        client: KazooClient,
        own: OwnPaths,
        path: str,
        name: str,
        parse: Callable[[bytes, str], Mapping[K, V]],
        format: Callable[[Mapping[K, V]], bytes],
        timeout: timedelta,
    ) -> None:
        """Start to follow the node.

        Args:
            client: session with ZooKeeper.
            own: the paths of the term and the audit log.
            path: the node.
            name: describes its content in messages.
            parse: reads the map from the node's text and path; raises Invalid.
            format: writes the map as the node's text.
            timeout: for each operation.
        """
        self._client, self._own, self._path, self._name = client, own, path, name
        self._parse, self._format = parse, format
        self._trail = AuditTrail(client, own, timeout)
        self._timeout = timeout.total_seconds()
        self._node = FollowedNode(client, path, name, timeout)

    def close(self) -> None:
        """Stop following the node."""
        self._node.close()

    def read(self) -> Mapping[K, V]:
        """Return the current map.

        Raises:
            Unavailable: ZooKeeper does not answer in time.
            Invalid: the node's text cannot be parsed.
        """
        return self._parsed(self._node.read()[0])

    def watch(self, notify: Callable[[], None]) -> Watch:
        return self._node.watch(notify)

    def watch_map(self, notify: Callable[[Mapping[K, V]], None]) -> Watch:
        """Call `notify` with the map after every change, except to a text that cannot be parsed."""

        def publish() -> None:
            try:
                notify(self._parsed(self._node.last_data))
            except Invalid as error:
                log.warning("The last %s stay in effect: %s", self._name, error)

        return self._node.watch(publish)

    def _parsed(self, data: bytes | None) -> Mapping[K, V]:
        return {} if data is None else self._parse(data, self._path)

    def edit(
        self,
        change: Callable[[Mapping[K, V]], Mapping[K, V]],
        record: AuditRecord | None = None,
        fence: int | None = None,
    ) -> bool:
        """Apply a change to the current map; return whether anything changed.

        Args:
            change: maps the current value to the wanted one.
            record: written in the same transaction; None: no audit record.
            fence: the term that must continue; None: the change belongs to no term.
        """

        def attempt() -> bool | None:
            end = self._trail.end() if record else None
            current, version = self._current()
            wanted = change(current)
            if wanted == current:
                return False
            check = None if fence is None else term_check(self._client, self._own, fence, self._timeout, _NOTHING)
            write = self._write(wanted, version, check)
            if record and end:
                return None if self._trail.commit(write, end, record, check) is None else True
            return None if committed(write, self._timeout, check, _NOTHING) is None else True

        with translated_errors(f"changing the {self._name}"):
            return self._trail.retry(attempt)

    def _current(self) -> tuple[Mapping[K, V], int | None]:
        try:
            data, stat = self._client.get_async(self._path).get(timeout=self._timeout)
        except NoNodeError:
            return {}, None
        return self._parse(data, self._path), stat.version

    def _write(self, wanted: Mapping[K, V], version: int | None, check: FenceCheck | None) -> TransactionRequest:
        """Return the write that succeeds if the node still has this version and the term continues."""
        change = self._client.transaction() if check is None else check.begin(self._client)
        if version is None:
            change.create(self._path, self._format(wanted))
        else:
            change.set_data(self._path, self._format(wanted), version)
        return change
