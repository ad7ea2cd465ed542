"""The parts of a run with an absence: the completed cycles, the lost edits, and the foreign records."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import cast

import pytest

from autothrottle.core.errors import Missing
from autothrottle_client import AdminClient
from autothrottle_client.model import Override
from tests.chaos.on_kafka.absences import completed_cycles
from tests.chaos.on_kafka.acknowledged import LOST_EDIT, AcknowledgedEdits
from tests.chaos.on_kafka.other_client import foreign_records
from tests.chaos.on_kafka.schedule import TopicFault
from tests.chaos.on_kafka.state_replay import StateReplay

TOPIC = "11111111-2222-3333-4444-555555555555"
EDIT = {"v": 1, "id": "p-1", "topic": TOPIC, "strict": True, "texts": {"/autothrottle/pause": "{}"}, "audit": "{}"}
PART = {"snapshot": {"v": 1, "id": "pc-2", "topic": TOPIC, "base": 1, "parts": 1, "part": 0, "rows": []}}


class Overrides:
    """One override of the service, as far as the edits need it."""

    def __init__(self) -> None:
        self.rate: int | None = None

    def get_override(self, broker_id: int) -> Override:
        if self.rate is None:
            raise Missing("no override is set")
        return Override(self.rate, broker_id, etag=str(self.rate))


def line(second: int, message: str) -> str:
    return json.dumps({"time": f"2026-11-28T19:00:{second:02}.000Z", "message": message}) + "\n"


def test_failed_cycle_is_not_a_completed_one(tmp_path: Path) -> None:
    """A cycle that cannot read the cluster is logged like any other. A run seemed to recover while Kafka was away."""
    log = tmp_path / "run-1.log"
    log.write_text(line(1, "Cycle 1 (interval): done"))
    offset = log.stat().st_size
    log.write_text(
        log.read_text()
        + line(2, "The cycle failed, nothing was removed: no broker answers")
        + line(2, "Cycle 2 (interval): no broker answers")
        + line(3, "Cycle 3 (interval): done")
    )
    assert [int(at) % 60 for at in completed_cycles({log: 0})] == [1, 3]
    assert [int(at) % 60 for at in completed_cycles({log: offset})] == [3]


@pytest.mark.parametrize(("rate", "is_lost"), [(None, True), (999, True), (1000, False), (1001, False)])
def test_older_value_than_the_acknowledged_one_is_a_lost_edit(rate: int | None, is_lost: bool) -> None:
    overrides = Overrides()
    edits = AcknowledgedEdits(cast(AdminClient, overrides))
    edits.acknowledged_rate, overrides.rate = 1000, rate
    assert edits.check(cast(AdminClient, overrides))
    assert [violation.rule for violation in edits.violations] == [LOST_EDIT] * is_lost


@pytest.mark.parametrize("fault", [fault for fault in TopicFault if fault is not TopicFault.DELETION])
def test_replay_gives_no_foreign_record_an_effect(fault: TopicFault) -> None:
    replay = StateReplay(TOPIC)
    own_records = [json.dumps(record).encode() for record in (EDIT, PART)]
    for offset, record in enumerate(own_records):
        replay.take(offset, 100_000, 0, record)
    records = foreign_records(fault, own_records, 2, 1, random.Random(1))
    assert records
    for offset, (value, _) in enumerate(records, 2):
        replay.take(offset, 100_000, 0, value or b"")
    snapshots = sum(b'"rows"' in (value or b"") and b'"topic"' in (value or b"") for value, _ in records)
    assert replay.void == len(records) - snapshots  # a copy of a tree never has an effect without a commit
    assert (replay.ledger, replay.claims, replay.fenced) == ([], [], [])
