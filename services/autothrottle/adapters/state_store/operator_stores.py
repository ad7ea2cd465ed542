"""What operators set: overrides, the pause and the audited maps.

Each store follows its node, and changes it by compare-and-set together with the audit record. Without the node of a
map, the map is empty. An entry of a map that cannot be read stays in the node as it is, and the other entries apply.
The nodes of overrides are those of the original program.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from autothrottle.adapters.state_store.nodes import Node, NodeEdit, NodeStore, StoredNode
from autothrottle.adapters.zookeeper.codec import (
    FORMAT_VERSION,
    compact_json,
    format_override,
    format_pause,
    own_object,
    parse_override,
    parse_pause,
)
from autothrottle.core.cluster.configs import broker_id_of, validate_broker_id
from autothrottle.core.codec import encode, field_error
from autothrottle.core.errors import FIELD_ERRORS, Incomplete, Invalid
from autothrottle.core.operators.audit import (
    AuditReading,
    MapChange,
    MapEdits,
    MapKind,
    StoredAuditRecord,
    unwritten_record,
)
from autothrottle.core.operators.sources import Overrides, StoredMap, StoredOverride, check_version, validate_rate
from autothrottle.core.records import AuditAction, Pause
from autothrottle.ports.kafka import Watch

log = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")


class NodeOverrides:
    """An `OverrideStore`. Thread-safe.

    The version of an override is the transaction id of its last write, because a node's own version restarts at 0 when
    the node is deleted and created again. Each change and its audit record are one transaction.
    """

    def __init__(self, store: NodeStore) -> None:
        """Follow the node of the cluster override and its children."""
        self._own, self._trail = store.own, store.trail()
        self._nodes = store.followed(self._own.overrides, "overrides", with_children=True)

    def close(self) -> None:
        """Stop following the overrides."""
        self._nodes.close()

    def read_overrides(self) -> Overrides:
        """Return all overrides."""
        overrides: dict[int | None, StoredOverride] = {}
        unreadable: dict[int | None, str] = {}
        warnings = []
        for path, (data, version, _) in self._nodes.read().items():
            name = path.removeprefix(self._own.overrides)[1:]
            broker_id = broker_id_of(name)
            if name and broker_id is None:
                warnings.append(f"{path}: {name!r} is not a broker id; ignoring the node, remove it")
                continue
            try:
                if override := parse_override(data or b"", version):
                    overrides[broker_id] = override
            except Invalid as error:
                unreadable[broker_id] = f"{path}: {error}"
        brokers = {b: override for b, override in overrides.items() if b is not None}
        return Overrides(overrides.get(None), brokers, unreadable, tuple(warnings))

    def set_override(self, broker_id: int | None, override: StoredOverride, *, who: str = "") -> StoredOverride:
        """Set an override: create it or replace the current one. With a version, it replaces only that version."""
        if broker_id is not None:
            validate_broker_id(broker_id)
        validate_rate(override.rate)

        def replacement(node: StoredNode | None) -> NodeEdit:
            check_version(broker_id, override.version, node.version if node else 0)
            record = unwritten_record(who, AuditAction.SET, broker_id, _override_in(node), override)
            return NodeEdit(format_override(override), record)

        version = self._trail.edit(self._own.override(broker_id), replacement, "setting an override")
        return replace(override, version=version)

    def remove_override(self, broker_id: int | None, *, version: int = 0, who: str = "") -> bool:
        """Remove an override. The cluster override's node stays as parent, with rate 0 as the original marks it."""

        def removal(node: StoredNode | None) -> NodeEdit | None:
            if node is None or (broker_id is None and not _holds_override(node)):
                return None
            check_version(broker_id, version, node.version)
            return _removal(broker_id, unwritten_record(who, AuditAction.REMOVE, broker_id, _override_in(node)))

        return self._trail.edit(self._own.override(broker_id), removal, "removing an override") > 0

    def purge_override(self, fence: int, broker_id: int | None, version: int, reason: str = "") -> bool:
        """Remove one version of an override, fenced by the term."""
        who = f"planner, term {fence}"

        def purge(node: StoredNode | None) -> NodeEdit | None:
            if node is None or node.version != version:
                return None
            override = _override_in(node)
            return _removal(broker_id, unwritten_record(who, AuditAction.PURGE, broker_id, override, reason=reason))

        return self._trail.edit(self._own.override(broker_id), purge, "purging an override", fence) > 0

    def add_audit_record(self, action: AuditAction, who: str, result: str) -> None:
        """Record an action that changes no state in the stores."""
        self._trail.append(unwritten_record(who, action, result=result))

    def read_audit_records(self, limit: int) -> AuditReading:
        return self._trail.newest(limit)

    def watch_overrides(self, notify: Callable[[], None]) -> Watch:
        return self._nodes.watch(notify)


def _removal(broker_id: int | None, record: StoredAuditRecord) -> NodeEdit:
    return NodeEdit(format_override(StoredOverride(0)) if broker_id is None else None, record)


def _override_in(node: StoredNode | None) -> StoredOverride | None:
    """Return the override in a node; None: none is set, or it cannot be parsed."""
    with suppress(Invalid):
        override = node and parse_override(node.data or b"", node.version)
        return override if override and override.rate > 0 else None
    return None


def _holds_override(node: StoredNode) -> bool:
    """Whether a node holds an override, readable or not."""
    try:
        override = parse_override(node.data or b"", node.version)
    except Invalid:
        return True
    return override is not None and override.rate > 0


class NodePauses:
    """A `PauseStore`. Thread-safe."""

    def __init__(self, store: NodeStore) -> None:
        """Follow the node of the pause."""
        self._own, self._trail = store.own, store.trail()
        self._nodes = store.followed(self._own.pause, "pause")

    def close(self) -> None:
        """Stop following the pause."""
        self._nodes.close()

    def read_pause(self) -> Pause | None:
        """Return the pause; a node that cannot be parsed counts as a pause that keeps the current throttles."""
        nodes = self._nodes.read()
        return self._parsed(nodes[self._own.pause][0]) if nodes else None

    def set_pause(self, pause: Pause) -> None:
        """Pause, or replace the current pause."""
        edit = NodeEdit(format_pause(pause), unwritten_record(pause.author, AuditAction.PAUSE, pause=pause))
        self._trail.edit(self._own.pause, lambda _: edit, "pausing")

    def remove_pause(self, who: str = "") -> bool:
        """Resume; return whether it was paused."""

        def removal(node: StoredNode | None) -> NodeEdit | None:
            if node is None:
                return None
            return NodeEdit(None, unwritten_record(who, AuditAction.RESUME, pause=self._parsed(node.data)))

        return self._trail.edit(self._own.pause, removal, "resuming") > 0

    def _parsed(self, data: bytes | None) -> Pause:
        return parse_pause(data or b"", self._own.pause)

    def watch_pause(self, notify: Callable[[], None]) -> Watch:
        return self._nodes.watch(notify)


@dataclass(frozen=True, slots=True)
class MapContent(Generic[K, V]):
    """The content of a stored map."""

    stored: StoredMap[K, V]
    raw: Mapping[str, Any]
    """The entries that cannot be read, as they are."""
    unreadable_keys: frozenset[K] | None = frozenset()
    """The keys of these entries; None: one of the keys cannot be read either."""

    def over(self, last: Mapping[K, V]) -> Mapping[K, V]:
        """Return the entries, with the last value of each that cannot be read; with all last ones if its key cannot."""
        keys = last.keys() if self.unreadable_keys is None else last.keys() & self.unreadable_keys
        return {**{key: last[key] for key in keys}, **self.stored}


@dataclass(frozen=True, slots=True)
class MapCodec(Generic[K, V]):
    """Converts one kind of map to its text and back."""

    kind: MapKind[K, V]
    node: str
    """Name of the map's node."""
    field: str
    """The field of the JSON object that holds the entries."""
    parse_key: Callable[[str, Any], K]
    """Converts (stored name, JSON value) to a key; raises Invalid or one of `FIELD_ERRORS`."""
    parse_value: Callable[[K, Any], V]
    """Converts (key, JSON value) to the value of the key; raises the same errors."""
    format_value: Callable[[K, V], Any] = lambda _, value: encode(value)
    """Converts (key, value) to the JSON value."""
    name: Callable[[K], str] = str
    """Converts a key to its stored name."""
    ordered: Callable[[Mapping[K, V]], Iterable[tuple[K, V]]] = lambda entries: sorted(entries.items())
    """Returns the entries in the stored order."""
    is_list: bool = False
    """Whether the field holds a list, so that names are not stored."""

    def parse(self, data: bytes | None, path: str) -> MapContent[K, V]:
        """Parse the text; None: the map was never written.

        Args:
            data: the text.
            path: where it is stored, for messages.

        Raises:
            Incomplete: no entry can be read.
        """
        if data is None:
            return MapContent(StoredMap(), {})
        try:
            raw = self._raw_entries(data)
        except (*FIELD_ERRORS, Invalid) as error:
            fix = f"repair or delete the node, then set the {self.kind.name} again"
            raise Incomplete(f"{path} cannot be parsed: {field_error(error)}; {fix}") from error
        entries, unreadable = dict[K, V](), dict[str, str]()
        for name, value in raw.items():
            try:
                key = self.parse_key(name, value)
                entries[key] = self.parse_value(key, value)
            except (*FIELD_ERRORS, Invalid) as error:
                fix = "set it again, or repair the node"
                unreadable[name] = f"{path}: entry {name[:60]!r} cannot be read: {field_error(error)}; {fix}"
        return MapContent(
            StoredMap(entries, unreadable), {name: raw[name] for name in unreadable}, self._keys(raw, unreadable)
        )

    def _keys(self, raw: Mapping[str, Any], names: Iterable[str]) -> frozenset[K] | None:
        """Return the keys of some entries; None: one of them cannot be read."""
        try:
            return frozenset(self.parse_key(name, raw[name]) for name in names)
        except (*FIELD_ERRORS, Invalid):
            return None

    def _raw_entries(self, data: bytes) -> dict[str, Any]:
        value = own_object(data, f"the node of {self.kind.name}")[self.field]
        if self.is_list:
            if not isinstance(value, list):  # a string or an object would be stored in pieces by the next change
                raise TypeError(f"{self.field} is not a list")
            return {str(position): entry for position, entry in enumerate(value)}
        return {**value}

    def format(self, entries: Mapping[K, V], content: MapContent[K, V]) -> bytes:
        """Return the text with these entries, and with those of the content that cannot be read."""
        named = {**content.raw, **{self.name(k): self.format_value(k, value) for k, value in self.ordered(entries)}}
        return compact_json({"version": FORMAT_VERSION, self.field: [*named.values()] if self.is_list else named})


class NodeAuditedMap(MapEdits[K, V]):
    """An `AuditedMap`. Thread-safe. Without the node, the map is empty."""

    def __init__(self, store: NodeStore, codec: MapCodec[K, V]) -> None:
        """Follow the node of the map."""
        self._codec, self._kind = codec, codec.kind
        self._path, self._trail = store.own.audited_map(codec.node), store.trail()
        self._nodes = store.followed(self._path, codec.kind.name)

    def close(self) -> None:
        """Stop following the node."""
        self._nodes.close()

    def read(self) -> StoredMap[K, V]:
        return self._content(self._nodes.read()).stored

    def watch(self, notify: Callable[[], None]) -> Watch:
        return self._nodes.watch(notify)

    def follow(self, notify: Callable[[Mapping[K, V]], None]) -> Watch:
        last: Mapping[K, V] = {}

        def publish() -> None:
            nonlocal last
            try:
                content = self._content(self._nodes.published)
            except Incomplete as error:
                log.warning("The last %s stay in effect: %s", self._kind.name, error)
                return
            for problem in content.stored.unreadable.values():
                log.warning("One of the %s does not apply: %s", self._kind.name, problem)
            last = content.over(last)
            notify(last)

        watch = self._nodes.watch(publish)
        if self._nodes.published:  # read for an earlier follower
            publish()
        return watch

    def _content(self, nodes: Mapping[str, Node]) -> MapContent[K, V]:
        return self._codec.parse(nodes[self._path][0] if nodes else None, self._path)

    def _edit(self, change: MapChange[K, V], record: StoredAuditRecord | None, fence: int | None = None) -> bool:
        def edit(node: StoredNode | None) -> NodeEdit | None:
            content = self._codec.parse(node.data if node else None, self._path)
            entries = change(content.stored)
            return None if entries == content.stored else NodeEdit(self._codec.format(entries, content), record)

        return self._trail.edit(self._path, edit, f"changing the {self._kind.name}", fence) > 0
