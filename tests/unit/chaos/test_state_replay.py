"""The replay of a state topic applies valid records and counts void ones, without the product's code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest

import pytest

from autothrottle.adapters.zookeeper.codec import format_ledger_entry
from autothrottle.core.cluster.configs import FOLLOWER_RATE, LedgerEntry, LedgerKey
from tests.chaos.on_kafka.state import Claim
from tests.chaos.on_kafka.state_replay import StateReplay

TERM, LEDGER, SESSION = "/autothrottle/term", "/autothrottle/ledger/brokers/1003", "/autothrottle/election/s1"
TOPIC = "11111111-2222-3333-4444-555555555555"
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


def replayed(*records: Mapping[str, object], epochs: Sequence[int] = ()) -> StateReplay:
    replay = StateReplay(TOPIC)
    for offset, (record, epoch) in enumerate(zip_longest(records, epochs, fillvalue=0)):
        replay.take(offset, 100_000 + offset, epoch, json.dumps(record).encode())
    return replay


def strict(number: int, texts: Mapping[str, str | None], **fields: object) -> dict[str, object]:
    """An edit of the process `p` under the strict rules, at 100 s by its own clock."""
    edit = {"v": 1, "id": f"p-{number}", "topic": TOPIC, "time": 100_000, "texts": dict(texts), **fields}
    return {name: value for name, value in edit.items() if value}


def copy(nodes: Mapping[str, tuple[str, int]], after: int, begin: int = 0) -> list[dict[str, object]]:
    """The records of a restore: a part, and the commit of an author who had read the log up to `after`."""
    header = {"v": 1, "id": "q-1", "topic": TOPIC, "parts": 1, "last_version": FIRST + 9, "base": None}
    rows = [["node", path, text, version, 0] for path, (text, version) in nodes.items()]
    commit = {**header, "begin": begin, "after": after, "after_epoch": 0}
    return [{"snapshot": {**header, "part": 0, "rows": [*rows, ["author", "p", 5]]}}, {"commit": commit}]


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


MARKER = strict(0, {}, strict=True)


@pytest.mark.parametrize("value", [b"", b"\x00\xff", b"[]", b"17", b'{"v":2,"id":"x"}', b'{"snapshot":[1]}'])
def test_record_of_another_program_is_void(value: bytes) -> None:
    replay = StateReplay(TOPIC)
    replay.take(0, 100_000, 0, value)
    assert replay.void == 1


def test_record_of_another_topic_is_void() -> None:
    replay = replayed(MARKER, strict(1, {LEDGER: TEXT}), strict(2, {LEDGER: None}, topic="another"))
    assert ([write.entry for write in replay.ledger], replay.void) == ([ENTRY], 1)


def test_record_without_a_topic_is_void_after_the_marker() -> None:
    replay = replayed(edit({LEDGER: TEXT}), MARKER, edit({LEDGER: None}))
    assert ([write.entry for write in replay.ledger], replay.void) == ([ENTRY], 1)


def test_second_copy_of_a_record_is_void_after_the_marker() -> None:
    deletion = strict(2, {LEDGER: None})
    replay = replayed(MARKER, strict(1, {LEDGER: TEXT}), deletion, strict(1, {LEDGER: TEXT}))
    assert ([write.entry for write in replay.ledger], replay.void) == ([ENTRY, None], 1)


def test_new_leader_of_the_partition_skips_versions() -> None:
    """A record that expects a version which a lost tail had given must not match a later one."""
    records = [MARKER, strict(1, {LEDGER: TEXT}), strict(2, {LEDGER: TEXT}), strict(3, {LEDGER: TEXT})]
    replay = replayed(*records, strict(4, {LEDGER: None}, versions={LEDGER: FIRST + 2_000_002}), epochs=(0, 0, 2, 2, 2))
    assert (len(replay.ledger), replay.void) == (4, 0)
    assert replayed(*records, strict(4, {LEDGER: None}, versions={LEDGER: FIRST + 2})).void == 0


def test_record_that_names_another_leader_epoch_is_void() -> None:
    assert replayed(MARKER, strict(1, {LEDGER: TEXT}, epoch=3), epochs=(0, 3)).void == 0
    assert replayed(MARKER, strict(1, {LEDGER: TEXT}, epoch=3), epochs=(0, 4)).void == 1


def test_lost_node_gets_its_old_version_again() -> None:
    records = [strict(1, {LEDGER: TEXT}, origins={LEDGER: 7}), strict(2, {LEDGER: None}, versions={LEDGER: 7})]
    assert (len(replayed(MARKER, *records).ledger), replayed(MARKER, *records).void) == (2, 0)


def test_snapshot_has_no_effect() -> None:
    snapshot = {"v": 1, "id": "x", "base": 1, "parts": 1, "last_version": 0, "part": 0, "rows": []}
    replay = replayed(edit({SESSION: "{}"}), CLAIM, {"snapshot": snapshot}, edit({LEDGER: TEXT}, {}, FIRST + 1))
    assert (len(replay.ledger), replay.void) == (1, 0)


def test_commit_puts_its_copy_into_effect() -> None:
    replay = replayed(
        MARKER, *copy({LEDGER: (TEXT, FIRST + 7)}, after=1), strict(6, {LEDGER: None}, versions={LEDGER: FIRST + 7})
    )
    assert ([write.entry for write in replay.ledger], replay.void) == ([ENTRY, None], 0)


def test_commit_is_void_after_a_record_that_its_author_had_not_read() -> None:
    """A process that was frozen while it restored the topic must not replace what others wrote meanwhile."""
    part, commit = copy({LEDGER: (TEXT, FIRST + 7)}, after=1)
    replay = replayed(MARKER, part, strict(1, {SESSION: "{}"}), commit)
    assert (replay.ledger, replay.void) == ([], 1)
