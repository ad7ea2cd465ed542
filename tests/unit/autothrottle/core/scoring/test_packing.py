"""Packed values of a cycle: they come back unchanged, also from another version, and damage is an error."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from enum import Enum
from random import Random
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autothrottle.core.cluster.configs import ClusterSettings, ConfigResource, ReplicaRole
from autothrottle.core.cluster.flows import CopiedMark, Flow, FlowProgress, Progress
from autothrottle.core.cluster.snapshot import TopicReassignment
from autothrottle.core.cycle.input import SettingsReading
from autothrottle.core.errors import AutothrottleError, Incomplete, Invalid, NotLeader, Unavailable
from autothrottle.core.operators.sources import StoredMap
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.headroom import HeadroomPolicy, StaticPolicy
from autothrottle.core.policy.interface import Policy
from autothrottle.core.scoring.cycle_records import ReplayInput, cycle_packing
from autothrottle.core.scoring.packing import ColumnPacking
from tests.builders import NOON
from tests.examples import examples


class _OtherError(AutothrottleError):
    """An error that only another version has."""


@dataclass(frozen=True)
class OneText:
    text: str
    role: ReplicaRole = ReplicaRole.LEADER


@dataclass(frozen=True)
class Failed:
    error: AutothrottleError


class RandomValues:
    """Draws values of any type of a cycle, without regard to what makes sense."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance

    def of(self, hint: Any) -> Any:
        """Return a value of a type hint."""
        chance, origin, arguments = self._chance, get_origin(hint), get_args(hint)
        if origin in (Union, UnionType):
            return self.of(chance.choice(arguments))
        if origin is tuple and arguments[-1] is not Ellipsis:
            return tuple(map(self.of, arguments))
        if origin in (tuple, frozenset, Collection):
            values = [self.of(arguments[0]) for _ in range(chance.choice((0, 1, 1, 3)))]
            return tuple(values) if origin is tuple else frozenset(values)
        if origin is Mapping:
            entries = {self.of(arguments[0]): self.of(arguments[1]) for _ in range(chance.choice((0, 1, 1, 3)))}
            return StoredMap(entries, {"x": "unreadable"}) if chance.random() < 0.1 else entries
        return self._of_class(hint)

    def _of_class(self, kind: Any) -> Any:
        chance = self._chance
        drawn: dict[Any, Callable[[], Any]] = {
            type(None): lambda: None,
            bool: lambda: chance.random() < 0.5,
            int: lambda: chance.choice((0, 1, -1, chance.randrange(2**10), chance.randint(-(2**63), 2**63 - 1))),
            float: lambda: chance.choice((0.0, -0.0, 1.5, math.inf, chance.random(), chance.randrange(2**53))),
            str: lambda: chance.choice(("", "a", "\ud800\n,", "é,ü", self._list())),
            datetime: lambda: NOON + timedelta(microseconds=chance.choice((0, 1, chance.randrange(10**15)))),
            timedelta: lambda: timedelta(microseconds=chance.randrange(-(10**9), 10**9)),
            tzinfo: lambda: chance.choice((UTC, ZoneInfo("Europe/Berlin"))),
            ConfigResource: lambda: ConfigResource(chance.choice(("brokers/1", "brokers/22", "topics/t", "users/a"))),
            Policy: lambda: chance.choice((AdaptivePolicy(), HeadroomPolicy(), StaticPolicy(50_000_000))),
            AutothrottleError: lambda: chance.choice((Unavailable("no"), NotLeader("over", "h:1"), Invalid("a,b"))),
            TopicReassignment: self._reassignment,
        }
        if kind in drawn:
            return drawn[kind]()
        if issubclass(kind, Enum):
            return chance.choice(list(kind))
        return kind(**{name: self.of(hint) for name, hint in get_type_hints(kind).items() if name in fields_of(kind)})

    def _list(self) -> str:
        return ",".join(f"{self._chance.randrange(40)}:{self._chance.randrange(3)}" for _ in range(20))

    def _reassignment(self) -> TopicReassignment:
        isr, adding, removing = (tuple(self._chance.sample(range(5), self._chance.randrange(3))) for _ in range(3))
        rows = {self._chance.randrange(30): (self._chance.randrange(-1, 5), isr, adding, removing) for _ in range(9)}
        return TopicReassignment.of_partitions(self._chance.choice("tuvw"), rows)


def fields_of(kind: Any) -> Collection[str]:
    """The fields of a dataclass or a named tuple."""
    names: Collection[str] = getattr(kind, "__dataclass_fields__", None) or kind._fields
    return names


def changed(value: Any, other: Any, chance: Random) -> Any:
    """Return a value in which some nested parts are those of the other one, as between two cycles."""
    names = getattr(value, "__dataclass_fields__", {})
    if type(value) is not type(other) or not names or isinstance(value, AdaptivePolicy | TopicReassignment):
        return other if chance.random() < 0.5 else value
    return replace(value, **{n: changed(getattr(value, n), getattr(other, n), chance) for n in names})


def comparable(inputs: ReplayInput) -> object:
    """A cycle as a value in which equal errors are equal, and the order of reassignments and maps counts."""
    return _plain(inputs)


def _plain(value: object) -> object:
    if isinstance(value, AutothrottleError):
        return type(value).__name__, str(value), getattr(value, "leader_address", "")
    if isinstance(value, StoredMap):
        return "stored", list(value.items()), dict(value.unreadable)
    if isinstance(value, dict):
        return [(_plain(key), _plain(item)) for key, item in value.items()]
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    names = getattr(value, "__dataclass_fields__", None)
    if names is not None and not isinstance(value, type) and not isinstance(value, AdaptivePolicy):
        return type(value).__name__, [_plain(getattr(value, name)) for name, f in names.items() if f.compare]
    return value


def unique_topics(inputs: ReplayInput) -> ReplayInput:
    """The cycle with at most one reassignment of each topic, ordered by topic, as in every snapshot."""
    snapshot = inputs.observation.snapshot
    if isinstance(snapshot, AutothrottleError):
        return inputs
    topics = {reassignment.topic: reassignment for reassignment in snapshot.reassignments}
    ordered = replace(snapshot, reassignments=tuple(topics[topic] for topic in sorted(topics)))
    return replace(inputs, observation=replace(inputs.observation, snapshot=ordered))


@settings(max_examples=examples(60, 3000), deadline=None)
@given(st.integers(0, 2**32))
def test_any_cycle_survives_packing_alone_and_as_a_difference(seed: int) -> None:
    chance = Random(seed)
    values, packing = RandomValues(chance), cycle_packing()
    first, other = (unique_topics(values.of(ReplayInput)) for _ in range(2))
    second = unique_topics(changed(first, other, chance))
    assert comparable(packing.unpack(packing.pack(second), packing.layout)) == comparable(second)
    assert comparable(packing.unpack(packing.pack(second, first), packing.layout, first)) == comparable(second)


@settings(max_examples=examples(100, 2000), deadline=None)
@given(st.lists(st.integers(0, 6)), st.lists(st.integers(0, 6)))
def test_sequences_survive_as_the_difference_from_any_other(values: list[int], earlier: list[int]) -> None:
    packing = ColumnPacking(SettingsReading)
    first = SettingsReading(ClusterSettings(min_in_sync_replicas={str(n): n for n in earlier}))
    second = SettingsReading(ClusterSettings(min_in_sync_replicas={str(n): n for n in values}))
    unpacked = packing.unpack(packing.pack(second, first), packing.layout, first)
    assert list(unpacked.settings.min_in_sync_replicas.items()) == list(second.settings.min_in_sync_replicas.items())


@settings(max_examples=examples(100, 2000), deadline=None)
@given(st.binary(max_size=200), st.integers(0, 400), st.binary(min_size=1, max_size=3))
def test_damaged_bytes_are_incomplete_or_another_value_and_never_another_error(
    garbage: bytes, place: int, replacement: bytes
) -> None:
    packing = ColumnPacking(SettingsReading)
    packed = packing.pack(SettingsReading(ClusterSettings(min_in_sync_replicas={"t": 2, "u": 1})))
    damaged = packed[:place] + replacement + packed[place + len(replacement) :]
    for candidate in (garbage, damaged):
        with suppress(AutothrottleError):
            packing.unpack(candidate, packing.layout)


def test_a_list_that_loses_one_of_100_000_entries_takes_a_few_bytes() -> None:
    entries = [f"{partition}:1001" for partition in range(100_000)]
    whole, shorter = OneText(",".join(entries)), OneText(",".join(entries[:500] + entries[501:]))
    packing = ColumnPacking(OneText)
    packed = packing.pack(shorter, whole)
    assert len(packed) < 40
    assert packing.unpack(packed, packing.layout, whole) == shorter


def test_a_steady_flow_takes_a_few_bytes_for_each_sample() -> None:
    def progress(samples: int) -> Progress:
        marks = tuple(CopiedMark(NOON + n * timedelta(seconds=2), 80_000_000 * n) for n in range(samples))
        *recent, (at, copied) = marks
        return Progress({Flow(1, 2): FlowProgress(copied, 0, 10**12 - copied, at, NOON, tuple(recent))}, at=at)

    packing = ColumnPacking(Progress)
    packed = packing.pack(progress(60), progress(30))
    assert len(packed) < 30 * 8
    assert packing.unpack(packed, packing.layout, progress(30)) == progress(60)


def test_a_field_without_a_column_gets_its_default() -> None:
    """A log of an older version lacks the columns of newer fields. Its cycles must still be replayed."""
    packing = ColumnPacking(SettingsReading)
    layout = packing.layout.replace(".settings.min_in_sync_replicas", ".settings.renamed")
    reading = SettingsReading(ClusterSettings(min_in_sync_replicas={"t": 2}))
    assert packing.unpack(packing.pack(reading), layout) == SettingsReading()


def test_a_field_without_a_column_and_without_a_default_is_incomplete() -> None:
    packing = ColumnPacking(OneText)
    with pytest.raises(Incomplete, match="another version"):
        packing.unpack(packing.pack(OneText("a")), packing.layout.replace(".text", ".list"))


def test_an_error_that_this_version_does_not_know_is_a_plain_one() -> None:
    packing = ColumnPacking(Failed)
    unpacked = packing.unpack(packing.pack(Failed(_OtherError("no"))), packing.layout)
    assert (type(unpacked.error), str(unpacked.error)) == (AutothrottleError, "no")
