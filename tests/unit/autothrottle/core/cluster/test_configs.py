"""The grammar of replica lists and rates, and the names of config resources."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.cluster.configs import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    THROTTLE_KEYS,
    ConfigResource,
    LedgerKey,
    ReplicaRole,
    ResourceType,
    format_replicas,
    limiting_rate,
    parse_rate,
    parse_replicas,
)
from autothrottle.core.errors import Invalid

numbers = st.integers(0, 2**31 - 1)


@given(st.frozensets(st.builds("{}:{}".format, numbers, numbers)))
def test_formatted_replica_list_parses_back(entries: frozenset[str]) -> None:
    assert parse_replicas(format_replicas(entries)) == entries


def test_entries_are_sorted_by_number_not_text() -> None:
    assert format_replicas(["10:1", "2:1001", "2:999"]) == "2:999,2:1001,10:1"


@pytest.mark.parametrize("value", ["", "  ", ","])
def test_list_without_entries_is_empty(value: str) -> None:
    assert parse_replicas(value) == frozenset()


def test_blanks_and_empty_entries_are_accepted_as_in_kafka() -> None:
    assert parse_replicas(" 0:1 ,, 1:2,") == {"0:1", "1:2"}


def test_wildcard_is_a_valid_list() -> None:
    assert parse_replicas(" * ") == {"*"}


@pytest.mark.parametrize("value", ["*,0:1", "0", "0:", ":1", "0:1:2", "a:b", "-1:2", "0:1;1:2", "\u0660:\u0661"])
def test_lists_that_kafka_refuses_are_invalid(value: str) -> None:
    with pytest.raises(Invalid):
        parse_replicas(value)


@pytest.mark.parametrize(
    ("value", "rate"),
    [
        ("1000000", 1_000_000),
        (" 5 ", 5),
        ("-1", -1),
        ("+7", 7),
        ("0" * 5000 + "7", 7),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
    ],
)
def test_rate_parses_as_in_kafka(value: str, rate: int) -> None:
    assert parse_rate(value) == rate


@pytest.mark.parametrize(
    "value",
    ["", "1_000", "1.5", "1e6", "fast", "\u0663", "9223372036854775808", "-9223372036854775809", "9" * 20, "9" * 5000],
)
def test_rate_that_is_no_64_bit_integer_is_refused_and_limits_nothing(value: str) -> None:
    """A rate above 2^63-1 in ZooKeeper ended the thread of the decision log, and one of 5,000 digits every cycle."""
    with pytest.raises(Invalid, match=r"not an integer .* in -2\^63\.\.2\^63-1"):
        parse_rate(value)
    assert limiting_rate(value) is None


def test_resource_is_named_by_its_entity_path() -> None:
    broker, topic = ConfigResource.broker(1001), ConfigResource.topic("a.b-c")
    assert (str(broker), broker.type, broker.broker_id) == ("brokers/1001", ResourceType.BROKER, 1001)
    assert (str(topic), topic.type, topic.name) == ("topics/a.b-c", ResourceType.TOPIC, "a.b-c")


def test_each_role_has_its_own_keys() -> None:
    leader, follower = ReplicaRole.LEADER, ReplicaRole.FOLLOWER
    assert (leader.rate_key, leader.replicas_key) == (LEADER_RATE, LEADER_REPLICAS)
    assert (follower.rate_key, follower.replicas_key) == (FOLLOWER_RATE, FOLLOWER_REPLICAS)
    assert len(THROTTLE_KEYS) == 4


@given(
    st.lists(st.sampled_from(["0:1", "10:1001", " 2:3 ", "", "*", "1:", ":1", "1:2:3", "\u0661:1", "x"]), max_size=5)
)
def test_fast_path_for_plain_lists_parses_like_the_slow_path(entries: list[str]) -> None:
    """The fast path recognizes the form that Kafka writes; a leading space forces the slow path."""
    usual, unusual = ",".join(entries), " " + ",".join(entries)
    try:
        expected = parse_replicas(unusual)
    except Invalid:
        with pytest.raises(Invalid):
            parse_replicas(usual)
    else:
        assert parse_replicas(usual) == expected


@given(st.frozensets(st.builds("{}:{}".format, numbers, numbers), min_size=1), st.booleans())
def test_fully_owned_list_is_normalised_in_the_ledger_key(entries: frozenset[str], is_shared: bool) -> None:
    written = format_replicas(entries | {"7:7"}) if is_shared else format_replicas(entries)
    key = LedgerKey(None, written, entries)
    assert key.owned == entries
    assert (key == LedgerKey(None, written)) is (format_replicas(entries) == written)
