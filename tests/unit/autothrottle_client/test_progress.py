"""`throttlectl state`: bytes left and ETA."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from autothrottle.v1 import types_pb2
from autothrottle.wire.common import SAME_NAMES
from autothrottle_client import ClusterState, Cycle, tables
from autothrottle_client.model import from_message
from tests import builders
from tests.builders import NOON


def cycle(bytes_left: int | None, minutes: int | None = None, topics: tuple[str, ...] = ("t1",)) -> Cycle:
    eta = None if minutes is None else NOON + timedelta(minutes=minutes)
    return Cycle(2, 9, NOON, NOON, "interval", "1 rate set", topics, bytes_left=bytes_left, eta=eta)


def shown(one: Cycle) -> list[str]:
    lines = tables.state_text(ClusterState(2, "h:1", one, ())).splitlines()
    return [" ".join(line.split()) for line in lines if line.startswith("bytes left")]


@pytest.mark.parametrize(
    ("one", "lines"),
    [
        (cycle(41_200_000_000, 12), ["bytes left 41.20 GB, done about 2026-11-02T12:12:00Z"]),
        (cycle(900_000), ["bytes left 0.90 MB"]),
        (cycle(None), ["bytes left unknown"]),
        (cycle(None, topics=()), []),
    ],
)
def test_the_state_shows_bytes_left_while_reassignments_are_ongoing(one: Cycle, lines: list[str]) -> None:
    assert shown(one) == lines


def test_the_client_decodes_bytes_left_and_eta_of_the_planner() -> None:
    record = builders.cycle_record(bytes_left=7, eta=NOON)
    read = from_message(Cycle, SAME_NAMES.to_message(types_pb2.Cycle, record))
    assert (read.bytes_left, read.eta) == (7, NOON)
    nothing = from_message(Cycle, SAME_NAMES.to_message(types_pb2.Cycle, builders.cycle_record()))
    assert (nothing.bytes_left, nothing.eta) == (None, None)


def test_json_has_separate_fields_for_bytes_left_and_eta() -> None:
    fields = json.loads(tables.to_json(cycle(7, 12)))
    assert (fields["bytes_left"], fields["eta"]) == (7, "2026-11-02T12:12:00Z")


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (11, 14, "2026-11-02T12:12:00Z (12:11:00 to 12:14:00)"),
        (11, 13 * 60, "2026-11-02T12:12:00Z (12:11:00 to 2026-11-03T01:00:00Z)"),
        (11, None, "2026-11-02T12:12:00Z (12:11:00 to unknown)"),
    ],
)
def test_an_interval_end_on_another_day_is_shown_with_its_date(low: int, high: int | None, words: str) -> None:
    ends = [None if minutes is None else NOON + timedelta(minutes=minutes) for minutes in (low, high)]
    one = replace(cycle(900_000, 12), eta_low=ends[0], eta_high=ends[1])
    assert shown(one) == [f"bytes left 0.90 MB, done about {words}"]
