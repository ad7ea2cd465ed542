from datetime import UTC

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.audit import AuditAction, AuditRecord
from autothrottle.core.errors import Invalid
from autothrottle.core.overrides import MAX_RATE, Override, Overrides
from autothrottle.v1 import admin_pb2
from autothrottle.v1.admin_pb2 import Override as Message
from autothrottle.wire.overrides import (
    audit_to_list,
    override_from_message,
    override_to_message,
    overrides_from_messages,
    overrides_to_list,
    overrides_to_messages,
)
from autothrottle.wire.pauses import pause_from_message
from tests.wire.strategies import broker_ids, int64, pauses, text, times

overrides = st.builds(Override, st.integers(1, MAX_RATE), st.booleans(), st.integers(0, 2**63 - 1), st.none() | times)


@given(st.none() | broker_ids, overrides)
def test_an_override_arrives_as_it_was_sent(broker_id: int | None, override: Override) -> None:
    raw = override_to_message(broker_id, override).SerializeToString()
    assert override_from_message(Message.FromString(raw)) == (broker_id, override)


@given(st.none() | overrides, st.dictionaries(broker_ids, overrides, max_size=4))
def test_all_overrides_arrive_as_they_were_sent(cluster: Override | None, brokers: dict[int, Override]) -> None:
    all_of_them = Overrides(cluster, brokers)
    assert overrides_from_messages(overrides_to_messages(all_of_them)) == all_of_them


def test_the_clusters_override_is_first_and_brokers_are_in_order() -> None:
    listed = overrides_to_messages(Overrides(Override(1), {1002: Override(2), 1001: Override(3)}))
    assert [m.rate_bytes_per_second for m in listed] == [1, 3, 2]


def test_an_override_that_is_to_be_removed_is_not_shown() -> None:
    assert overrides_to_messages(Overrides(Override(0), {1001: Override(0)})) == []


def test_overrides_that_cannot_be_read_are_warnings() -> None:
    unreadable = {None: "no JSON", 1001: "no rate"}
    listed = overrides_to_list(Overrides(unreadable=unreadable, warnings=("`x` is no broker id",)))
    assert list(listed.warnings) == [
        "the override of the cluster cannot be read: no JSON",
        "the override of broker 1001 cannot be read: no rate",
        "`x` is no broker id",
    ]


@pytest.mark.parametrize(
    "message",
    [
        Message(rate_bytes_per_second=0),
        Message(rate_bytes_per_second=-1),
        Message(broker_id=0, rate_bytes_per_second=1),
        Message(broker_id=-1, rate_bytes_per_second=1),
    ],
)
def test_what_is_out_of_range_is_refused(message: Message) -> None:
    with pytest.raises(Invalid, match="outside of"):
        override_from_message(message)


@pytest.mark.parametrize("seconds", [-(2**62), 2**62, 253_402_300_800])
def test_an_end_that_is_no_time_is_refused(seconds: int) -> None:
    with pytest.raises(Invalid, match=r"expire_time is no time: .*; give one in UTC"):
        override_from_message(Message(rate_bytes_per_second=1, expire_time=Timestamp(seconds=seconds)))


def test_an_etag_that_is_none_of_ours_is_refused() -> None:
    with pytest.raises(Invalid, match="give the etag of an answer"):
        override_from_message(Message(rate_bytes_per_second=1, etag="W/5"))


@given(
    st.builds(
        AuditRecord,
        int64,
        times,
        text,
        st.sampled_from(AuditAction),
        st.none() | broker_ids,
        st.none() | overrides,
        st.none() | overrides,
        text,
        st.none() | pauses,
    )
)
def test_an_audit_record_arrives_as_it_was_sent(record: AuditRecord) -> None:
    raw = audit_to_list([record]).SerializeToString()
    (sent,) = admin_pb2.ListAuditRecordsResponse.FromString(raw).records
    name = admin_pb2.AuditRecord.Action.Name(sent.action)
    said = (sent.number, sent.time.ToDatetime(tzinfo=UTC), sent.who, name, sent.reason)
    assert said == (record.number, record.time, record.who, f"ACTION_{record.action.name}", record.reason)
    assert (sent.broker_id if sent.HasField("broker_id") else None) == record.broker_id
    before = override_from_message(sent.before) if sent.HasField("before") else None
    after = override_from_message(sent.after) if sent.HasField("after") else None
    assert before == (None if record.before is None else (record.broker_id, record.before))
    assert after == (None if record.after is None else (record.broker_id, record.after))
    assert (pause_from_message(sent.pause) if sent.HasField("pause") else None) == record.pause
