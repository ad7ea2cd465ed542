"""The door of the state topic: a record of another party among those of autothrottle's processes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from autothrottle.adapters.kafka_state.records import Commit, CopyHeader, StateEdit
from autothrottle.adapters.kafka_state.replica import StateReplica
from autothrottle.adapters.kafka_state.topic import TopicRecord
from autothrottle.adapters.kafka_state.tree import EditResult, Effect, Tree
from autothrottle.core.errors import Invalid
from tests.fuzz import hostile
from tests.fuzz.hostile import Choices
from tests.fuzz.series import require, require_same

TERM, OVERRIDE, LEDGER = "/a/term", "/a/overrides/1001", "/a/ledger/brokers/1001"
TIME = 1_795_000_000_000
RECORDS = [
    StateEdit(id="p-0", versions={TERM: 0}, texts={TERM: "anna"}).encoded(),
    StateEdit(id="p-1", texts={"/a/election/anna": "1"}).encoded(),
    StateEdit(id="p-2", versions={OVERRIDE: 0}, texts={OVERRIDE: "50"}, audit="anna set 50").encoded(),
    StateEdit(id="p-3", versions={LEDGER: 0}, texts={LEDGER: "5"}).encoded(),
]
FENCE = TIME * 1000
MOST = 2**63 - 1


TOPIC = "topic"
MARKER = StateEdit(id="m-0", topic=TOPIC, time=TIME, is_strict=True).encoded()


def replica(start: int = 0) -> StateReplica:
    return StateReplica(TOPIC, start, TERM)


def read(state: StateReplica, *values: bytes, time: int = TIME) -> list[EditResult]:
    """Let a replica read the next records; return the results of the last one."""
    results: list[EditResult] = []
    for value in values:
        results = state.accept(TopicRecord(state.position, time, value, 0))
    return results


def filled(is_strict: bool = False) -> StateReplica:
    result = replica()
    read(result, *RECORDS, *([MARKER] if is_strict else ()))
    return result


def snapshot(tree: Tree, copy_id: str, base: int, last_record: int = -1) -> Sequence[bytes]:
    return tree.parts(CopyHeader(copy_id, base, topic=TOPIC, epoch=0, last_record=last_record))[1]


def old_copy(tree: Tree, copy_id: str, base: int, lost_before: int | None = None) -> Sequence[bytes]:
    return tree.parts(CopyHeader(copy_id, base, lost_before=lost_before))[1]


TREE = filled().tree
STRICT_TREE = filled(is_strict=True).tree
RESTORE, PARTS = STRICT_TREE.parts(CopyHeader("r-1", None, topic=TOPIC))
DOCUMENTS: Sequence[Any] = (
    {
        "v": 1,
        "id": "q-0",
        "fence": FENCE,
        "versions": {LEDGER: TREE.version(LEDGER)},
        "texts": {LEDGER: "7", OVERRIDE: None},
    },
    {"v": 1, "id": "q-1", "texts": {"/a/election/bernd": "1"}, "audit": "bernd set 7"},
    {"v": 1, "id": "q-2", "texts": {path: "1" for path in (TERM, OVERRIDE, LEDGER, "/a/pause")}},
    {
        **{"v": 1, "id": "q-6", "topic": TOPIC, "time": TIME, "strict": True, "epoch": 0, "digest": [0, "0" * 16]},
        **{"texts": {OVERRIDE: "7"}, "origins": {OVERRIDE: FENCE}},
    },
    json.loads(old_copy(TREE, "q-3", len(RECORDS))[0]),
    json.loads(old_copy(TREE, "q-4", len(RECORDS), 0)[0]),
    json.loads(snapshot(STRICT_TREE, "q-7", len(RECORDS) + 1)[0]),
    json.loads(Commit(RESTORE, 0, len(RECORDS) + 1, 0).encoded()),
    {"snapshot": {**json.loads(old_copy(TREE, "q-5", len(RECORDS))[0])["snapshot"], "parts": 2}},
)


class Attack(NamedTuple):
    """A record, and when its author says that it was appended."""

    value: bytes
    time: int


class StateRecords:
    """Replicas that have read the whole log, or wait for a snapshot."""

    name = "state"

    def make(self, choices: Choices) -> Attack:
        time = max(-MOST - 1, min(hostile.integer(choices), MOST)) if choices.one_in(8) else TIME
        return Attack(hostile.json_text(DOCUMENTS, choices), time)

    def check(self, attack: Attack) -> None:
        has_effect = False
        for is_strict in (False, True):
            complete = filled(is_strict)
            last_position, tree = complete.position, content(complete.tree)
            results = read(complete, attack.value, time=attack.time)
            has_copy = bool(complete._copies) or complete.snapshot_base > 0 or not complete.is_complete
            has_effect |= bool(results or has_copy or content(complete.tree) != tree)
            if complete.is_complete:  # otherwise the attack claims that the parts of a restore preceded
                check_snapshot(complete.tree)
                check_next_edit(complete)
            waiting = replica(last_position)
            read(waiting, attack.value, time=attack.time)
            copy = snapshot(STRICT_TREE if is_strict else TREE, "p-9", last_position)
            read(waiting, *copy)
            if waiting.is_complete:
                check_next_edit(waiting)
        restored = replica(1)
        read(restored, attack.value, time=attack.time)
        end = restored.position
        read(restored, *PARTS, Commit(RESTORE, end, end + len(PARTS), 0).encoded())
        require(restored.is_complete, "a restore that directly follows the attack has no effect")
        check_next_edit(restored)
        if not has_effect:
            raise Invalid("the record has no effect")

    def close(self) -> None:
        """Nothing to release."""


def content(tree: Tree) -> object:
    return tree.last_version, sorted(tree.nodes()), list(tree.audit)


def check_next_edit(state: StateReplica) -> None:
    """A valid edit applies, with a larger version than all others."""
    tree = state.tree
    versions = {path: tree.version(path) for path in (OVERRIDE, LEDGER)}
    edit = StateEdit(
        id="p-12",
        fence=tree.fence,
        versions=versions,
        texts={OVERRIDE: "60", LEDGER: None},
        audit="anna set 60",
        topic=TOPIC,
        time=TIME,
    )
    newest = max([tree.last_version, *(node.version for _, node in tree.nodes())])
    (result,) = read(state, edit.encoded())
    require(result.effect is Effect.APPLIED, f"a valid edit is void: {result.effect}")
    require(newest < result.version <= MOST, f"version {result.version} after {newest}")
    require(
        state.tree.version(LEDGER) == 0 and state.tree.version(OVERRIDE) == result.version, "the edit has no effect"
    )
    require(state.tree.audit[-1].text == "anna set 60", "the audit record is missing")


def check_snapshot(tree: Tree) -> None:
    """A snapshot of the state can be written and read, and its times can be shown."""
    for _, node in tree.nodes():
        node.text.encode()
        datetime.fromtimestamp(node.time / 1000, UTC)
    for entry in tree.audit:
        entry.text.encode()
        datetime.fromtimestamp(entry.time / 1000, UTC)
    copy = replica(10)
    read(copy, *snapshot(tree, "p-13", 10))
    require(copy.is_complete, "a snapshot of the state cannot be read")
    require_same("a snapshot", content(tree), content(copy.tree))
