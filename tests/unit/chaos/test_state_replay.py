"""The replay of a state topic applies valid records and counts void ones, without the product's code."""

from __future__ import annotations

import json
from collections.abc import Mapping

from autothrottle.adapters.zookeeper.codec import format_ledger_entry
from autothrottle.core.cluster.configs import FOLLOWER_RATE, LedgerEntry, LedgerKey
from tests.chaos.on_kafka.state import Claim
from tests.chaos.on_kafka.state_topic import StateReplay

TERM, LEDGER, SESSION = "/autothrottle/term", "/autothrottle/ledger/brokers/1003", "/autothrottle/sessions/s1"
FIRST = 100_000_000
"""The version before the first record, which is sent at 100 s."""
ENTRY = LedgerEntry({FOLLOWER_RATE: LedgerKey(None, "5")}, FIRST + 2)
TEXT = format_ledger_entry(ENTRY).decode()


def edit(
    writes: Mapping[str, str | None],
    checks: Mapping[str, int] | None = None,
    fence: int | None = None,
    owner: str | None = None,
) -> dict[str, object]:
    given = {"v": 1, "id": "r", "writes": dict(writes), "checks": dict(checks or {}), "fence": fence, "owner": owner}
    return {name: value for name, value in given.items() if value is not None}


CLAIM = edit({TERM: json.dumps({"address": "unix:/tmp/run-1"})}, {TERM: 0}, owner="s1")


def replayed(*edits: Mapping[str, object]) -> StateReplay:
    replay = StateReplay()
    for number, record in enumerate(edits):
        replay.take(100.0 + number, record)
    return replay


def test_heartbeat_claim_and_ledger_entry_take_effect() -> None:
    replay = replayed(edit({SESSION: "run-1"}, owner="s1"), CLAIM, edit({LEDGER: TEXT}, {LEDGER: 0}, FIRST + 2))
    assert replay.claims == [Claim(101.0, FIRST + 2, "run-1")]
    assert [(write.entity, write.entry, write.fence) for write in replay.ledger] == [("brokers/1003", ENTRY, FIRST + 2)]
    assert (replay.heartbeats, replay.leaders, replay.void) == ({"s1": [(100.0, "r")]}, {"s1": "run-1"}, 0)


def test_record_of_another_term_is_void() -> None:
    replay = replayed(edit({SESSION: "run-1"}), CLAIM, edit({LEDGER: TEXT}, {}, FIRST + 1))
    assert (replay.ledger, replay.void) == ([], 1)


def test_record_whose_check_does_not_match_is_void() -> None:
    replay = replayed(edit({SESSION: "run-1"}), CLAIM, CLAIM)
    assert (len(replay.claims), replay.void) == (1, 1)
