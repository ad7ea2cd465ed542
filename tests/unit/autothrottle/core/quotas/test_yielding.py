"""Yield rules: what is refused, which names match a pattern, and the sentence of a rule."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.errors import Conflict, Invalid
from autothrottle.core.quotas.keys import MAX_EXACT, QuotaKey
from autothrottle.core.quotas.yielding import BYTE_RATES, YieldRule, matches, rule_sentence, validate_rule, with_rule
from autothrottle.core.units import format_megabytes

RULE = YieldRule(
    name="backfill",
    user=None,
    client_id="backfill-*",
    at_most_bytes_per_second=20_000_000,
    at_most_share=None,
    floor_bytes_per_second=1_000_000,
    keys=BYTE_RATES,
    author="anna",
    time=datetime(2026, 11, 2, 12, tzinfo=UTC),
)


@pytest.mark.parametrize(
    ("edits", "reason"),
    [
        ({"name": ""}, "rule name '' is invalid; give 1 to 60 lower-case letters, digits and hyphens"),
        ({"name": "a" * 61}, "1 to 60"),
        ({"name": "Backfill"}, "lower-case"),
        ({"name": "a\n"}, "lower-case"),
        ({"client_id": ""}, "the client-id pattern '' of rule backfill has 0 bytes; give 1 to 1000 bytes"),
        ({"user": "é" * 501}, "has 1002 bytes"),
        ({"client_id": "a\n*"}, "has a character that cannot be printed; give ? for it"),
        ({"client_id": ".."}, "cannot have quotas"),
        ({"user": "."}, "cannot have quotas"),
        ({"at_most_bytes_per_second": None}, "has no limit; give either a rate or a share of the capacity"),
        ({"at_most_share": 0.5}, "has a rate and a share of the capacity; give either"),
        ({"at_most_bytes_per_second": 0}, "the limit 0 bytes/s of rule backfill is outside of 1 to"),
        ({"at_most_bytes_per_second": MAX_EXACT + 1}, "is outside of 1 to"),
        ({"at_most_bytes_per_second": None, "at_most_share": 0.0}, "give a number above 0 to 1"),
        ({"at_most_bytes_per_second": None, "at_most_share": 1.01}, "give a number above 0 to 1"),
        ({"at_most_bytes_per_second": None, "at_most_share": float("nan")}, "give a number above 0 to 1"),
        ({"floor_bytes_per_second": 0}, "the floor 0 bytes/s of rule backfill is outside of 1 to 20000000 bytes/s"),
        ({"floor_bytes_per_second": 20_000_001}, "give a floor that is not above the limit"),
        ({"keys": frozenset()}, "limits no key; give at least one of consumer_byte_rate, producer_byte_rate"),
        ({"keys": frozenset({QuotaKey.REQUEST_PERCENTAGE})}, "limits request_percentage; give at least one of"),
    ],
)
def test_wrong_rules_are_refused_with_the_fix(edits: dict[str, Any], reason: str) -> None:
    with pytest.raises(Invalid) as error:
        validate_rule(replace(RULE, **edits), force=True)
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("user", "client_id"), [(None, None), (None, "*"), ("**", None), (None, "?*"), ("*", "*?"), ("???", "*")]
)
def test_rules_that_match_every_client_must_be_confirmed(user: str | None, client_id: str | None) -> None:
    rule = replace(RULE, user=user, client_id=client_id)
    with pytest.raises(Invalid, match=r"matches every client; give a pattern .* or confirm the rule with --force"):
        validate_rule(rule)
    assert validate_rule(rule, force=True) == rule


@pytest.mark.parametrize(("user", "client_id"), [("*", "a*"), ("alice", "*"), (None, "*-1"), ("a?", None)])
def test_rules_that_match_some_clients_need_no_confirmation(user: str | None, client_id: str | None) -> None:
    rule = replace(RULE, user=user, client_id=client_id)
    assert validate_rule(rule) == rule


@given(st.text(max_size=30))
def test_a_name_matches_itself_and_patterns_made_of_it(name: str) -> None:
    exact = "".join("?" if one in "*?" else one for one in name)
    assert matches(exact, name) and matches(f"*{exact}", name) and matches(f"{exact}*", f"{name}tail")
    assert not matches(f"{exact}x", name)


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("backfill-?", "backfill-1", True),
        ("backfill-?", "backfill-", False),
        ("backfill-*", "Backfill-1", False),
        ("*fill*", "back\nfill-1", True),
        ("[a-z]*", "b", False),
        ("[a-z]*", "[a-z]-1", True),
        ("[!a]", "b", False),
        ("a.c", "abc", False),
        ("a*", "xa", False),
    ],
)
def test_only_stars_and_question_marks_are_wildcards(pattern: str, name: str, expected: bool) -> None:
    assert matches(pattern, name) is expected


def test_a_pattern_with_many_stars_is_fast() -> None:
    """With a plain translation to `.*`, this pattern takes longer than the age of the universe."""
    started = time.monotonic()
    assert not matches("*a" * 40 + "b", "a" * 4_000)
    assert time.monotonic() - started < 5


def test_a_rule_has_a_sentence() -> None:
    share = replace(
        RULE,
        user="al*",
        at_most_bytes_per_second=None,
        at_most_share=0.1,
        keys=frozenset({QuotaKey.PRODUCER_BYTE_RATE}),
    )
    everyone = replace(RULE, client_id=None, floor_bytes_per_second=1, keys=frozenset({QuotaKey.CONSUMER_BYTE_RATE}))
    assert rule_sentence(share) == (
        'while recovering: user "al*", client-id "backfill-*" may send at most 10 % of the smallest broker\'s '
        "capacity, at least 1 MB/s"
    )
    assert rule_sentence(everyone) == (
        "while recovering: every client may receive at most 20 MB/s per broker, at least 0.000001 MB/s"
    )


def test_a_share_is_a_limit_if_the_capacity_is_known() -> None:
    share = replace(RULE, at_most_bytes_per_second=None, at_most_share=0.1)
    assert RULE.limit(None) == 20_000_000
    assert share.limit(None) is None
    assert share.limit(125_000_000) == 12_500_000
    assert share.limit(5_000_000) == share.floor_bytes_per_second, (
        "a limit below the floor would make the floor meaningless"
    )


def test_more_than_a_hundred_rules_are_refused() -> None:
    rules = {f"r{n}": replace(RULE, name=f"r{n}") for n in range(100)}
    with pytest.raises(Conflict, match="there would be 101 yield rules, more than 100; remove one"):
        with_rule(rules, RULE.name, RULE)
    assert with_rule(rules, "r7", RULE) == {**rules, "r7": RULE}


@given(st.integers(0, 2**53))
def test_megabytes_are_exact(rate: int) -> None:
    whole, _, rest = format_megabytes(rate).partition(".")
    assert int(whole) * 1_000_000 + int(rest.ljust(6, "0") or 0) == rate
