"""`throttlectl quota rule` and the client's calls for yield rules."""

from __future__ import annotations

import json

import pytest

from autothrottle.core.quotas.keys import QuotaKey
from autothrottle_client import AdminClient, Invalid, Missing, YieldRule
from tests.in_process_services import InProcessServices
from tests.unit.autothrottle_client.test_quotas import run

SENTENCE = 'while recovering: client-id "backfill-*" may use at most 20 MB/s per broker, at least 1 MB/s'
GIVEN = ("--client-id", "backfill-*", "--at-most", "20MB/s", "--floor", "1MB/s")
SET = ("rule", "set", "backfills")


def test_rules_are_set_shown_and_removed(services: InProcessServices, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(services, capsys, "rule", "list") == "no yield rule is set\n"
    assert run(services, capsys, *SET, *GIVEN, "--dry-run") == f"backfills would be: {SENTENCE}\n"
    assert services.yield_rules.read() == {}
    assert run(services, capsys, *SET, *GIVEN) == f"backfills: {SENTENCE}\n"
    header, row = run(services, capsys, "rule", "list").splitlines()
    assert header.split() == ["NAME", "TIME", "AUTHOR", "RULE"]
    assert row.startswith("backfills") and "  127.0.0.1  " in row and row.endswith(SENTENCE)
    remove = ("rule", "remove", "backfills")
    assert run(services, capsys, *remove, "--dry-run") == f"backfills: yield rule would be removed ({SENTENCE})\n"
    assert services.yield_rules.read().keys() == {"backfills"}
    assert run(services, capsys, *remove) == f"backfills: yield rule removed ({SENTENCE})\n"
    assert services.yield_rules.read() == {}
    assert "no yield rule is called 'backfills'" in run(services, capsys, *remove, status=3)


def test_a_share_of_the_capacity_for_producers_of_a_user(
    services: InProcessServices, capsys: pytest.CaptureFixture[str]
) -> None:
    run(services, capsys, *SET, *GIVEN)
    given = ("--user", "etl-*", "--at-most", "12.5%", "--floor", "500kB/s", "--keys", "producer_byte_rate")
    assert run(services, capsys, *SET, *given) == (
        'backfills: while recovering: user "etl-*" may send at most 12.5 % of the smallest broker\'s capacity, '
        f"at least 0.5 MB/s (before: {SENTENCE})\n"
    )
    (rule,) = services.yield_rules.read().values()
    assert (rule.user, rule.client_id, rule.at_most_bytes_per_second, rule.at_most_share) == (
        "etl-*",
        None,
        None,
        0.125,
    )
    assert (rule.floor_bytes_per_second, list(rule.keys)) == (500_000, [QuotaKey.PRODUCER_BYTE_RATE])


def test_json_has_the_fields_of_the_model(services: InProcessServices, capsys: pytest.CaptureFixture[str]) -> None:
    run(services, capsys, *SET, *GIVEN)
    (rule,) = json.loads(run(services, capsys, "rule", "list", "-o", "json"))["rules"]
    assert (rule["name"], rule["client_id"], rule["user"]) == ("backfills", "backfill-*", None)
    assert (rule["at_most_bytes_per_second"], rule["floor_bytes_per_second"]) == (20_000_000, 1_000_000)
    assert rule["time"].endswith("Z") and rule["sentence"] == SENTENCE


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("rule",), "quota rule is not a command; give quota list,"),
        (("list", "list"), "quota list list is not a command; give quota"),
        (("rule", "describe"), "invalid choice: 'describe'"),
        (("rule", "list", "backfills"), "backfills has no effect on quota rule list; leave it out"),
        (("rule", "remove"), "quota rule remove needs the name of the rule"),
        (("rule", "set", *GIVEN), "quota rule set needs the name of the rule"),
        ((*SET, "--client-id", "a*", "--floor", "1MB/s"), "quota rule set needs --at-most"),
        ((*SET, "--client-id", "a*", "--at-most", "1MB/s"), "quota rule set needs --floor"),
        ((*SET, *GIVEN, "--at-most", "10%"), "--at-most: is given twice; give it once"),
        ((*SET, *GIVEN[:2], "--at-most", "20", "--floor", "1MB/s"), "'20' has no unit; give for example 20B/s"),
        ((*SET, *GIVEN[:2], "--at-most", "0%", "--floor", "1MB/s"), "is not a share of the capacity, above 0%"),
        ((*SET, *GIVEN[:2], "--at-most", "101%", "--floor", "1MB/s"), "at most 100%; give for example 10%"),
        ((*SET, *GIVEN[:2], "--at-most", "1MB/s", "--floor", "2MB/s"), "give a floor that is not above the limit"),
        ((*SET, *GIVEN, "--keys", "rate"), "'rate' is not a key of client quotas"),
        ((*SET, *GIVEN, "--default-user"), "--default-user has no effect on quota rule set"),
        ((*SET, *GIVEN[2:]), "matches every client; give a pattern like backfill-* for the client ids or the users"),
        ((*SET, "--client-id", "*", *GIVEN[2:]), "confirm the rule with --force"),
        ((*SET, *GIVEN[2:], "--i-mean-it"), "unrecognized arguments: --i-mean-it; did you mean --force?"),
        (("rule", "set", "Back fills", *GIVEN), "rule name 'Back fills' is invalid"),
        (("set", "--user", "a", "--floor", "1MB/s"), "--floor has no effect on quota set; leave it out"),
    ],
)
def test_wrong_commands_name_the_fix_and_change_nothing(
    unchanged_services: InProcessServices, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], problem: str
) -> None:
    assert problem in " ".join(run(unchanged_services, capsys, *arguments, status=2).split())
    assert unchanged_services.yield_rules.read() == {} and unchanged_services.quotas.quotas == {}


def test_a_rule_for_every_client_needs_confirmation(
    services: InProcessServices, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = run(services, capsys, *SET, *GIVEN[2:], "--force")
    assert shown.startswith("backfills: while recovering: every client may use at most 20 MB/s")


def test_the_client_sets_lists_and_removes_rules(services: InProcessServices) -> None:
    with AdminClient([services.address("admin")]) as admin:
        wanted = YieldRule("backfills", 1_000_000, client_id="backfill-*", at_most_bytes_per_second=20_000_000)
        change = admin.quotas.set_rule(wanted)
        assert change.before is None and change.rule.sentence == SENTENCE
        assert admin.quotas.set_rule(change.rule, validate_only=True).before == change.rule
        assert admin.quotas.list_rules() == (change.rule,)
        assert admin.quotas.remove_rule("backfills") == change.rule
        with pytest.raises(Missing):
            admin.quotas.remove_rule("backfills")
        with pytest.raises(Invalid, match="has no limit"):
            admin.quotas.set_rule(YieldRule("backfills", 1, client_id="a*"))
