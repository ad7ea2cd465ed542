"""The quota service over gRPC: what it lists, decides, writes, refuses and records."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest

from autothrottle.core.quotas.keys import DEFAULT, ClientQuotaEntity, QuotaKey, quota_etag
from autothrottle.core.records import CatchUp
from autothrottle.v1 import admin_pb2, admin_pb2_grpc, quotas_pb2, quotas_pb2_grpc
from tests.builders import eventually
from tests.in_process_services import InProcessServices

SLACK = 60.0
PRODUCER, CONSUMER = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE
ALICE = ClientQuotaEntity("alice")
ALICE_MESSAGE = quotas_pb2.QuotaEntity(user="alice")


def calls(services: InProcessServices) -> Any:
    return quotas_pb2_grpc.QuotaServiceStub(services.channel("admin"))


def set_quota(services: InProcessServices, **values: Any) -> Any:
    entity = values.pop("entity", ALICE_MESSAGE)
    etag, dry = values.pop("etag", ""), values.pop("validate_only", False)
    quota = quotas_pb2.Quota(entity=entity, values=quotas_pb2.QuotaValues(**values), etag=etag)
    return calls(services).SetQuota(quotas_pb2.SetQuotaRequest(quota=quota, validate_only=dry), timeout=SLACK)


def remove_quota(services: InProcessServices, *keys: str, **fields: Any) -> Any:
    request = quotas_pb2.RemoveQuotaRequest(entity=fields.pop("entity", ALICE_MESSAGE), keys=keys, **fields)
    return calls(services).RemoveQuota(request, timeout=SLACK)


def describe(services: InProcessServices, **client: str) -> list[tuple[str, float, int]]:
    request = quotas_pb2.DescribeQuotaRequest(**client)
    found = calls(services).DescribeQuota(request, timeout=SLACK).quotas
    return [(one.key, one.value, one.level) for one in found]


def records(services: InProcessServices) -> list[tuple[int, str]]:
    stub: Any = admin_pb2_grpc.AdminServiceStub(services.channel("admin"))
    found = stub.ListAuditRecords(admin_pb2.ListAuditRecordsRequest(), timeout=SLACK).records
    return [(one.action, one.result) for one in found]


def failure(call: Any, *arguments: Any, **values: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, **values)
    error: Any = caught.value
    return error.code(), error.details()


def test_set_quotas_are_listed_with_their_etag(services: InProcessServices) -> None:
    done = set_quota(services, producer_byte_rate=5_000_000, request_percentage=50.0)
    assert not done.before.ListFields()
    set_quota(services, entity=quotas_pb2.QuotaEntity(default_user=True, client_id="app"), consumer_byte_rate=7)
    listed = calls(services).ListQuotas(quotas_pb2.ListQuotasRequest(), timeout=SLACK).quotas
    assert [one.entity for one in listed] == [quotas_pb2.QuotaEntity(default_user=True, client_id="app"), ALICE_MESSAGE]
    assert listed[1] == done.quota
    assert done.quota.etag == quota_etag(services.quotas.quotas[ALICE])


def test_an_unlimited_quota_is_set_listed_and_removed(services: InProcessServices) -> None:
    """It exempts a client from a default quota. Setting it was refused, although Kafka's own tool sets it."""
    done = set_quota(services, producer_byte_rate=2**63 - 1)
    assert calls(services).ListQuotas(quotas_pb2.ListQuotasRequest(), timeout=SLACK).quotas == [done.quota]
    assert services.quotas.quotas == {ALICE: {PRODUCER: 2**63 - 1}}
    assert set_quota(services, consumer_byte_rate=6).quota.values.producer_byte_rate == 2**63 - 1
    assert remove_quota(services, "producer_byte_rate").before.producer_byte_rate == 2**63 - 1
    assert services.quotas.quotas == {ALICE: {CONSUMER: 6}}


def test_setting_keeps_other_keys_and_removing_takes_only_the_named_ones(services: InProcessServices) -> None:
    set_quota(services, producer_byte_rate=5, consumer_byte_rate=6)
    done = set_quota(services, producer_byte_rate=7)
    assert done.before == quotas_pb2.QuotaValues(producer_byte_rate=5, consumer_byte_rate=6)
    assert services.quotas.quotas == {ALICE: {PRODUCER: 7, CONSUMER: 6}}
    gone = remove_quota(services, "producer_byte_rate")
    assert gone.quota.values == quotas_pb2.QuotaValues(consumer_byte_rate=6)
    remove_quota(services)
    assert services.quotas.quotas == {}


def test_the_level_that_decides_is_named_for_each_key(services: InProcessServices) -> None:
    services.quotas.quotas = {
        ALICE: {CONSUMER: 5},
        ClientQuotaEntity(DEFAULT, "app"): {PRODUCER: 6, CONSUMER: 7},
        ClientQuotaEntity("ANONYMOUS"): {PRODUCER: 8},
        ClientQuotaEntity(ip=DEFAULT): {QuotaKey.CONNECTION_CREATION_RATE: 9},
    }
    assert describe(services, user="alice", client_id="app") == [(PRODUCER, 6, 4), (CONSUMER, 5, 3)]
    assert describe(services, client_id="other") == [(PRODUCER, 8, 3)]
    assert describe(services, user="alice") == [(CONSUMER, 5, 3)]
    assert describe(services, ip="10.0.0.7") == [("connection_creation_rate", 9, 2)]
    for wrong in ({}, {"user": "alice", "ip": "10.0.0.7"}):
        code, details = failure(describe, services, **wrong)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "give the user or the client id of a client, or both, or else an IP address" in details


@pytest.mark.parametrize(
    ("request_fields", "problem"),
    [
        ({}, "no quota is given"),
        ({"producer_byte_rate": 0}, "producer_byte_rate 0 is outside of 1 to"),
        ({"producer_byte_rate": -5}, "producer_byte_rate -5 is outside of 1 to"),
        ({"request_percentage": 0.0}, "request_percentage 0 is outside of above 0 to"),
        ({"connection_creation_rate": 5}, "connection_creation_rate cannot be set for user"),
        ({"producer_byte_rate": 5, "etag": "x"}, "etag 'x' is invalid"),
        ({"producer_byte_rate": 5, "entity": quotas_pb2.QuotaEntity()}, "the entity has no part"),
        (
            {"producer_byte_rate": 5, "entity": quotas_pb2.QuotaEntity(user="a", default_user=True)},
            "given as the name 'a' and as the default",
        ),
        (
            {"producer_byte_rate": 5, "entity": quotas_pb2.QuotaEntity(user="a", ip="10.0.0.1")},
            "quotas of an IP address have no user",
        ),
    ],
)
def test_wrong_requests_change_nothing(
    unchanged_services: InProcessServices, request_fields: dict[str, Any], problem: str
) -> None:
    code, details = failure(set_quota, unchanged_services, **request_fields)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert problem in details
    assert unchanged_services.quotas.quotas == {}


def test_an_unknown_key_and_an_absent_quota_are_refused(services: InProcessServices) -> None:
    code, details = failure(remove_quota, services, "producer_rate")
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "'producer_rate' is not a key of client quotas; give one of producer_byte_rate" in details
    set_quota(services, producer_byte_rate=5)
    code, details = failure(remove_quota, services, "consumer_byte_rate")
    assert code is grpc.StatusCode.NOT_FOUND
    assert 'no quota consumer_byte_rate is set for user "alice"; ListQuotas shows' in details
    assert services.quotas.quotas == {ALICE: {PRODUCER: 5}}


def test_an_old_etag_changes_nothing(services: InProcessServices) -> None:
    etag = set_quota(services, producer_byte_rate=5).quota.etag
    newer = set_quota(services, producer_byte_rate=6, etag=etag).quota.etag
    for call in (
        lambda: set_quota(services, producer_byte_rate=7, etag=etag),
        lambda: remove_quota(services, etag=etag),
    ):
        code, details = failure(call)
        assert code is grpc.StatusCode.ABORTED
        assert "now producer_byte_rate=6; read them again" in details
    assert services.quotas.quotas == {ALICE: {PRODUCER: 6}}
    remove_quota(services, etag=newer)
    assert services.quotas.quotas == {}


def test_a_dry_run_checks_everything_and_leaves_no_trace(services: InProcessServices) -> None:
    etag = set_quota(services, producer_byte_rate=5).quota.etag
    before = records(services)
    shown = set_quota(services, producer_byte_rate=6, validate_only=True)
    assert shown.quota.values.producer_byte_rate == 6
    assert shown.before.producer_byte_rate == 5
    assert not remove_quota(services, validate_only=True, etag=etag).quota.values.ListFields()
    assert failure(set_quota, services, producer_byte_rate=0, validate_only=True)[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert services.quotas.quotas == {ALICE: {PRODUCER: 5}}
    assert records(services) == before


def test_changes_and_failures_are_recorded_with_the_values_before(services: InProcessServices) -> None:
    set_quota(services, producer_byte_rate=5)
    set_quota(services, producer_byte_rate=5)
    set_quota(services, producer_byte_rate=6)
    remove_quota(services)
    services.quotas.unavailable(True)
    failure(set_quota, services, producer_byte_rate=7)
    set_action, remove_action = admin_pb2.AuditRecord.ACTION_SET_QUOTA, admin_pb2.AuditRecord.ACTION_REMOVE_QUOTA
    assert records(services) == [
        (set_action, "Failed: the client quotas cannot be read or written; try again"),
        (remove_action, 'Quota of user "alice": producer_byte_rate not set (before: 6)'),
        (set_action, 'Quota of user "alice": producer_byte_rate 6 (before: 5)'),
        (set_action, 'Quota of user "alice": producer_byte_rate 5 (before: not set)'),
    ]


def test_quotas_that_cannot_be_read_are_warnings(services: InProcessServices) -> None:
    services.quotas.problems = ("/config/users/alice: no number",)
    assert list(calls(services).ListQuotas(quotas_pb2.ListQuotasRequest(), timeout=SLACK).warnings) == [
        "/config/users/alice: no number"
    ]


def test_a_principal_with_its_type_is_a_warning(services: InProcessServices) -> None:
    done = set_quota(services, entity=quotas_pb2.QuotaEntity(user="User:alice"), producer_byte_rate=5)
    assert list(done.warnings) == ["Kafka compares the name without the type: 'User:alice' is not the user 'alice'"]


# Temporary quotas.


def soon(minutes: float = 5) -> datetime:
    return datetime.now(UTC) + timedelta(minutes=minutes)


def set_temporary(services: InProcessServices, recovery: bool = False, **fields: Any) -> Any:
    quota = quotas_pb2.Quota(
        entity=ALICE_MESSAGE,
        values=quotas_pb2.QuotaValues(producer_byte_rate=fields.pop("rate", 5)),
        until_recovered=recovery,
        **{name: fields.pop(name) for name in ("expire_time", "etag") if name in fields},
    )
    return calls(services).SetQuota(quotas_pb2.SetQuotaRequest(quota=quota, **fields), timeout=SLACK)


def test_a_temporary_quota_is_stored_for_the_planner_and_listed_with_its_end(services: InProcessServices) -> None:
    services.quotas.quotas[ALICE] = {PRODUCER: 70}
    ends = soon()
    done = set_temporary(services, expire_time=ends)
    assert (done.before.producer_byte_rate, done.quota.values.producer_byte_rate) == (70, 5)
    assert services.quotas.quotas[ALICE] == {PRODUCER: 70}, "the planner writes it"
    stored = services.temporary_quotas.read()[ALICE]
    assert (stored.values, stored.expire_time, stored.until_recovered) == ({PRODUCER: 5}, ends, False)
    (listed,) = calls(services).ListQuotas(quotas_pb2.ListQuotasRequest(), timeout=SLACK).quotas
    assert listed.expire_time.ToDatetime(UTC) == ends
    (record,) = records(services)
    assert record[1].startswith('Quota of user "alice": producer_byte_rate 5, ends at ')


@pytest.mark.parametrize("text", ["70", "9223372036854775807"], ids=["limited", "unlimited"])
def test_the_leading_planner_sets_it_and_restores_the_quotas_before(led: InProcessServices, text: str) -> None:
    led.cluster.configs[ALICE.resource] = {"producer_byte_rate": text}
    set_temporary(led, expire_time=soon())
    eventually(lambda: led.cluster.configs[ALICE.resource] == {"producer_byte_rate": "5"})
    remove_quota(led)
    eventually(lambda: led.cluster.configs[ALICE.resource] == {"producer_byte_rate": text})
    eventually(lambda: not led.cluster.ledger)
    assert records(led)[0][1] == 'Temporary quota of user "alice" ended'


def test_a_quota_of_a_recovery_needs_one(services: InProcessServices) -> None:
    code, details = failure(set_temporary, services, recovery=True)
    assert code is grpc.StatusCode.ABORTED
    assert "no recovery would end and restore the quotas; start one first" in details
    services.cluster.add_topic("t1", {0: (1001, 1002)})
    services.cluster.submit_reassignment("t1", {0: (1001, 1003)})
    assert set_temporary(services, recovery=True).quota.until_recovered
    assert services.temporary_quotas.read()[ALICE].until_recovered


def test_a_catch_up_is_a_recovery(services: InProcessServices) -> None:
    services.catch_ups.put(1001, CatchUp(1001))
    assert set_temporary(services, recovery=True).quota.until_recovered


def test_wrong_temporary_quotas_change_nothing(services: InProcessServices) -> None:
    code, details = failure(set_temporary, services, expire_time=soon(-1))
    assert code is grpc.StatusCode.INVALID_ARGUMENT and "is not after the present time" in details
    code, details = failure(set_temporary, services, expire_time=soon(), rate=0)
    assert code is grpc.StatusCode.INVALID_ARGUMENT and "outside of 1 to" in details
    assert failure(set_temporary, services, expire_time=soon(), etag="0" * 16)[0] is grpc.StatusCode.ABORTED
    assert set_temporary(services, expire_time=soon(), validate_only=True).quota.values.producer_byte_rate == 5
    assert services.temporary_quotas.read() == {} and records(services) == []


def test_a_permanent_quota_does_not_replace_a_temporary_one_of_the_same_key(services: InProcessServices) -> None:
    set_temporary(services, expire_time=soon())
    code, details = failure(set_quota, services, producer_byte_rate=9)
    assert code is grpc.StatusCode.ABORTED
    assert 'user "alice" has a temporary quota of producer_byte_rate; remove it first' in details
    set_quota(services, consumer_byte_rate=9)
    assert remove_quota(services, "consumer_byte_rate").before.consumer_byte_rate == 9
    assert failure(remove_quota, services, "consumer_byte_rate")[0] is grpc.StatusCode.NOT_FOUND
    remove_quota(services, validate_only=True)
    assert services.temporary_quotas.read().keys() == {ALICE}
    remove_quota(services, "producer_byte_rate")
    assert services.temporary_quotas.read() == {}
