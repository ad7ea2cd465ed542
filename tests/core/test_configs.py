"""The grammar of replica lists and rates, and what config resources are called."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.configs import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    THROTTLE_KEYS,
    ConfigResource,
    ReplicaRole,
    ResourceType,
    format_replicas,
    parse_rate,
    parse_replicas,
)
from autothrottle.core.errors import Invalid
from autothrottle.core.ledger import LedgerKey

numbers = st.integers(0, 2**31 - 1)


@given(st.frozensets(st.builds("{}:{}".format, numbers, numbers)))
def test_a_list_is_read_back_as_it_was_written(entries: frozenset[str]) -> None:
    assert parse_replicas(format_replicas(entries)) == entries


def test_entries_are_ordered_by_number_and_not_by_text() -> None:
    assert format_replicas(["10:1", "2:1001", "2:999"]) == "2:999,2:1001,10:1"


@pytest.mark.parametrize("value", ["", "  ", ","])
def test_a_list_without_entries_is_empty(value: str) -> None:
    assert parse_replicas(value) == frozenset()


def test_kafka_takes_blanks_and_empty_entries_and_so_do_we() -> None:
    assert parse_replicas(" 0:1 ,, 1:2,") == {"0:1", "1:2"}


def test_the_wildcard_is_a_list() -> None:
    assert parse_replicas(" * ") == {"*"}


@pytest.mark.parametrize("value", ["*,0:1", "0", "0:", ":1", "0:1:2", "a:b", "-1:2", "0:1;1:2", "\u0660:\u0661"])
def test_what_kafka_would_refuse_is_no_list(value: str) -> None:
    with pytest.raises(Invalid):
        parse_replicas(value)


@pytest.mark.parametrize(("value", "rate"), [("1000000", 1_000_000), (" 5 ", 5), ("-1", -1), ("+7", 7)])
def test_a_rate_is_read_as_kafka_reads_it(value: str, rate: int) -> None:
    assert parse_rate(value) == rate


@pytest.mark.parametrize("value", ["", "1_000", "1.5", "1e6", "fast", "\u0663"])
def test_what_is_no_integer_is_no_rate(value: str) -> None:
    with pytest.raises(Invalid, match="no integer"):
        parse_rate(value)


def test_a_resource_is_named_by_its_entity_path() -> None:
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
def test_a_list_in_the_usual_form_is_read_as_any_other(entries: list[str]) -> None:
    """The form that Kafka writes is known at a glance; a space in front of it makes it unusual."""
    usual, unusual = ",".join(entries), " " + ",".join(entries)
    try:
        expected = parse_replicas(unusual)
    except Invalid:
        with pytest.raises(Invalid):
            parse_replicas(usual)
    else:
        assert parse_replicas(usual) == expected


@given(st.frozensets(st.builds("{}:{}".format, numbers, numbers), min_size=1), st.booleans())
def test_a_list_that_is_all_ours_is_one_value_however_it_is_said(entries: frozenset[str], is_shared: bool) -> None:
    written = format_replicas(entries | {"7:7"}) if is_shared else format_replicas(entries)
    told = LedgerKey(None, written, entries)
    assert told.owned == entries
    assert (told == LedgerKey(None, written)) is (format_replicas(entries) == written)
