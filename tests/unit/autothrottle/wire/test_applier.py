"""Changes, outcomes and the ledger survive the wire; foreign resources and keys are refused."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.cluster.configs import (
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    ConfigResource,
    LedgerEntry,
)
from autothrottle.core.errors import Invalid
from autothrottle.core.records import Outcome
from autothrottle.core.throttles.changes import Change
from autothrottle.v1 import applier_pb2, types_pb2
from autothrottle.wire.applier import (
    MAX_REQUEST_BYTES,
    change_from_message,
    change_parts,
    change_to_message,
    ledger_from_message,
    ledger_to_message,
    resource_from_path,
)
from autothrottle.wire.common import SAME_NAMES
from tests import builders
from tests.unit.autothrottle.wire import strategies


@given(strategies.changes)
def test_change_round_trips(change: Change) -> None:
    raw = change_to_message(change).SerializeToString()
    assert change_from_message(applier_pb2.Change.FromString(raw)) == change


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
    with pytest.raises(Invalid, match=r"Outcome\.status 0 is unknown"):
        SAME_NAMES.from_message(Outcome, types_pb2.Outcome(resource="brokers/1"))


@pytest.mark.parametrize(
    "path", ["users/..", "users/.", "users/a/clients/..", "clients/", "ips/host", "users//clients/a"]
)
def test_path_of_an_impossible_quota_entity_is_refused(path: str) -> None:
    with pytest.raises(Invalid):
        resource_from_path(path)


def test_path_of_a_quota_entity_is_returned_as_kafka_encodes_it() -> None:
    assert resource_from_path("users/a b/clients/<default>").path == "users/a%20b/clients/<default>"


# Parts of a large request.


def lists(topic: str, replicas: int) -> Change:
    text = ",".join(f"{partition}:1001" for partition in range(replicas))
    return builders.change(f"topics/{topic}", (LEADER_REPLICAS, None, text), (FOLLOWER_REPLICAS, None, "0:1002"))


def rate_of(broker_id: int) -> Change:
    return builders.change(f"brokers/{broker_id}", (LEADER_RATE, None, "5"))


@given(st.lists(strategies.changes, max_size=30), st.integers(1, 2_000))
def test_parts_contain_every_change_once_and_stay_below_the_limit(changes: Sequence[Change], part_bytes: int) -> None:
    """One request with all changes of 1,000,000 partitions had 71 MB, so every cycle failed as a whole."""
    parts = list(change_parts(changes, part_bytes))
    assert sorted(position for part in parts for position in part.positions) == list(range(len(changes)))
    for part in parts:
        assert [change_from_message(message) for message in part.messages] == [changes[p] for p in part.positions]
        size = applier_pb2.ApplyRequest(fence=2**62, changes=part.messages).ByteSize()
        assert size <= part_bytes + 100 or len(part.messages) == 1


def test_first_part_has_all_rates_and_the_lists_of_the_largest_reassignments() -> None:
    changes = [rate_of(1), rate_of(2), lists("a", 10), lists("b", 300), lists("c", 200), lists("d", 20)]
    first, *others = change_parts(changes, part_bytes=7_000)
    assert first.positions == (0, 1, 3)
    assert [position for part in others for position in part.positions] == [4, 5, 2]


def test_change_that_no_request_can_carry_is_refused_alone() -> None:
    """The applier refuses a request of more than 64 MiB, and protobuf a text that is not Unicode."""
    too_long = builders.change("topics/a", (LEADER_REPLICAS, "1" * MAX_REQUEST_BYTES, None))
    not_unicode = builders.change("topics/b", (LEADER_REPLICAS, None, "\ud800"))
    refused, unencodable, sent = sorted(
        change_parts([too_long, not_unicode, rate_of(1)]), key=lambda part: part.positions
    )
    assert f"more than the applier's limit of {MAX_REQUEST_BYTES}" in refused.refusal
    assert "cannot be sent" in unencodable.refusal
    assert (sent.positions, sent.refusal) == ((2,), "")
