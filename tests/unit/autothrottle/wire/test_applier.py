"""Changes, outcomes and the ledger survive the wire; foreign resources and keys are refused."""

import pytest
from hypothesis import given

from autothrottle.core.cluster.configs import LEADER_RATE, ConfigResource
from autothrottle.core.cluster.ledger import LedgerEntry
from autothrottle.core.control.changes import Change, Outcome
from autothrottle.core.errors import Invalid
from autothrottle.v1 import applier_pb2, types_pb2
from autothrottle.wire.applier import (
    change_from_message,
    change_to_message,
    ledger_from_message,
    ledger_to_message,
    outcome_from_message,
    outcome_to_message,
    resource_from_path,
)
from tests import builders
from tests.unit.autothrottle.wire import strategies


@given(strategies.changes)
def test_change_round_trips(change: Change) -> None:
    raw = change_to_message(change).SerializeToString()
    assert change_from_message(applier_pb2.Change.FromString(raw)) == change


@given(strategies.outcomes)
def test_outcome_round_trips(outcome: Outcome) -> None:
    raw = outcome_to_message(outcome).SerializeToString()
    assert outcome_from_message(types_pb2.Outcome.FromString(raw)) == outcome


@given(strategies.ledger_entries)
def test_ledger_entry_round_trips(entry: LedgerEntry) -> None:
    raw = ledger_to_message(entry).SerializeToString()
    assert ledger_from_message(types_pb2.LedgerEntry.FromString(raw)) == entry


def test_empty_value_differs_from_absent_value() -> None:
    change = builders.change("brokers/1001", (LEADER_RATE, "", None), (LEADER_RATE, None, ""))
    assert change_from_message(change_to_message(change)) == change


@pytest.mark.parametrize(
    "path",
    [
        "",
        "brokers",
        "brokers/",
        "brokers/x",
        "brokers/-1",
        "brokers/01",
        "brokers/<default>",
        "topics/",
        "topics/..",
        "topics/.",
        "topics/a/b",
        "topics/../brokers/1",
        "topics/t\n",
        "users",
        "users/u/topics/t",
        "/brokers/1",
        "topics/" + "t" * 250,
    ],
)
def test_path_of_neither_broker_nor_topic_is_refused(path: str) -> None:
    with pytest.raises(Invalid, match="neither `brokers/<id>` nor `topics/<name>`"):
        resource_from_path(path)


def test_broker_id_above_the_largest_is_refused() -> None:
    with pytest.raises(Invalid, match="broker id 2147483648 is outside of"):
        resource_from_path("brokers/2147483648")


@pytest.mark.parametrize("path", ["brokers/0", "brokers/2147483647", "topics/...", "topics/" + "t" * 249])
def test_paths_of_brokers_and_topics_are_accepted(path: str) -> None:
    assert resource_from_path(path) == ConfigResource(path)


def test_only_throttle_keys_can_be_changed() -> None:
    message = change_to_message(builders.change("topics/t", ("retention.ms", None, "1")))
    with pytest.raises(Invalid, match=r"config key 'retention\.ms' is not a throttle key"):
        change_from_message(message)


def test_only_throttle_keys_can_be_in_the_ledger() -> None:
    entry = builders.ledger_entry(retention_ms="1")
    with pytest.raises(Invalid, match=r"retention\.ms"):
        change_from_message(change_to_message(builders.change("topics/t", ledger=entry)))


def test_outcome_without_a_status_is_refused() -> None:
    with pytest.raises(Invalid, match="status 0 of brokers/1 is unknown"):
        outcome_from_message(types_pb2.Outcome(resource="brokers/1"))


@pytest.mark.parametrize(
    "path", ["users/..", "users/.", "users/a/clients/..", "clients/", "ips/host", "users//clients/a"]
)
def test_path_of_an_impossible_quota_entity_is_refused(path: str) -> None:
    with pytest.raises(Invalid):
        resource_from_path(path)


def test_path_of_a_quota_entity_is_returned_as_kafka_encodes_it() -> None:
    assert resource_from_path("users/a b/clients/<default>").path == "users/a%20b/clients/<default>"
