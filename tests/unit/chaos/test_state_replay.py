"""The replay of a state topic applies valid records and counts void ones, without the product's code."""

from __future__ import annotations

import json
from collections.abc import Mapping

from autothrottle.adapters.zookeeper.codec import format_ledger_entry
from autothrottle.core.cluster.configs import FOLLOWER_RATE, LedgerEntry, LedgerKey
from tests.chaos.on_kafka.state import Claim
from tests.chaos.on_kafka.state_topic import StateReplay

TERM, LEDGER, SESSION = "/autothrottle/term", "/autothrottle/ledger/brokers/1003", "/autothrottle/election/s1"
FIRST = 100_000_000
"""The version of the first record, which is sent at 100 s."""
ENTRY = LedgerEntry({FOLLOWER_RATE: LedgerKey(None, "5")}, FIRST + 1)
TEXT = format_ledger_entry(ENTRY).decode()


def edit(
    texts: Mapping[str, str | None], versions: Mapping[str, int] | None = None, fence: int = 0
) -> dict[str, object]:
    given = {"v": 1, "id": "r", "texts": dict(texts), "versions": dict(versions or {}), "fence": fence}
    return {name: value for name, value in given.items() if value}


CLAIM = edit({TERM: json.dumps({"address": "unix:/tmp/run-1", "holder": "s1"})}, {TERM: 0})


def replayed(*edits: Mapping[str, object]) -> StateReplay:
    replay = StateReplay()
    for number, record in enumerate(edits):
        replay.take(100_000 + number, json.dumps(record).encode())
    return replay


def test_heartbeat_claim_and_ledger_entry_take_effect() -> None:
    replay = replayed(edit({SESSION: "{}"}), CLAIM, edit({LEDGER: TEXT}, {LEDGER: 0}, FIRST + 1))
    assert replay.claims == [Claim(100.001, FIRST + 1, "run-1")]
    assert [(write.entity, write.entry, write.fence) for write in replay.ledger] == [("brokers/1003", ENTRY, FIRST + 1)]
    assert (replay.heartbeats, replay.leaders, replay.void) == ({"s1": ["r"]}, {"s1": "run-1"}, 0)


def test_record_of_another_term_is_void() -> None:
    replay = replayed(edit({SESSION: "{}"}), CLAIM, edit({LEDGER: TEXT}, {}, FIRST))
    assert (replay.ledger, replay.void) == ([], 1)


def test_record_whose_check_does_not_match_is_void() -> None:
    replay = replayed(edit({SESSION: "{}"}), CLAIM, CLAIM)
    assert (len(replay.claims), replay.void) == (1, 1)
