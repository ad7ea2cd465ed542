"""All processes derive the same state from the records, whatever else is in the topic and wherever they start."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.adapters.kafka_state.replica import Effect, StateEdit, StateReplica, Tree

TERM = "/a/term"
TIME = 1_795_000_000_000
FIRST_VERSION = TIME * 1000


def replica(records: Sequence[bytes] = (), start: int = 0) -> StateReplica:
    """Return a replica that has read these records from an offset on."""
    result = StateReplica(TERM, audit_records=3)
    result.begin(start, is_new_topic=True)
    for offset, record in enumerate(records, start=start):
        result.accept(offset, TIME, record)
    return result


def content(tree: Tree) -> object:
    return tree.last_version, sorted(tree.nodes()), list(tree.audit)


def claim(version: int = 0, holder: str = "anna") -> StateEdit:
    return StateEdit(id=holder, versions={TERM: version}, texts={TERM: holder})


def test_the_first_of_two_claims_of_a_term_leads() -> None:
    first, second = claim(holder="anna"), claim(holder="bernd")
    state = replica()
    (led,) = state.accept(0, TIME, first.encoded())
    (lost,) = state.accept(1, TIME, second.encoded())
    assert (led.effect, led.version, led.fence) == (Effect.APPLIED, FIRST_VERSION, FIRST_VERSION)
    assert (lost.effect, lost.version, lost.fence) == (Effect.OUTRUN, 0, FIRST_VERSION)
    assert state.tree.node(TERM) is not None


def test_a_claim_is_void_if_the_leader_has_written_a_heartbeat_since() -> None:
    state = replica([claim().encoded(), StateEdit(texts={"/a/election/anna": "1"}).encoded()])
    heartbeat = state.tree.version("/a/election/anna")
    state.accept(2, TIME, StateEdit(texts={"/a/election/anna": "1"}).encoded())
    late = StateEdit(versions={TERM: state.tree.fence, "/a/election/anna": heartbeat}, texts={TERM: "bernd"})
    assert state.accept(3, TIME, late.encoded())[0].effect is Effect.OUTRUN


def test_an_edit_of_an_ended_term_changes_nothing_and_hides_nothing() -> None:
    """Compaction by key would keep the void record, as the newest of its node, and drop the valid one."""
    state = replica([claim().encoded()])
    old = state.tree.fence
    state.accept(1, TIME, claim(old, "bernd").encoded())
    state.accept(2, TIME, StateEdit(fence=state.tree.fence, versions={"/a/x": 0}, texts={"/a/x": "valid"}).encoded())
    late = StateEdit(fence=old, versions={"/a/x": state.tree.version("/a/x")}, texts={"/a/x": "void"})
    assert state.accept(3, TIME, late.encoded())[0].effect is Effect.TERM_OVER
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
    "record",
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
def test_a_record_that_is_not_ours_has_no_effect(record: bytes) -> None:
    state = replica([claim().encoded()])
    earlier = content(state.tree)
    assert state.accept(1, TIME, record) == []
    assert content(state.tree) == earlier and state.position == 2


@pytest.mark.parametrize("time", [-1, 2**63 - 1])
def test_a_record_with_an_impossible_time_has_no_effect(time: int) -> None:
    """A record of another client with a time of 2^63 ms gave all later edits versions beyond 64 bits."""
    state = replica([claim().encoded()])
    assert state.accept(1, time, StateEdit(texts={"/a/x": "1"}).encoded()) == []
    assert state.accept(2, TIME, StateEdit(texts={"/a/x": "2"}).encoded())[0].version == FIRST_VERSION + 1


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
    part = json.loads(state.tree.parts("s", 1, lost_before=1)[0])["snapshot"]
    earlier = content(state.tree)
    state.accept(1, TIME, json.dumps({"snapshot": part | change}).encode())
    assert content(state.tree) == earlier
    assert state.accept(2, TIME, StateEdit(texts={"/a/x": "2"}).encoded())[0].effect is Effect.APPLIED


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


@given(edits, st.data())
def test_a_replica_that_begins_at_a_snapshot_has_the_state_of_all_others(
    all_edits: Sequence[StateEdit], data: st.DataObject
) -> None:
    records = [edit.encoded() for edit in all_edits]
    base = data.draw(st.integers(0, len(records)))
    parts = replica(records[:base]).tree.parts("1", base)
    at = data.draw(st.integers(base, len(records)))
    log = [*records[:at], *parts, *records[at:]]
    whole, short = replica(log), replica(log[base:], start=base)
    assert whole.is_complete and whole.snapshot_base == base
    assert short.is_complete
    assert content(short.tree) == content(whole.tree) == content(replica(records).tree)


@given(edits, st.data())
def test_without_all_parts_a_replica_stays_incomplete(all_edits: Sequence[StateEdit], data: st.DataObject) -> None:
    tree = replica([edit.encoded() for edit in all_edits]).tree
    for number in range(50):
        tree.apply(StateEdit(texts={f"/big/{number}": "x" * 20_000}), TIME)
    parts = tree.parts("1", 7)
    assert len(parts) > 2
    missing = data.draw(st.integers(0, len(parts) - 1))
    assert not replica([part for number, part in enumerate(parts) if number != missing], start=7).is_complete
    doubled = [*parts[: missing + 1], *parts]
    assert content(replica(doubled, start=7).tree) == content(tree)


def test_the_parts_of_two_snapshots_are_not_mixed() -> None:
    first = replica()
    for number in range(50):
        first.tree.apply(StateEdit(texts={f"/big/{number}": "x" * 20_000}), TIME)
    second = replica()
    for number in reversed(range(50)):  # the same nodes in another order
        second.tree.apply(StateEdit(texts={f"/big/{number}": "x" * 20_000}), TIME)
    mixed = [part for pair in zip(first.tree.parts("1", 7), second.tree.parts("2", 7), strict=True) for part in pair]
    assert len(mixed) > 4
    assert content(replica(mixed, start=7).tree) == content(first.tree)


def test_a_snapshot_is_useless_if_the_records_after_its_base_are_gone() -> None:
    parts = replica([claim().encoded()]).tree.parts("1", 1)
    state = replica([*parts, StateEdit(texts={"/a/x": "1"}).encoded()], start=2)
    assert not state.is_complete and state.snapshot_base == 0


# Loss.


def lost(records: Sequence[bytes]) -> StateReplica:
    """Return a replica whose topic was deleted and created again."""
    state = replica(records)
    state.has_been_current = True
    state.begin(0, is_new_topic=True)
    return state


def test_a_process_that_had_read_a_part_only_restores_nothing() -> None:
    """Another party deleted the rest while it started. Its part would have replaced the ledger of all others."""
    state = replica([claim().encoded()])
    state.begin(5, is_new_topic=False)
    assert not state.is_complete and state.tree.last_version == 0


def test_a_lost_topic_is_restored_from_the_memory_of_a_process() -> None:
    old = replica([claim().encoded()])
    restored = lost([claim().encoded()])
    assert not restored.is_complete
    heartbeat = StateEdit(texts={"/a/election/1": "1"}).encoded()
    log = [heartbeat, *old.tree.parts("1", 0, lost_before=0)]
    for state in (restored, replica()):
        for offset, record in enumerate(log):
            state.accept(offset, TIME, record)
        assert state.is_complete and content(state.tree) == content(old.tree)


def test_a_memory_that_comes_too_late_changes_nothing() -> None:
    """Another process had begun anew, and its readers already followed its edits."""
    old = replica([claim().encoded(), claim(FIRST_VERSION).encoded()])
    beginner = StateEdit(id="x", versions={TERM: 0}, texts={TERM: "carla"}).encoded()
    log = [beginner, *old.tree.parts("1", 0, lost_before=0)]
    late, fresh = lost([claim().encoded()]), replica()
    for state in (late, fresh):
        for offset, record in enumerate(log):
            state.accept(offset, TIME + 9, record)
        node = state.tree.node(TERM)
        assert node is not None and node.text == "carla"
    assert content(late.tree) == content(fresh.tree)
    assert late.lost is not None and fresh.lost is None


def test_records_that_another_party_deleted_are_restored_for_those_who_lack_them() -> None:
    old = replica([claim().encoded(), StateEdit(versions={"/a/x": 0}, texts={"/a/x": "1"}).encoded()])
    parts = old.tree.parts("1", 2, lost_before=2)
    reader = replica(parts, start=2)
    assert reader.is_complete and content(reader.tree) == content(old.tree)
    for offset, record in enumerate(parts, start=2):
        old.accept(offset, TIME, record)
    assert content(old.tree) == content(reader.tree)
