"""The door of the state topic: a record of another party among those of autothrottle's processes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from autothrottle.adapters.kafka_state.replica import Effect, StateEdit, StateReplica, Tree
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


def replica(start: int = 0) -> StateReplica:
    result = StateReplica(TERM)
    result.begin(start, is_new_topic=True)
    return result


def filled() -> StateReplica:
    result = replica()
    for offset, record in enumerate(RECORDS):
        result.accept(offset, TIME, record)
    return result


TREE = filled().tree
(PART,) = TREE.parts("p-9", len(RECORDS))
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
    json.loads(TREE.parts("q-3", len(RECORDS))[0]),
    json.loads(TREE.parts("q-4", len(RECORDS), 0)[0]),
    {"snapshot": {**json.loads(TREE.parts("q-5", len(RECORDS))[0])["snapshot"], "parts": 2}},
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
        complete, waiting, restored = filled(), replica(len(RECORDS)), replica(1)
        (lost,) = TREE.parts("p-11", len(RECORDS), 1)
        tree = content(complete.tree)
        results = complete.accept(len(RECORDS), attack.time, attack.value)
        has_effect = bool(results or content(complete.tree) != tree or complete._snapshots or complete.snapshot_base)
        check_snapshot(complete.tree)
        check_next_edit(complete, len(RECORDS) + 1)
        waiting.accept(len(RECORDS), attack.time, attack.value)
        waiting.accept(len(RECORDS) + 1, TIME, PART)
        check_next_edit(waiting, len(RECORDS) + 2)
        restored.accept(1, attack.time, attack.value)
        restored.accept(2, TIME, lost)
        if restored.is_complete:  # otherwise the attack is a change, which makes the memory of a process out of date
            check_next_edit(restored, 3)
        if not has_effect:
            raise Invalid("the record has no effect")

    def close(self) -> None:
        """Nothing to release."""


def content(tree: Tree) -> object:
    return tree.last_version, sorted(tree.nodes()), list(tree.audit)


def check_next_edit(state: StateReplica, offset: int) -> None:
    """A valid edit applies, with a larger version than all others."""
    tree = state.tree
    versions = {path: tree.version(path) for path in (OVERRIDE, LEDGER)}
    edit = StateEdit(
        id="p-12", fence=tree.fence, versions=versions, texts={OVERRIDE: "60", LEDGER: None}, audit="anna set 60"
    )
    newest = max([tree.last_version, *(node.version for _, node in tree.nodes())])
    (result,) = state.accept(offset, TIME, edit.encoded())
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
    for offset, part in enumerate(tree.parts("p-13", 10), start=10):
        copy.accept(offset, TIME, part)
    require(copy.is_complete, "a snapshot of the state cannot be read")
    require_same("a snapshot", content(tree), content(copy.tree))
