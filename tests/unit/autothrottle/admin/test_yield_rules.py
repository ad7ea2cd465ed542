"""The yield rules of the quota service over gRPC: what is stored, listed, refused and recorded."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import grpc
import pytest

from autothrottle.core.quotas.keys import DEFAULT, ClientQuotaEntity, QuotaKey
from autothrottle.core.quotas.yielding import BYTE_RATES
from autothrottle.v1 import quotas_pb2
from tests.builders import eventually
from tests.in_process_services import InProcessServices
from tests.unit.autothrottle.admin.test_quotas import SLACK, calls, failure, records, remove_quota, set_quota

SENTENCE = 'while recovering: client-id "backfill-*" may use at most 20 MB/s per broker, at least 1 MB/s'
GIVEN = {
    "name": "backfills",
    "client_id": "backfill-*",
    "at_most_bytes_per_second": 20_000_000,
    "floor_bytes_per_second": 1_000_000,
}


def set_rule(services: InProcessServices, validate_only: bool = False, force: bool = False, **edits: Any) -> Any:
    """Set the rule `GIVEN` with edits; a field that is None is not given."""
    fields = {name: value for name, value in {**GIVEN, **edits}.items() if value is not None}
    request = quotas_pb2.SetYieldRuleRequest(
        rule=quotas_pb2.YieldRule(**fields), validate_only=validate_only, force=force
    )
    return calls(services).SetYieldRule(request, timeout=SLACK)


def remove_rule(services: InProcessServices, name: str = "backfills", validate_only: bool = False) -> Any:
    request = quotas_pb2.RemoveYieldRuleRequest(name=name, validate_only=validate_only)
    return calls(services).RemoveYieldRule(request, timeout=SLACK)


def listed(services: InProcessServices) -> Any:
    return calls(services).ListYieldRules(quotas_pb2.ListYieldRulesRequest(), timeout=SLACK).rules


def test_a_rule_is_stored_with_author_and_time_and_listed_with_its_sentence(services: InProcessServices) -> None:
    before = datetime.now(UTC)
    done = set_rule(services, author="mallory", sentence="nothing")
    assert done.rule.sentence == SENTENCE and not done.HasField("before")
    rule = services.yield_rules.read()["backfills"]
    assert (rule.user, rule.client_id) == (None, "backfill-*")
    assert (rule.at_most_bytes_per_second, rule.at_most_share) == (20_000_000, None)
    assert (rule.floor_bytes_per_second, rule.keys) == (1_000_000, BYTE_RATES)
    assert rule.author.startswith("ipv4:127.0.0.1:")
    assert rule.time is not None and before <= rule.time <= datetime.now(UTC)
    assert list(listed(services)) == [done.rule]
    assert sorted(done.rule.keys) == ["consumer_byte_rate", "producer_byte_rate"]


def test_a_rule_replaces_the_one_of_its_name(services: InProcessServices) -> None:
    set_rule(services)
    set_rule(services, name="a-first-one")
    done = set_rule(services, user="etl", keys=["producer_byte_rate"], at_most_bytes_per_second=None, at_most_share=0.1)
    assert done.before.sentence == SENTENCE
    assert [(one.name, one.at_most_share) for one in listed(services)] == [("a-first-one", 0), ("backfills", 0.1)]
    assert services.yield_rules.read()["backfills"].keys == {QuotaKey.PRODUCER_BYTE_RATE}


def test_changes_are_recorded_and_dry_runs_are_not(services: InProcessServices) -> None:
    assert set_rule(services, validate_only=True).rule.sentence == SENTENCE
    assert list(listed(services)) == [] and records(services) == []
    set_rule(services)
    assert remove_rule(services, validate_only=True).before.name == "backfills"
    assert len(listed(services)) == 1
    assert remove_rule(services).before.sentence == SENTENCE
    assert [result for _, result in records(services)] == [
        "Yield rule backfills removed",
        f"Yield rule backfills: {SENTENCE}",
    ]


@pytest.mark.parametrize(
    ("edits", "problem"),
    [
        ({"name": None}, "rule name '' is invalid; give 1 to 60 lower-case letters, digits and hyphens"),
        ({"keys": ["rate"]}, "'rate' is not a key of client quotas; give one of"),
        ({"keys": ["request_percentage"]}, "limits request_percentage; give at least one of"),
        ({"floor_bytes_per_second": None}, "the floor 0 bytes/s of rule backfills is outside of 1 to 20000000"),
        ({"floor_bytes_per_second": 20_000_001}, "give a floor that is not above the limit"),
        ({"at_most_bytes_per_second": -1}, "the limit -1 bytes/s of rule backfills is outside of 1 to"),
        ({"at_most_bytes_per_second": 2**53 + 1}, "is outside of 1 to 9007199254740992"),
        ({"at_most_share": 0.5}, "has a rate and a share of the capacity; give either"),
        ({"at_most_bytes_per_second": None}, "has no limit; give either a rate or a share"),
        ({"at_most_bytes_per_second": None, "at_most_share": 1.5}, "give a number above 0 to 1"),
        ({"client_id": "*"}, "matches every client; give a pattern"),
        ({"client_id": None}, "or confirm the rule with --force"),
        ({"client_id": ""}, "the client-id pattern '' of rule backfills has 0 bytes"),
    ],
)
def test_wrong_rules_change_nothing(services: InProcessServices, edits: dict[str, Any], problem: str) -> None:
    for dry_run in (True, False):
        code, details = failure(set_rule, services, dry_run, **edits)
        assert code is grpc.StatusCode.INVALID_ARGUMENT and problem in details
    assert services.yield_rules.read() == {} and records(services) == []


def test_a_rule_for_every_client_is_stored_if_confirmed(services: InProcessServices) -> None:
    set_rule(services, force=True, client_id=None)
    assert services.yield_rules.read()["backfills"].matches_everything


def test_a_user_pattern_with_a_type_gets_a_warning(services: InProcessServices) -> None:
    (warning,) = set_rule(services, user="User:etl-*").warnings
    assert "Kafka compares the name without the type" in warning


def test_an_absent_rule_is_not_found(services: InProcessServices) -> None:
    for dry_run in (True, False):
        code, details = failure(remove_rule, services, "none", dry_run)
        assert code is grpc.StatusCode.NOT_FOUND
        assert "no yield rule is called 'none'; ListYieldRules shows the existing ones" in details


def test_a_rule_above_the_limit_is_refused_also_in_a_dry_run(services: InProcessServices) -> None:
    set_rule(services)
    rule = services.yield_rules.read()["backfills"]
    for number in range(99):
        services.yield_rules.put(f"r{number}", replace(rule, name=f"r{number}"))
    set_rule(services, floor_bytes_per_second=7)
    for dry_run in (True, False):
        code, details = failure(set_rule, services, dry_run, name="more")
        assert code is grpc.StatusCode.ABORTED and "remove one" in details
    assert "more" not in services.yield_rules.read()


def test_a_permanent_quota_is_refused_while_the_end_of_a_recovery_would_undo_it(led: InProcessServices) -> None:
    """The planner restores the quota from before the recovery, so the operator's new value would be lost."""
    backfill, other = (quotas_pb2.QuotaEntity(default_user=True, client_id=f"backfill-{n}") for n in (1, 2))
    resource = ClientQuotaEntity(DEFAULT, "backfill-1").resource
    led.cluster.add_topic("t1", {0: (1001, 1002)})
    led.cluster.submit_reassignment("t1", {0: (1001, 1003)})
    set_rule(led, client_id="backfill-1", keys=["producer_byte_rate"])
    eventually(lambda: resource in led.cluster.ledger)
    code, details = failure(set_quota, led, entity=backfill, producer_byte_rate=9)
    assert code is grpc.StatusCode.ABORTED
    assert 'has set producer_byte_rate of default user, client-id "backfill-1" for the time of a recovery' in details
    assert failure(remove_quota, led, entity=backfill)[0] is grpc.StatusCode.ABORTED
    set_quota(led, entity=backfill, request_percentage=50.0)
    set_quota(led, entity=other, producer_byte_rate=1_000_000_000)


def test_an_outage_of_the_store_is_reported(services: InProcessServices) -> None:
    services.yield_rules.unavailable(True)
    for call in (set_rule, remove_rule, listed):
        code, details = failure(call, services)
        assert code is grpc.StatusCode.UNAVAILABLE and "try again" in details


def test_the_leading_planner_limits_the_clients_of_a_rule_and_restores_their_quotas(led: InProcessServices) -> None:
    resource = ClientQuotaEntity(DEFAULT, "backfill-1").resource
    led.cluster.configs[resource] = {"producer_byte_rate": "70000000"}
    led.cluster.add_topic("t1", {0: (1001, 1002)})
    led.cluster.submit_reassignment("t1", {0: (1001, 1003)})
    set_rule(led, client_id="backfill-1")
    eventually(lambda: led.cluster.configs[resource].keys() == {"producer_byte_rate", "consumer_byte_rate"})
    remove_rule(led)
    eventually(lambda: led.cluster.configs[resource] == {"producer_byte_rate": "70000000"})
