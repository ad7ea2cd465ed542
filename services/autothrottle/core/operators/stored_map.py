"""A map that operators change, as read from the state store. The type to know is `StoredMap`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from autothrottle.core.errors import Incomplete

K = TypeVar("K")
V = TypeVar("V")


class StoredMap(dict[K, V]):
    """The readable entries of a map, and why others cannot be read; it equals a dict with the same readable entries."""

    def __init__(self, entries: Mapping[K, V] | None = None, unreadable: Mapping[str, str] | None = None) -> None:
        super().__init__(entries or {})
        self.unreadable = unreadable or {}
        """Stored name of an entry -> one sentence with its path, the cause and the fix. Such an entry is not absent."""


def readable(read: Callable[[], Mapping[K, V]]) -> Mapping[K, V]:
    """Return what `read` returns; if no entry can be read, an empty map whose `unreadable` says why."""
    try:
        return read()
    except Incomplete as error:
        return StoredMap({}, {"": str(error)})


def keeping_unreadable(entries: Mapping[K, V], last: Mapping[K, V], name: Callable[[K], str]) -> Mapping[K, V]:
    """Return the entries, with the last read value of each unreadable one; `name` returns the stored name of a key."""
    unreadable = unreadable_entries(entries)
    if not unreadable:
        return entries
    return StoredMap({**{key: value for key, value in last.items() if name(key) in unreadable}, **entries}, unreadable)


def unreadable_entries(entries: Mapping[K, V]) -> Mapping[str, str]:
    """Return the `unreadable` entries of a stored map; other maps have none."""
    return entries.unreadable if isinstance(entries, StoredMap) else {}
