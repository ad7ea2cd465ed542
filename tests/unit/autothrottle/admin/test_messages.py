"""Overrides, audit records and members survive the wire; malformed overrides and quotas are refused."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.admin.quotas import temporary_from_message
from autothrottle.admin.servicer import (
    audit_record_to_message,
    override_from_message,
    override_to_message,
    override_warnings,
    overrides_to_messages,
    request_quota_entity_from_message,
    request_quota_to_message,
)
from autothrottle.core.errors import Invalid
from autothrottle.core.operators.audit import StoredAuditRecord
from autothrottle.core.operators.sources import Overrides, StoredOverride
from autothrottle.core.quotas.keys import ClientQuotaEntity
from autothrottle.core.records import AuditAction, Pause
from autothrottle.core.request_quotas import MAX_REQUEST_RATE, RequestQuotaEntity
from autothrottle.core.traffic.loads import MAX_LINK_RATE
from autothrottle.v1 import admin_pb2
from autothrottle.v1.admin_pb2 import Override as Message
from autothrottle.v1.quotas_pb2 import Quota
from autothrottle.wire.common import SAME_NAMES
from tests.unit.autothrottle.wire.strategies import broker_ids, int64, pauses, text, times

overrides = st.builds(
    StoredOverride, st.integers(1, MAX_LINK_RATE), st.booleans(), st.integers(0, 2**63 - 1), st.none() | times
)


@given(st.none() | broker_ids, overrides)
def test_override_round_trips(broker_id: int | None, override: StoredOverride) -> None:
    raw = override_to_message(broker_id, override).SerializeToString()
    assert override_from_message(Message.FromString(raw)) == (broker_id, override)


@given(st.none() | overrides, st.dictionaries(broker_ids, overrides, max_size=4))
def test_all_overrides_round_trip(cluster: StoredOverride | None, brokers: dict[int, StoredOverride]) -> None:
    received = dict(map(override_from_message, overrides_to_messages(Overrides(cluster, brokers))))
    assert received == ({None: cluster} if cluster else {}) | brokers


names = st.none() | st.text(st.characters(codec="ascii", categories=("L", "N", "P")), max_size=128)
entities = st.builds(RequestQuotaEntity, names, names).filter(lambda one: one != RequestQuotaEntity())


@given(st.dictionaries(entities, st.integers(1, MAX_REQUEST_RATE), max_size=4))
def test_request_quotas_round_trip_and_an_absent_name_is_not_an_empty_one(rates: dict[RequestQuotaEntity, int]) -> None:
    sent = [request_quota_to_message(entity, rate).SerializeToString() for entity, rate in rates.items()]
    received = map(admin_pb2.RequestQuota.FromString, sent)
    assert {request_quota_entity_from_message(one): one.request_rate for one in received} == rates


def test_cluster_override_comes_first_then_brokers_by_id() -> None:
    listed = overrides_to_messages(Overrides(StoredOverride(1), {1002: StoredOverride(2), 1001: StoredOverride(3)}))
    assert [m.rate_bytes_per_second for m in listed] == [1, 3, 2]


def test_override_marked_for_removal_is_not_listed() -> None:
    assert overrides_to_messages(Overrides(StoredOverride(0), {1001: StoredOverride(0)})) == []


def test_unreadable_overrides_become_warnings() -> None:
    unreadable = {None: "not JSON", 1001: "no rate"}
    warnings = override_warnings(Overrides(unreadable=unreadable, warnings=("`x` is not a broker id",)))
    assert warnings == [
        "the override of the cluster cannot be read: not JSON",
        "the override of broker 1001 cannot be read: no rate",
        "`x` is not a broker id",
    ]


@pytest.mark.parametrize(
    "message",
    [
        Message(rate_bytes_per_second=0),
        Message(rate_bytes_per_second=-1),
        Message(broker_id=-1, rate_bytes_per_second=1),
    ],
)
def test_override_out_of_range_is_refused(message: Message) -> None:
    with pytest.raises(Invalid, match="outside of"):
        override_from_message(message)


@pytest.mark.parametrize("seconds", [-(2**62), 2**62, 253_402_300_800])
def test_invalid_expire_time_is_refused(seconds: int) -> None:
    with pytest.raises(Invalid, match=r"expire_time is not a valid time: .*; give one in UTC"):
        override_from_message(Message(rate_bytes_per_second=1, expire_time=Timestamp(seconds=seconds)))


def test_foreign_etag_is_refused() -> None:
    with pytest.raises(Invalid, match="give the etag of a response"):
        override_from_message(Message(rate_bytes_per_second=1, etag="W/5"))


@given(
    st.builds(
        StoredAuditRecord,
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
def test_audit_record_round_trips(record: StoredAuditRecord) -> None:
    sent = admin_pb2.AuditRecord.FromString(audit_record_to_message(record).SerializeToString())
    name = admin_pb2.AuditRecord.Action.Name(sent.action)
    received = (sent.number, sent.time.ToDatetime(tzinfo=UTC), sent.who, name, sent.reason)
    assert received == (record.number, record.time, record.who, f"ACTION_{record.action.name}", record.reason)
    assert (sent.broker_id if sent.HasField("broker_id") else None) == record.broker_id
    before = override_from_message(sent.before) if sent.HasField("before") else None
    after = override_from_message(sent.after) if sent.HasField("after") else None
    assert before == (None if record.before is None else (record.broker_id, record.before))
    assert after == (None if record.after is None else (record.broker_id, record.after))
    assert (SAME_NAMES.from_message(Pause, sent.pause) if sent.HasField("pause") else None) == record.pause


@pytest.mark.parametrize("time", [Timestamp(seconds=2**62), Timestamp(seconds=-(2**62)), Timestamp(nanos=-1)])
def test_a_quota_with_an_impossible_expire_time_is_refused(time: Timestamp) -> None:
    """A time after the year 9999 was an unexpected ValueError: SetQuota answered INTERNAL."""
    with pytest.raises(Invalid, match="expire_time is not a valid time"):
        temporary_from_message(Quota(expire_time=time), ClientQuotaEntity("a"), {}, "anna", datetime.now(UTC))
