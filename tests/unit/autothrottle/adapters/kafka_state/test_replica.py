"""All processes derive the same state from the records, whatever else is in the topic and wherever they start."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.adapters.kafka_state.records import MAX_RECORD_BYTES, Commit, CopyHeader, CopyPart, StateEdit
from autothrottle.adapters.kafka_state.replica import StateReplica
from autothrottle.adapters.kafka_state.topic import TopicRecord
from autothrottle.adapters.kafka_state.tree import Effect, Tree, edits_of_lost, lost_values

TERM = "/a/term"
TIME = 1_795_000_000_000
FIRST_VERSION = TIME * 1000


TOPIC = "topic"


def record(offset: int, value: bytes, time: int = TIME, epoch: int = 0) -> TopicRecord:
    return TopicRecord(offset, time, value, epoch)


def replica(records: Sequence[bytes] = (), start: int = 0) -> StateReplica:
    """Return a replica that has read these records from an offset on, to the end of the log."""
    result = StateReplica(TOPIC, start, TERM, audit_records=3)
    for offset, value in enumerate(records, start=start):
        result.accept(record(offset, value))
    result.reach_end()
    return result


def parts(tree: Tree, copy_id: str, base: int | None, lost_before: int | None = None) -> Sequence[bytes]:
    """Return the parts of a copy in the format of older versions."""
    return tree.parts(CopyHeader(copy_id, base, lost_before=lost_before))[1]


def content(tree: Tree) -> object:
    return tree.last_version, sorted(tree.nodes()), list(tree.audit)


def claim(version: int = 0, holder: str = "anna") -> StateEdit:
    return StateEdit(id=holder, versions={TERM: version}, texts={TERM: holder})


def test_the_first_of_two_claims_of_a_term_leads() -> None:
    first, second = claim(holder="anna"), claim(holder="bernd")
    state = replica()
    (led,) = state.accept(record(0, first.encoded()))
    (lost,) = state.accept(record(1, second.encoded()))
    assert (led.effect, led.version, led.fence) == (Effect.APPLIED, FIRST_VERSION, FIRST_VERSION)
    assert (lost.effect, lost.version, lost.fence) == (Effect.OUTRUN, 0, FIRST_VERSION)
    assert state.tree.node(TERM) is not None


def test_a_claim_is_void_if_the_leader_has_written_a_heartbeat_since() -> None:
    state = replica([claim().encoded(), StateEdit(texts={"/a/election/anna": "1"}).encoded()])
    heartbeat = state.tree.version("/a/election/anna")
    state.accept(record(2, StateEdit(texts={"/a/election/anna": "1"}).encoded()))
    late = StateEdit(versions={TERM: state.tree.fence, "/a/election/anna": heartbeat}, texts={TERM: "bernd"})
    assert state.accept(record(3, late.encoded()))[0].effect is Effect.OUTRUN


def test_an_edit_of_an_ended_term_changes_nothing_and_hides_nothing() -> None:
    """Compaction by key would keep the void record, as the newest of its node, and drop the valid one."""
    state = replica([claim().encoded()])
    old = state.tree.fence
    state.accept(record(1, claim(old, "bernd").encoded()))
    state.accept(record(2, StateEdit(fence=state.tree.fence, versions={"/a/x": 0}, texts={"/a/x": "valid"}).encoded()))
    late = StateEdit(fence=old, versions={"/a/x": state.tree.version("/a/x")}, texts={"/a/x": "void"})
    assert state.accept(record(3, late.encoded()))[0].effect is Effect.TERM_OVER
    node = state.tree.node("/a/x")
    assert node is not None and node.text == "valid"


def test_a_second_copy_of_an_edit_has_no_effect() -> None:
    edit = StateEdit(id="1", versions={"/a/x": 0}, texts={"/a/x": "1"}, audit="set")
    record = StateEdit(id="2", audit="submitted")
    state = replica([edit.encoded(), edit.encoded(), record.encoded(), record.encoded()])
    assert [entry.text for entry in state.tree.audit] == ["set", "submitted"]
    assert state.tree.last_version == FIRST_VERSION + 1


def test_only_the_newest_audit_records_stay() -> None:
    state = replica([StateEdit(id=str(n), audit=f"change {n}").encoded() for n in range(5)])
    assert [(entry.number, entry.text) for entry in state.tree.audit] == [(n + 1, f"change {n}") for n in (2, 3, 4)]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff",
        b"7",
        b"[]",
        b"{}",
        b'{"v":2,"id":"x","texts":{"/a/x":"1"}}',
        b'{"v":1,"id":7}',
        b'{"v":1,"id":"x","texts":{"/a/x":7}}',
        b'{"v":1,"id":"x","versions":{"/a/x":"7"}}',
        b'{"v":1,"id":"x","fence":true}',
        b'{"v":1,"id":"x","texts":[1]}',
        b'{"snapshot":7}',
        b'{"snapshot":{"v":1}}',
        b'{"snapshot":{"v":1,"base":0,"lost_before":null,"last_version":"x","parts":1,"part":0,"rows":[[1]]}}',
    ],
)
def test_a_record_that_is_not_ours_has_no_effect(value: bytes) -> None:
    state = replica([claim().encoded()])
    earlier = content(state.tree)
    assert state.accept(record(1, value)) == []
    assert content(state.tree) == earlier and state.position == 2


@pytest.mark.parametrize("time", [-1, 2**63 - 1])
def test_a_record_with_an_impossible_time_has_no_effect(time: int) -> None:
    """A record of another client with a time of 2^63 ms gave all later edits versions beyond 64 bits."""
    state = replica([claim().encoded()])
    assert state.accept(record(1, StateEdit(texts={"/a/x": "1"}).encoded(), time)) == []
    assert state.accept(record(2, StateEdit(texts={"/a/x": "2"}).encoded()))[0].version == FIRST_VERSION + 1


@pytest.mark.parametrize(
    "change",
    [
        {"last_version": "7"},
        {"last_version": 2**63},
        {"rows": [["node", "/a/x", 7, 1, 1]]},
        {"rows": [["node", "/a/x", "7", 2**70, 1]]},
        {"rows": [["audit", 1, 1, 1, "id", None]]},
    ],
)
def test_a_snapshot_with_a_wrong_field_is_not_loaded(change: Mapping[str, object]) -> None:
    """Such a field was loaded, and the next edit, the next snapshot or a reader of the node failed."""
    state = replica([claim().encoded()])
    part = json.loads(parts(state.tree, "s", 1, lost_before=1)[0])["snapshot"]
    earlier = content(state.tree)
    state.accept(record(1, json.dumps({"snapshot": part | change}).encode()))
    assert content(state.tree) == earlier
    assert state.accept(record(2, StateEdit(texts={"/a/x": "2"}).encoded()))[0].effect is Effect.APPLIED


# Snapshots.

PATHS = ("/a/x", "/a/y", TERM, "/a/election/1")
edits = st.lists(
    st.builds(
        StateEdit,
        id=st.text("abc", min_size=1, max_size=2),
        fence=st.sampled_from([0, 0, FIRST_VERSION, FIRST_VERSION + 2]),
        versions=st.dictionaries(
            st.sampled_from(PATHS), st.sampled_from([0, *(FIRST_VERSION + n for n in range(6))]), max_size=2
        ),
        texts=st.dictionaries(st.sampled_from(PATHS), st.none() | st.text(max_size=3), max_size=2),
        audit=st.sampled_from(["", "", "audit"]),
    ),
    max_size=12,
)


def snapshot(tree: Tree, copy_id: str, base: int, epoch: int = 0, last_record: int = -1) -> Sequence[bytes]:
    """Return the parts of a snapshot; by default no record of ours precedes its base."""
    return tree.parts(CopyHeader(copy_id, base, topic=TOPIC, epoch=epoch, last_record=last_record))[1]


@given(edits, st.booleans(), st.data())
def test_a_replica_that_begins_at_a_snapshot_has_the_state_of_all_others(
    all_edits: Sequence[StateEdit], is_strict: bool, data: st.DataObject
) -> None:
    first = StateEdit(id="m-0", topic=TOPIC, is_strict=is_strict, time=TIME)
    named = [replace(edit, id=f"p-{n}", topic=TOPIC, time=TIME) for n, edit in enumerate(all_edits)]
    records = [edit.encoded() for edit in (first, *named)]
    base = data.draw(st.integers(1, len(records)))
    copy = snapshot(replica(records[:base]).tree, "1", base)
    at = data.draw(st.integers(base, len(records)))
    log = [*records[:at], *copy, *records[at:]]
    whole, short = replica(log), replica(log[base:], start=base)
    assert whole.is_complete and whole.snapshot_base == base and whole.last_snapshot == "1"
    assert short.is_complete
    assert content(short.tree) == content(whole.tree) == content(replica(records).tree)
    assert short.tree.digest == whole.tree.digest


@given(edits, st.data())
def test_without_all_parts_a_replica_stays_incomplete(all_edits: Sequence[StateEdit], data: st.DataObject) -> None:
    tree = replica([edit.encoded() for edit in all_edits]).tree
    for number in range(50):
        tree.apply(StateEdit(texts={f"/big/{number}": "x" * 20_000}), TIME, 0)
    copy = snapshot(tree, "1", 7)
    assert len(copy) > 2
    missing = data.draw(st.integers(0, len(copy) - 1))
    assert not replica([part for number, part in enumerate(copy) if number != missing], start=7).is_complete
    doubled = [*copy[: missing + 1], *copy]
    assert content(replica(doubled, start=7).tree) == content(tree)


def test_the_parts_of_two_snapshots_are_not_mixed() -> None:
    first = replica()
    for number in range(50):
        first.tree.apply(StateEdit(texts={f"/big/{number}": "x" * 20_000}), TIME, 0)
    second = replica()
    for number in reversed(range(50)):  # the same nodes in another order
        second.tree.apply(StateEdit(texts={f"/big/{number}": "x" * 20_000}), TIME, 0)
    copies = snapshot(first.tree, "1", 7), snapshot(second.tree, "2", 7)
    mixed = [part for pair in zip(*copies, strict=True) for part in pair]
    assert len(mixed) > 4
    assert content(replica(mixed, start=7).tree) == content(first.tree)


def test_a_snapshot_is_useless_if_the_records_after_its_base_are_gone() -> None:
    copy = snapshot(replica([claim().encoded()]).tree, "1", 1)
    state = replica([*copy, StateEdit(texts={"/a/x": "1"}).encoded()], start=2)
    assert not state.is_complete and state.snapshot_base == 0


# The strict rules.

MARKER = StateEdit(id="m-0", topic=TOPIC, is_strict=True, time=TIME)


def strict_edit(edit_id: str, **fields: object) -> StateEdit:
    return StateEdit(id=edit_id, topic=TOPIC, time=TIME, **fields)  # type: ignore[arg-type]


def filled() -> StateReplica:
    """Return a replica with a strict tree of one node, at offset 2."""
    return replica([MARKER.encoded(), strict_edit("p-1", versions={"/a/x": 0}, texts={"/a/x": "1"}).encoded()])


def restore(tree: Tree, copy_id: str, begin: int, after: int | None = None, epoch: int = 0) -> Sequence[bytes]:
    """Return the records of a restore by a process that had read to the end that precedes them."""
    header, copy = tree.parts(CopyHeader(copy_id, None, topic=TOPIC))
    return [*copy, Commit(header, begin, begin + len(copy) if after is None else after, epoch).encoded()]


def test_a_late_second_copy_of_the_record_that_created_a_node_does_not_revive_it() -> None:
    """The copy arrived after the node's deletion, so it found no node, as it expected. The entry lived again."""
    state = filled()
    state.accept(record(2, strict_edit("p-2", versions={"/a/x": FIRST_VERSION}, texts={"/a/x": None}).encoded()))
    copy = strict_edit("p-1", versions={"/a/x": 0}, texts={"/a/x": "1"})
    assert state.accept(record(3, copy.encoded())) == []
    assert state.tree.node("/a/x") is None


def test_records_of_another_topic_and_without_a_topic_are_void() -> None:
    """A mirror or a backup copies the records of another cluster. They were taken for our own."""
    state = filled()
    earlier = content(state.tree)
    for topic in ("another", ""):
        edit = replace(strict_edit("q-1", texts={"/a/x": "2"}), topic=topic)
        assert state.accept(record(state.position, edit.encoded())) == []
    assert content(state.tree) == earlier and state.foreign_records == 2


def test_a_topic_with_records_of_another_program_has_none_of_ours() -> None:
    state = replica([b"an event", b'{"type":"click"}'])
    assert state.foreign_records == 2 and not state.has_own_records


def test_a_foreign_record_that_looks_like_an_old_snapshot_is_void_for_all() -> None:
    """A process that started after this record had an empty tree, and led beside the leader."""
    state = filled()
    forged = parts(replica().tree, "x", 2)
    beat = strict_edit("p-2", texts={"/a/election/p": "1"}, is_strict=True).encoded()
    log = [*forged, beat, *snapshot(filled().tree, "s", 2, last_record=1)]
    late = StateReplica(TOPIC, 2, TERM, audit_records=3)
    for offset, value in enumerate(log, start=2):
        for reader in (state, late):
            reader.accept(record(offset, value))
            reader.reach_end()
    assert late.is_complete and late.tree.digest == state.tree.digest


@pytest.mark.parametrize("field", ["base", "lost_before"])
def test_a_position_far_ahead_neither_shortens_the_log_nor_keeps_it_long(field: str) -> None:
    """A foreign base of 2^62 counted as the newest one. The log was never shortened again."""
    state = filled()
    earlier = content(state.tree)
    forged = json.loads(snapshot(replica().tree, "x", 0)[0])["snapshot"] | {field: 2**62}
    state.accept(record(2, json.dumps({"snapshot": forged}).encode()))
    for offset, part in enumerate(snapshot(state.tree, "s", 3), start=3):
        state.accept(record(offset, part))
    assert (state.snapshot_base, state.last_snapshot) == (3, "s")
    assert content(state.tree) == earlier


def test_a_snapshot_of_a_process_that_has_another_tree_does_not_count() -> None:
    state, other = filled(), filled()
    other.tree.put("/a/x", None)
    for offset, part in enumerate(snapshot(other.tree, "s", 2), start=2):
        state.accept(record(offset, part))
    assert state.snapshot_base == 0


def test_a_snapshot_that_a_new_leader_of_the_partition_interrupts_is_void() -> None:
    """The log may have lost its tail since its author read it. Then the base means another record."""
    copy = snapshot(filled().tree, "s", 2, epoch=0)
    late = StateReplica(TOPIC, 2, TERM)
    for offset, part in enumerate(copy, start=2):
        late.accept(record(offset, part, epoch=1))
    assert not late.is_complete


def test_a_restore_that_a_woken_process_sends_late_is_void_for_all() -> None:
    """A process was stopped before it sent a restore. Processes that started later lost the ledger of the leader."""
    old, state = filled(), filled()
    late_restore = restore(old.tree, "z", begin=2)
    edit = strict_edit("p-2", versions={"/a/y": 0}, texts={"/a/y": "new"}).encoded()
    state.accept(record(2, edit))
    log = [*snapshot(state.tree, "s", 3, last_record=2), *late_restore]
    late = StateReplica(TOPIC, 3, TERM, audit_records=3)
    for offset, value in enumerate(log, start=3):
        for reader in (state, late):
            reader.accept(record(offset, value))
    assert state.tree.version("/a/y") and late.tree.digest == state.tree.digest


def test_a_restore_gives_a_tree_to_all_that_lack_the_beginning() -> None:
    old, late = filled(), StateReplica(TOPIC, 5, TERM, audit_records=3)
    foreign = [b"another party's"]
    log = [*foreign, *restore(old.tree, "r", begin=6)]
    for offset, value in enumerate(log, start=5):
        late.accept(record(offset, value))
    assert late.is_complete and late.tree.version("/a/x") == old.tree.version("/a/x")
    assert late.tree.last_version > old.tree.last_version, "no version is given twice"


def test_a_heartbeat_of_a_process_with_a_tree_makes_a_restore_void() -> None:
    late = StateReplica(TOPIC, 5, TERM)
    copy, commit = restore(filled().tree, "r", begin=5)
    beat = strict_edit("p-9", texts={"/a/election/p": "1"}, is_strict=True).encoded()
    for offset, value in enumerate([copy, beat, commit], start=5):
        late.accept(record(offset, value))
    assert not late.is_complete


def test_a_reader_without_the_parts_of_a_restore_waits_for_a_snapshot() -> None:
    """It cannot know the tree, which other readers have. A guess would be another tree."""
    *_, commit = restore(filled().tree, "r", begin=2)
    late = StateReplica(TOPIC, 3, TERM)
    late.accept(record(3, commit))
    assert not late.is_complete
    for offset, part in enumerate(snapshot(filled().tree, "s", 3), start=4):
        late.accept(record(offset, part))
    assert not late.is_complete, "the base precedes the restore"


def test_a_new_leader_epoch_never_gives_a_version_that_a_lost_tail_had() -> None:
    """A log that lost its newest records gave their versions again. A term of the lost part counted as the new one."""
    first, second = filled(), filled()
    (lost,) = first.accept(record(2, strict_edit("p-2", versions={TERM: 0}, texts={TERM: "anna"}).encoded()))
    edit = strict_edit("q-2", versions={TERM: 0}, texts={TERM: "bernd"})
    (claimed,) = second.accept(record(2, edit.encoded(), epoch=3))
    assert claimed.version == lost.version + 3_000_000


def test_a_claim_from_before_a_new_leader_epoch_is_void() -> None:
    state = filled()
    late = strict_edit("p-2", versions={TERM: 0}, texts={TERM: "anna"}, epoch=0)
    (result,) = state.accept(record(2, late.encoded(), epoch=1))
    assert result.effect is Effect.OUTRUN


def test_a_process_with_another_tree_is_named() -> None:
    state = filled()
    digest = state.digests[2][0]
    beat = strict_edit("q-1", texts={"/a/election/q": "1"}, digest=(2, digest))
    state.accept(record(2, beat.encoded()))
    assert not state.differing
    state.accept(record(3, replace(beat, id="q-2", digest=(2, "0" * 16)).encoded()))
    assert state.differing == {"q": "/a/election/q"}
    state.accept(record(4, replace(beat, id="q-3", digest=(4, state.tree.digest)).encoded()))
    assert not state.differing


def test_a_record_above_the_limit_of_a_node_is_void() -> None:
    state = filled()
    big = strict_edit("p-2", texts={"/a/x": "x" * MAX_RECORD_BYTES})
    assert state.accept(record(2, big.encoded())) == [] and state.tree.node("/a/x").text == "1"  # type: ignore[union-attr]


def test_many_unfinished_copies_take_limited_memory_and_do_not_hinder_a_whole_one() -> None:
    state = filled()
    for number in range(1000):
        header = CopyHeader(f"u{number}", None, parts=2, topic=TOPIC)
        state.accept(record(state.position, CopyPart(header, 0, ()).encoded()))
    assert len(state._copies) <= 4
    for part in snapshot(state.tree, "s", base := state.position, last_record=1):
        state.accept(record(state.position, part))
    assert state.snapshot_base == base


def test_a_node_that_was_lost_is_written_again_with_its_version() -> None:
    memory, tree = filled().tree, replica([MARKER.encoded()]).tree
    values = lost_values(memory, tree, common_version=0)
    (edit,) = edits_of_lost(values, (), tree, is_strict=True)
    tree.apply(replace(edit, id="p-7"), TIME, 0)
    assert tree.node("/a/x") == memory.node("/a/x")
    assert not list(edits_of_lost(values, (), tree, is_strict=True))


def test_older_versions_cannot_read_a_snapshot_right_after_the_marker() -> None:
    """It had only rows that they know. An old process started, and could lead beside others that void its records."""
    (part,) = snapshot(replica([claim().encoded(), MARKER.encoded()]).tree, "s", 2)
    kinds = {row[0] for row in json.loads(part)["snapshot"]["rows"]}
    assert kinds - {"node", "audit"}


# The rules of older versions, before the marker.


def test_an_old_snapshot_is_taken_at_the_end_of_a_log_of_older_versions() -> None:
    records = [claim().encoded(), StateEdit(id="1", texts={"/a/x": "1"}).encoded()]
    beat = StateEdit(id="2", texts={"/a/election/anna": "1"}).encoded()
    copy = parts(replica(records).tree, "s", 2)
    late = replica([*copy, beat], start=2)
    assert late.is_complete and content(late.tree) == content(replica([*records, *copy, beat]).tree)


def test_an_old_restore_gives_a_tree_to_those_that_lack_the_beginning() -> None:
    old = replica([claim().encoded(), StateEdit(versions={"/a/x": 0}, texts={"/a/x": "1"}).encoded()])
    copy = parts(old.tree, "1", 2, lost_before=2)
    beat = StateEdit(id="2", texts={"/a/election/anna": "1"}).encoded()
    reader = replica([beat, *copy], start=2)
    assert reader.is_complete and content(reader.tree) == content(old.tree)
    for offset, part in enumerate([*copy], start=2):
        old.accept(record(offset, part))
    assert content(old.tree) == content(reader.tree)


def test_an_old_restore_after_a_change_is_void() -> None:
    beginner = StateEdit(id="x", versions={TERM: 0}, texts={TERM: "carla"}).encoded()
    old = replica([claim().encoded(), claim(FIRST_VERSION).encoded()])
    state = replica([beginner, *parts(old.tree, "1", 0, lost_before=0)])
    assert state.tree.node(TERM).text == "carla"  # type: ignore[union-attr]
