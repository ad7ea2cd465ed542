"""`throttlectl quota` and the client's quota calls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime

import pytest

from autothrottle.core.quotas.keys import DEFAULT, ClientQuotaEntity, QuotaKey
from autothrottle.core.records import CatchUp
from autothrottle_client import AdminClient, Conflict, Invalid, Missing, QuotaEntity, QuotaValues
from autothrottle_client.throttlectl import main
from tests.in_process_services import InProcessServices

PRODUCER = QuotaKey.PRODUCER_BYTE_RATE
ALICE = QuotaEntity(user="alice")


@pytest.fixture
def admin(services: InProcessServices) -> Iterator[AdminClient]:
    with AdminClient([services.address("admin")]) as client:
        yield client


def run(services: InProcessServices, capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    """Run `throttlectl quota` and return what it prints to both outputs."""
    ended = main(["quota", *arguments, "--addr", services.address("admin")])
    printed = capsys.readouterr()
    assert ended == status, printed
    return printed.out + printed.err


def test_quotas_are_set_shown_and_removed(services: InProcessServices, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(services, capsys, "list") == "no client quota is set\n"
    entity = ("--default-user", "--client-id", "backfill")
    shown = "client-id 'backfill'"
    given = ("--producer-byte-rate", "20MB/s", "--request-percentage", "50")
    assert run(services, capsys, "set", *entity, *given) == (
        f"default user, {shown}: producer_byte_rate 20000000, request_percentage 50 (before: no quota)\n"
    )
    assert services.quotas.quotas == {
        ClientQuotaEntity(DEFAULT, "backfill"): {
            PRODUCER: 20_000_000,
            QuotaKey.REQUEST_PERCENTAGE: 50,
        }
    }
    listed = run(services, capsys, "list").splitlines()
    assert listed[0].split() == ["ENTITY", "KEY", "VALUE", "ENDS", "ETAG"]
    assert [line.split()[4:6] for line in listed[1:]] == [
        ["producer_byte_rate", "20000000"],
        ["request_percentage", "50"],
    ]
    described = run(services, capsys, "describe", "--user", "bob", "--client-id", "backfill").splitlines()
    assert described[1].split(maxsplit=2)[:2] == ["producer_byte_rate", "20000000"]
    assert "bytes/s per broker" in described[1] and f"4      default user, {shown}" in described[1]
    assert run(services, capsys, "remove", *entity, "--keys", "producer_byte_rate", "--dry-run") == (
        f"default user, {shown}: would be request_percentage 50 "
        "(before: producer_byte_rate 20000000, request_percentage 50)\n"
    )
    run(services, capsys, "remove", *entity)
    assert services.quotas.quotas == {}
    assert "no quota is set for default user" in run(services, capsys, "remove", *entity, status=3)
    assert run(services, capsys, "describe", "--user", "bob") == "no quota applies to this client\n"


def test_json_has_the_fields_of_the_model(services: InProcessServices, capsys: pytest.CaptureFixture[str]) -> None:
    run(services, capsys, "set", "--ip", "10.0.0.7", "--connection-creation-rate", "5")
    (quota,) = json.loads(run(services, capsys, "list", "-o", "json"))["quotas"]
    assert quota["entity"]["ip"] == "10.0.0.7"
    assert quota["values"]["connection_creation_rate"] == 5
    (effective,) = json.loads(run(services, capsys, "describe", "--ip", "10.0.0.7", "-o", "json"))["quotas"]
    assert (effective["value"], effective["level"]) == (5, 1)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("set", "--user", "a", "--producer-byte-rate", "1000"), "has no unit; give for example 1000B/s or 20MB/s"),
        (("set", "--user", "a", "--default-user", "--producer-byte-rate", "1MB/s"), "not allowed with argument"),
        (("set", "--user", "a", "--producer-rate", "1MB/s"), "did you mean --producer-byte-rate?"),
        (("set", "--user", "a", "--request-percentage", "0"), "request_percentage 0 is outside of above 0"),
        (("set", "--user", "a", "--request-percentage", "nan"), "request_percentage nan is outside of above 0"),
        (("set", "--user", "a"), "no quota is given"),
        (("set", "--request-percentage", "5"), "the entity has no part"),
        (("list", "--user", "a"), "--user has no effect on quota list; leave it out"),
        (("describe", "--default-user"), "--default-user has no effect on quota describe"),
        (("remove", "--user", "a", "--keys", "rate"), "'rate' is not a key of client quotas"),
        (("remove", "--user", "a", "--etag", "x"), "etag 'x' is invalid"),
    ],
)
def test_wrong_commands_name_the_fix_and_change_nothing(
    unchanged_services: InProcessServices, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], problem: str
) -> None:
    assert problem in " ".join(run(unchanged_services, capsys, *arguments, status=2).split())
    assert unchanged_services.quotas.quotas == {}


def test_an_unlimited_quota_is_shown_as_unlimited(
    services: InProcessServices, capsys: pytest.CaptureFixture[str]
) -> None:
    """`kafka-configs --add-config producer_byte_rate=9223372036854775807` exempts a user. The list of all failed."""
    services.quotas.quotas[ClientQuotaEntity("alice")] = {PRODUCER: 2**63 - 1}
    assert run(services, capsys, "list").splitlines()[1].split()[:4] == [
        "user",
        "'alice'",
        "producer_byte_rate",
        "unlimited",
    ]
    assert "producer_byte_rate  unlimited" in run(services, capsys, "describe", "--user", "alice")
    both = "producer_byte_rate unlimited, consumer_byte_rate unlimited"
    changed = run(services, capsys, "set", "--user", "alice", "--consumer-byte-rate", "unlimited")
    assert changed == f"user 'alice': {both} (before: producer_byte_rate unlimited)\n"
    assert run(services, capsys, "remove", "--user", "alice") == f"user 'alice': no quota (before: {both})\n"


def test_the_client_reports_conflicts_and_absent_quotas(admin: AdminClient) -> None:
    quotas = admin.quotas
    change = quotas.set(ALICE, QuotaValues(producer_byte_rate=5))
    assert change.before == QuotaValues()
    newer = quotas.set(ALICE, QuotaValues(producer_byte_rate=6), etag=change.quota.etag)
    assert quotas.list() == ((newer.quota,), ())
    with pytest.raises(Conflict, match="read them again"):
        quotas.remove(ALICE, etag=change.quota.etag)
    assert [one.value for one in quotas.describe(user="alice")] == [6]
    assert quotas.remove(ALICE).before == QuotaValues(producer_byte_rate=6)
    with pytest.raises(Missing):
        quotas.remove(ALICE)


def test_temporary_quotas_show_their_end(services: InProcessServices, capsys: pytest.CaptureFixture[str]) -> None:
    services.quotas.quotas[ClientQuotaEntity("alice")] = {PRODUCER: 70}
    given = ("set", "--user", "alice", "--producer-byte-rate", "5MB/s")
    assert "so no recovery would end and restore the quotas" in run(
        services, capsys, *given, "--until-recovered", status=1
    )
    services.catch_ups.put(1001, CatchUp(1001))
    run(services, capsys, *given, "--until-recovered", "--expires", "2030-01-31T18:00:00Z")
    assert "2030-01-31T18:00:00Z or with the recovery" in " ".join(run(services, capsys, "list").split())
    assert "has a temporary quota of producer_byte_rate; remove it first" in run(services, capsys, *given, status=1)
    run(services, capsys, "remove", "--user", "alice")
    assert services.temporary_quotas.read() == {}
    assert "--expires has no effect on quota list" in run(services, capsys, "list", "--expires", "2h", status=2)


def test_a_time_without_a_zone_is_refused(admin: AdminClient) -> None:
    with pytest.raises(Invalid, match="has no time zone"):
        admin.quotas.set(ALICE, QuotaValues(producer_byte_rate=5), expire_time=datetime(2030, 1, 1))
