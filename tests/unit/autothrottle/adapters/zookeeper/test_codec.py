"""The texts in znodes: written values are read back, and malformed texts are refused, never half read."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autothrottle.adapters.zookeeper.codec import (
    SharedIds,
    StateNode,
    TopicNode,
    format_audit_record,
    format_change_notification,
    format_config,
    format_ledger_entry,
    format_override,
    parse_audit_record,
    parse_config,
    parse_ledger_entry,
    parse_override,
    parse_pause,
    parse_reassignments,
    parse_state,
    parse_states,
    parse_topic,
)
from autothrottle.core.cluster.configs import (
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    LedgerEntry,
    LedgerKey,
    broker_id_of,
)
from autothrottle.core.errors import Invalid
from autothrottle.core.operators.audit import MAX_WHO, StoredAuditRecord
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.core.records import AuditAction, Pause, PauseMode
from autothrottle.core.units import MAX_RATE
from tests.builders import NOON, ledger_entry

MB = 1_000_000

TEXTS = st.text(max_size=20)
ENDS = st.none() | st.datetimes(timezones=st.just(UTC))
BROKER_IDS = st.integers(0, 2**31 - 1)
REPLICAS = st.lists(BROKER_IDS, max_size=4)
PARTITIONS = st.dictionaries(st.integers(0, 99), REPLICAS, max_size=4)
ENTRIES = st.one_of(
    st.just(frozenset({"*"})),
    st.frozensets(st.builds("{}:{}".format, st.integers(0, 99), BROKER_IDS), max_size=5),
)
LEDGER_KEYS = st.one_of(
    st.builds(LedgerKey, st.none() | TEXTS, TEXTS, ENTRIES, st.none() | TEXTS),
    st.builds(LedgerKey, st.none(), st.none(), ENTRIES, TEXTS),
)
LEDGER_ENTRIES = st.builds(
    LedgerEntry, st.dictionaries(TEXTS, LEDGER_KEYS, max_size=3), st.integers(0, 2**31), st.integers(0, 2**31)
)
TOPICS = st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True).filter(lambda name: name not in (".", ".."))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
KAFKA_NAMES = ("partitions", "adding_replicas", "topic", "partition", "replicas", "leader", "isr", "config", "0", "x")
OWN_NAMES = (
    "keys",
    "term",
    "cycle",
    "before",
    "written",
    "owned",
    "intent",
    "late",
    "settles",
    "rate",
    "rate_bytes_per_second",
    "autoremove",
)
NAMES = st.sampled_from((*KAFKA_NAMES, *OWN_NAMES))
NEAR_MISSES = st.recursive(
    JSON,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=12,
)

PARSERS: list[Callable[[bytes], Any]] = [
    parse_topic,
    parse_state,
    parse_reassignments,
    parse_config,
    parse_ledger_entry,
    lambda data: parse_override(data, 1),
]
for_each_parser = pytest.mark.parametrize(
    "parse", PARSERS, ids=["topic", "state", "reassignments", "config", "ledger", "override"]
)


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


# Round trips.


@given(st.dictionaries(TEXTS, TEXTS, max_size=5))
def test_config_round_trip(config: dict[str, str]) -> None:
    assert parse_config(format_config(config)) == config


@given(LEDGER_ENTRIES)
def test_ledger_entry_round_trip(entry: LedgerEntry) -> None:
    assert parse_ledger_entry(format_ledger_entry(entry)) == entry


@given(st.integers(0, MAX_RATE), st.booleans(), st.integers(0, 2**63 - 1), ENDS)
def test_override_round_trip(rate: int, autoremove: bool, version: int, expire_time: datetime | None) -> None:
    override = StoredOverride(rate, autoremove, version, expire_time)
    assert parse_override(format_override(override), version) == override


@given(st.integers(1, MAX_RATE))
def test_rate_for_the_original_is_rounded_up_and_never_zero(rate: int) -> None:
    """The original treats 0 as a removed override."""
    whole = json.loads(format_override(StoredOverride(rate)))["rate"]
    assert (whole - 1) * MB < rate <= whole * MB


@given(PARTITIONS, PARTITIONS, PARTITIONS)
def test_topic_assignment_is_parsed_as_the_controller_writes_it(
    partitions: dict[int, list[int]], adding: dict[int, list[int]], removing: dict[int, list[int]]
) -> None:
    columns = [{str(p): r for p, r in column.items()} for column in (partitions, adding, removing)]
    names = ("partitions", "adding_replicas", "removing_replicas")
    node = parse_topic(encoded({"version": 3, "topic_id": "x", **dict(zip(names, columns, strict=True))}))
    expected = [{p: tuple(r) for p, r in column.items()} for column in (partitions, adding, removing)]
    assert node == TopicNode(*expected)


@given(st.integers(-1, 2**31 - 1), REPLICAS)
def test_partition_state_is_parsed_as_the_controller_writes_it(leader: int, isr: list[int]) -> None:
    state = {"controller_epoch": 1, "leader": leader, "version": 1, "leader_epoch": 0, "isr": isr}
    assert parse_state(encoded(state)) == StateNode(leader, tuple(isr))


@given(st.dictionaries(st.tuples(TOPICS, st.integers(0, 99)), REPLICAS, max_size=4))
def test_reassignments_are_parsed_as_kafkas_tools_write_them(targets: dict[tuple[str, int], list[int]]) -> None:
    entries = [{"topic": t, "partition": p, "replicas": r, "log_dirs": ["any"]} for (t, p), r in targets.items()]
    expected = {key: tuple(replicas) for key, replicas in targets.items()}
    assert parse_reassignments(encoded({"version": 1, "partitions": entries})) == expected


@pytest.mark.parametrize("lists", [{"0": [70001, 70002]}, {"0": [70001], "1": []}, {"0": [70001], "1": [70001, 70002]}])
def test_topics_share_broker_ids(lists: dict[str, list[int]]) -> None:
    shared = SharedIds()
    first, second = (parse_topic(encoded({"partitions": lists}), shared).replicas for _ in range(2))
    assert first == second == {int(partition): tuple(ids) for partition, ids in lists.items()}
    assert all(a is b for p in first for a, b in zip(first[p], second[p], strict=True))


def test_topic_before_kafka_2_4_has_no_adding_or_removing_replicas() -> None:
    assert parse_topic(b'{"version":1,"partitions":{"0":[1001]}}') == TopicNode({0: (1001,)}, {}, {})


def test_formatted_texts_are_those_that_kafka_expects() -> None:
    assert format_config({"a": "1"}) == b'{"version":1,"config":{"a":"1"}}'
    assert format_change_notification("topics/t1") == b'{"version":2,"entity_path":"topics/t1"}'


# Overrides written by the original.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", None),
        (b"  \n", None),
        (b"50", StoredOverride(50 * MB, beyond_capacity=True)),
        (b"50\n", StoredOverride(50 * MB, beyond_capacity=True)),
        (b"0", StoredOverride(0, beyond_capacity=True)),
        (b"000000000000000000000000000005", StoredOverride(5 * MB, beyond_capacity=True)),
        (b'{"rate":50,"autoremove":true}', StoredOverride(50 * MB, True, beyond_capacity=True)),
        (b'{"rate":0,"autoremove":false}', StoredOverride(0, beyond_capacity=True)),
        (
            b'{"rate":3,"autoremove":false,"rate_bytes_per_second":2000001}',
            StoredOverride(2_000_001, beyond_capacity=True),
        ),
    ],
)
def test_override_is_parsed_in_every_historical_format(text: bytes, expected: StoredOverride | None) -> None:
    """The original and earlier versions know no limit by the capacity, so their overrides have none."""
    assert parse_override(text, 0) == expected


@pytest.mark.parametrize(
    "text",
    [
        b"-1",
        b"0.5",
        b"null",
        b"true",
        b"[5]",
        b"{}",
        b'{"rate":"5"}',
        b'{"rate":true}',
        b'{"rate":1.5}',
        b'{"rate":-1}',
        b'{"rate":9223372036855}',
        b"9223372036855",
        b"9" * 5_000,
        b"five",
    ],
)
def test_malformed_override_is_refused_with_its_text(text: bytes) -> None:
    with pytest.raises(Invalid) as caught:
        parse_override(text, 0)
    assert text[:40].decode() in str(caught.value)


# Refused texts.


@for_each_parser
@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"null",
        b"[]",
        b'"x"',
        b"{}",
        b"\xff\xfe",
        b"[" * 50_000,
        b'{"config":null,"partitions":null,"isr":null,"keys":null}',
        b'{"config":{"a":1},"partitions":{"0":"12"},"leader":1,"isr":"12","keys":{"a":1},"term":1,"cycle":1}',
        b'{"config":[],"partitions":{"0":[1.5]},"leader":"1","isr":[1],"keys":{},"term":Infinity,"cycle":1}',
        b'{"config":"x","partitions":{"x":[1]},"leader":true,"isr":[],"keys":{},"cycle":1}',
        b'{"partitions":[{"topic":7,"partition":0,"replicas":[1]}]}',
        b'{"partitions":[{"topic":"t","partition":"0","replicas":[1]}]}',
        b'{"partitions":[{"topic":"t","partition":2147483648,"replicas":[1]}]}',
        b'{"partitions":[{"topic":"t","partition":-1,"replicas":[1]}]}',
        b'{"partitions":[{"topic":"t","partition":0,"replicas":[2147483648]}]}',
        b'{"keys":{"a":{"before":1,"written":"1"}},"term":1,"cycle":1}',
        b'{"keys":{"a":{"before":null,"written":null}},"term":1,"cycle":1}',
        b'{"keys":{"a":{"before":null,"written":"1","owned":"x"}},"term":1,"cycle":1}',
        b'{"keys":{"a":{"before":null,"written":"1","owned":["0:1"]}},"term":1,"cycle":1}',
        b'{"keys":{"leader.replication.throttled.replicas":{"before":null,"written":"x"}},"term":1,"cycle":1}',
    ],
)
def test_malformed_text_is_refused_with_a_message(parse: Callable[[bytes], Any], data: bytes) -> None:
    with pytest.raises(Invalid) as caught:
        parse(data)
    assert str(caught.value)


@for_each_parser
@settings(max_examples=50)
@given(data=st.binary(max_size=40) | NEAR_MISSES.map(encoded))
@example(data=b'{"leader":1e999,"isr":[NaN]}')
def test_arbitrary_bytes_are_parsed_or_refused_as_invalid(parse: Callable[[bytes], Any], data: bytes) -> None:
    try:
        parse(data)
    except Invalid as error:
        assert str(error)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("space", ["", " ", "\n"])
def test_json_is_parsed_in_every_encoding_and_with_surrounding_space(encoding: str, space: str) -> None:
    text = f'{space}{{"leader":1,"isr":[1,2]}}{space}'
    assert parse_state(text.encode(encoding)) == StateNode(1, (1, 2))


@pytest.mark.parametrize("before", [None, "9:1", "9:1,8:1"])
@pytest.mark.parametrize("key", [LEADER_RATE, LEADER_REPLICAS])
def test_released_key_has_an_intent_for_versions_that_ignore_late_writes(key: str, before: str | None) -> None:
    """They release it again. A record without a written value and without an intent would be malformed for them."""
    released = LedgerKey(before, before, late=frozenset({"0:1", "0:2"}), settles=NOON)
    data = format_ledger_entry(LedgerEntry({key: released}, 1))
    assert parse_ledger_entry(data).keys[key] == released
    of_older_version = json.loads(data)
    for field in ("late", "settles"):
        del of_older_version["keys"][key][field]
    record = parse_ledger_entry(encoded(of_older_version)).keys[key]
    assert (record.before, record.written, record.intent) == (before, before, "0:1,0:2")
    assert key == LEADER_RATE or record.owned == {"0:1", "0:2"}


def test_late_writes_of_a_key_that_is_ours_are_kept_beside_its_intent() -> None:
    key = LedgerKey(None, "5", intent="7", late=frozenset({"6", "7"}), settles=NOON)
    entry = LedgerEntry({LEADER_RATE: key}, 1)
    assert parse_ledger_entry(format_ledger_entry(entry)) == entry
    assert (key.intent, key.late, key.is_released) == ("7", frozenset({"6"}), False)


def test_fully_owned_list_is_written_without_owned_entries() -> None:
    entry = ledger_entry(leader_replication_throttled_replicas="0:1,1:2", owned=("0:1", "1:2"))
    assert b"owned" not in format_ledger_entry(entry)
    explicit = format_ledger_entry(entry).replace(b'"written"', b'"owned":"0:1,1:2","written"')
    assert parse_ledger_entry(explicit) == parse_ledger_entry(format_ledger_entry(entry)) == entry


def test_error_message_contains_only_the_start_of_a_long_text() -> None:
    with pytest.raises(Invalid) as caught:
        parse_config(b'{"config":' + b"x" * 10_000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "name", ["", "x", "-1", "+1", "01", " 1", "1 ", "1.0", "²", "٣", "1_0", "2147483648", "9" * 5_000, "<default>"]
)
def test_other_names_are_not_broker_ids(name: str) -> None:
    assert broker_id_of(name) is None


@given(BROKER_IDS)
def test_broker_id_is_parsed_as_kafka_writes_it(broker_id: int) -> None:
    assert broker_id_of(str(broker_id)) == broker_id


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ü", "\ud800", "x" * 250])
def test_impossible_topic_names_are_omitted_from_reassignments(name: str) -> None:
    """Some names are not valid in a path, and reading the states of such topics raised an unexpected error."""
    rows = [{"topic": topic, "partition": 0, "replicas": [1]} for topic in (name, "t")]
    assert parse_reassignments(json.dumps({"partitions": rows}).encode()) == {("t", 0): (1,)}


# Expiry of overrides, and audit records.


def test_override_expiry_is_parsed_in_any_time_zone() -> None:
    data = b'{"rate":5,"autoremove":false,"expire_time":"2030-01-31T18:00:00+01:00"}'
    override = parse_override(data, 1)
    assert override is not None
    assert override.expire_time == datetime(2030, 1, 31, 17, tzinfo=UTC)
    assert override.expire_time.tzinfo is UTC
    abroad = StoredOverride(5, expire_time=datetime(2030, 1, 31, 18, tzinfo=timezone(timedelta(hours=1))))
    assert json.loads(format_override(abroad))["expire_time"] == "2030-01-31T17:00:00+00:00"


@pytest.mark.parametrize(
    "end", ['"soon"', '""', "5", "true", '"2030-01-31T18:00:00"', '"0001-01-01T00:00:00+01:00"', "{}"]
)
def test_override_with_unreadable_expiry_is_refused(end: str) -> None:
    """Neither keeping it forever nor ending it at once would be right; both are guesses."""
    with pytest.raises(Invalid, match="no readable expire_time"):
        parse_override(f'{{"rate":5,"autoremove":false,"expire_time":{end}}}'.encode(), 1)


def test_override_without_expiry_has_no_expire_time() -> None:
    assert "expire_time" not in json.loads(format_override(StoredOverride(5)))


OVERRIDES = st.builds(StoredOverride, st.integers(1, MAX_RATE), st.booleans(), st.integers(1, 2**63 - 1), ENDS)


@given(
    TEXTS,
    st.sampled_from(AuditAction),
    st.none() | BROKER_IDS,
    st.none() | OVERRIDES,
    st.none() | OVERRIDES,
    TEXTS,
    st.none() | st.builds(Pause, st.sampled_from(PauseMode), TEXTS, st.none() | st.just(NOON), TEXTS),
)
def test_audit_record_round_trip(
    who: str,
    action: AuditAction,
    broker_id: int | None,
    before: StoredOverride | None,
    after: StoredOverride | None,
    reason: str,
    pause: Pause | None,
) -> None:
    record = StoredAuditRecord(7, NOON, who, action, broker_id, before, after, reason, pause, reason)
    assert parse_audit_record(format_audit_record(record), 7, NOON, after.version if after else 9) == record


def test_who_is_truncated_to_its_limit() -> None:
    data = format_audit_record(StoredAuditRecord(0, NOON, "x" * 5000, AuditAction.SET, None))
    assert parse_audit_record(data, 0, NOON, 1).who == "x" * MAX_WHO


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", '{"who":"x"}', '{"who":"x","action":"burn"}'),
        *('{"who":"x","action":"set","before":5}', '{"who":"x","action":"set","before":{"rate":5}}'),
        *('{"who":"x","action":"set","after":{"rate":-5}}', '{"who":"x","action":"set","broker_id":"1"}'),
    ],
)
def test_malformed_audit_record_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="the audit record is"):
        parse_audit_record(text.encode(), 1, NOON, 1)


# Values that no message can hold. One of them in a node failed every cycle, for all topics and brokers.

BEYOND = 2**40


@pytest.mark.parametrize(
    ("parse", "value"),
    [
        (parse_topic, {"partitions": {"0": [BEYOND]}}),
        (parse_ledger_entry, {"keys": {"k": {"before": "5", "written": "5", "late": "7"}}, "term": 1, "cycle": 1}),
        (parse_topic, {"partitions": {str(BEYOND): [1]}}),
        (parse_topic, {"partitions": {"0": [1]}, "adding_replicas": {"0": [-7]}}),
        (parse_topic, {"partitions": {"0": [1]}, "removing_replicas": {"0": [2**31]}}),
        (parse_topic, {"partitions": {"7_7": [1]}}),
        (parse_topic, {"partitions": {"\u0667": [1]}}),
        (parse_topic, {"partitions": {"01": [1]}}),
        (parse_topic, {"partitions": {"0": [1, True]}}),
        (parse_state, {"leader": BEYOND, "isr": [1]}),
        (parse_state, {"leader": -9, "isr": [1]}),
        (parse_state, {"leader": 1, "isr": [1, BEYOND]}),
        (parse_state, {"leader": 1, "isr": [-1]}),
        (parse_reassignments, {"partitions": [{"topic": "t", "partition": BEYOND, "replicas": [1]}]}),
        (parse_reassignments, {"partitions": [{"topic": "t", "partition": 0, "replicas": [-1]}]}),
        (parse_config, {"config": {"leader.replication.throttled.rate": "\ud800"}}),
        (parse_config, {"config": {"\ud800": "5"}}),
        (parse_ledger_entry, {"keys": {"k": {"before": "\ud800", "written": "5"}}, "term": 1, "cycle": 1}),
        (parse_ledger_entry, {"keys": {"k": {"before": None, "written": "5"}}, "term": 2**70, "cycle": 1}),
        (parse_ledger_entry, {"keys": {"k": {"before": None, "written": "5"}}, "term": 1, "cycle": -1}),
        (parse_ledger_entry, {"keys": {"k": {"before": "5", "written": None, "intent": "7"}}, "term": 1, "cycle": 1}),
        (parse_ledger_entry, {"version": 2, "keys": {}, "term": 1, "cycle": 1}),
        (parse_ledger_entry, {"version": "1", "keys": {}, "term": 1, "cycle": 1}),
        (
            parse_ledger_entry,
            {"keys": {FOLLOWER_REPLICAS: {"before": "0:" + "9" * 5000, "written": "0:1"}}, "term": 1, "cycle": 1},
        ),
    ],
)
def test_a_value_out_of_range_makes_its_node_unreadable(parse: Callable[[bytes], object], value: object) -> None:
    with pytest.raises(Invalid) as error:
        parse(encoded(value))
    str(error.value).encode()
    assert len(str(error.value)) < 500


def test_an_unreadable_pause_of_a_later_format_keeps_the_throttles() -> None:
    pause = parse_pause(b'{"version":2,"mode":"clear","author":"anna","time":null,"reason":""}', "/pause")
    assert pause.mode is PauseMode.KEEP and "/pause cannot be parsed" in pause.reason


def test_error_names_the_cause() -> None:
    with pytest.raises(Invalid, match="the field 'isr' is missing"):
        parse_state(b'{"leader":1}')
    with pytest.raises(Invalid, match=r"-7 is not in 0\.\.2147483647"):
        parse_topic(b'{"partitions":{"0":[-7]}}')


def state_of_kafka(leader: int, isr: Sequence[int]) -> bytes:
    state = {"controller_epoch": 1, "leader": leader, "version": 1, "leader_epoch": 0, "isr": isr}
    return json.dumps(state, separators=(",", ":")).encode()


STATES = st.lists(
    st.builds(state_of_kafka, st.integers(-3, 2**33), st.lists(st.integers(-1, 2**32), max_size=4))
    | st.sampled_from([b"", b"{}", b'{"leader":1,"isr":[1]},{"leader":2,"isr":[2]}', b'{"leader":3,"isr":[3', b"]}"])
    | st.binary(max_size=20),
    min_size=1,
    max_size=6,
)


USUAL_STATE = b'{"controller_epoch":1,"leader":2,"version":1,"leader_epoch":0,"isr":[2,31,4]}'
NEARLY_USUAL_STATES = [
    *(
        USUAL_STATE.replace(b'"leader":2', b'"leader":%b' % value)
        for value in (b"02", b"-2", b"-", b"", b"2147483648", b"1e1")
    ),
    *(
        USUAL_STATE.replace(b"[2,31,4]", value)
        for value in (b"[]", b"[2]", b"[,2]", b"[2,,3]", b"[-1]", b"[02]", b"[2147483648]")
    ),
    *(USUAL_STATE.replace(b"1,", value, 1) for value in (b"01,", b"9" * 5_000 + b",", b",", b"true,")),
    *(
        USUAL_STATE.replace(b"0,", b"0,\n"),
        USUAL_STATE + b"\n",
        b"x\n" + USUAL_STATE,
        USUAL_STATE * 2,
        USUAL_STATE[:-1],
    ),
    *(
        USUAL_STATE.replace(b'"isr"', b'"leader":7,"isr"'),
        USUAL_STATE.replace(b"}", b',"leader":7}'),
        b"",
        b"\n",
        b"{}",
    ),
]


@given(st.lists(st.sampled_from([USUAL_STATE, USUAL_STATE, USUAL_STATE, *NEARLY_USUAL_STATES]), min_size=1, max_size=6))
def test_states_as_kafka_writes_them_are_parsed_as_each_of_them_alone(data: list[bytes]) -> None:
    """They are searched as lines of one text, where a malformed text must not pass for one or two others."""
    parsed = parse_states(data)
    if parsed is not None:
        assert parsed == [parse_state(text) for text in data]


def test_partitions_of_a_topic_are_ascending_in_any_order_of_the_text() -> None:
    replicas = {str(p): [p, p + 1] for p in (10, 9, 2, 0)}
    node = parse_topic(json.dumps({"partitions": replicas, "adding_replicas": {"2": [7], "0": [8]}}).encode())
    assert list(node.replicas.items()) == [(0, (0, 1)), (2, (2, 3)), (9, (9, 10)), (10, (10, 11))]
    assert list(node.adding_replicas.items()) == [(0, (8,)), (2, (7,))]


@given(STATES)
@example([b'{"leader":1,"isr":[1]},{"leader":2,"isr":[2]}', b'{"leader":3,"isr":[3', b"]}"])
@example([b'{"leader":1,"isr":[1,2]}', b'{"isr":[3],"leader":-1}'])
def test_many_states_are_parsed_as_each_of_them_alone(data: list[bytes]) -> None:
    """They are parsed as one text, where a malformed one could take a part of its neighbour."""
    parsed = parse_states(data)
    if parsed is not None:
        assert parsed == [parse_state(one) for one in data]


def test_states_of_a_usual_reassignment_are_parsed_at_once() -> None:
    data = [state_of_kafka(n, [n, n + 1]) for n in range(100)]
    assert parse_states(data) == [StateNode(n, (n, n + 1)) for n in range(100)]
