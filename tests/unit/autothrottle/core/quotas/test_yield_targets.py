"""Which entities a yield rule limits, among those that Kafka knows."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from autothrottle.core.quotas.keys import DEFAULT, ClientQuotaEntity
from autothrottle.core.quotas.yielding import yield_targets
from tests.unit.autothrottle.core.quotas.test_yielding import RULE

KNOWN = frozenset(
    {
        ClientQuotaEntity("alice"),
        ClientQuotaEntity("alice", DEFAULT),
        ClientQuotaEntity("alice", "backfill-1"),
        ClientQuotaEntity("bob", "backfill-1"),
        ClientQuotaEntity(DEFAULT, "backfill-2"),
        ClientQuotaEntity(client_id="backfill-3"),
        ClientQuotaEntity(DEFAULT, "app"),
        ClientQuotaEntity(DEFAULT),
        ClientQuotaEntity(DEFAULT, DEFAULT),
        ClientQuotaEntity(client_id=DEFAULT),
        ClientQuotaEntity(ip="10.0.0.7"),
        ClientQuotaEntity(ip=DEFAULT),
    }
)


@pytest.mark.parametrize(
    ("user", "client_id", "expected"),
    [
        (
            None,
            "backfill-*",
            {
                ("<default>", "backfill-1"): False,
                ("<default>", "backfill-2"): False,
                ("<default>", "backfill-3"): False,
                ("alice", "backfill-1"): True,
                ("bob", "backfill-1"): True,
            },
        ),
        (None, "unseen", {("<default>", "unseen"): False}),
        (None, "unseen-*", {}),
        (
            "alice",
            None,
            {("alice", None): False, ("alice", "<default>"): True, ("alice", "backfill-1"): True},
        ),
        ("b*", None, {("bob", None): False, ("bob", "backfill-1"): True}),
        ("carol", None, {("carol", None): False}),
        ("*", "b*", {("alice", "backfill-1"): False, ("bob", "backfill-1"): False}),
        ("carol", "backfill-[23]", {("carol", "backfill-[23]"): False}),
        (
            "carol",
            "backfill-?",
            {("carol", f"backfill-{n}"): False for n in (1, 2, 3)},
        ),
        ("[ab]*", "app", {}),
    ],
)
def test_entities_of_matching_clients_are_limited(
    user: str | None, client_id: str | None, expected: dict[tuple[str, str | None], bool]
) -> None:
    targets = yield_targets((replace(RULE, user=user, client_id=client_id),), KNOWN)
    found = {}
    for target in targets:
        (matching,) = target.rules
        parts = (target.entity.user, target.entity.client_id)
        user_name, client_name = (part.value if part is DEFAULT else part for part in parts)
        found[user_name, client_name] = matching.only_own
    assert found == expected


def test_a_rule_for_everyone_spares_the_defaults_and_addresses() -> None:
    for user, client_id in ((None, None), ("*", None), (None, "*"), ("*", "*")):
        entities = {t.entity for t in yield_targets((replace(RULE, user=user, client_id=client_id),), KNOWN)}
        assert entities and not entities & {
            ClientQuotaEntity(DEFAULT),
            ClientQuotaEntity(DEFAULT, DEFAULT),
            ClientQuotaEntity(client_id=DEFAULT),
            ClientQuotaEntity(ip="10.0.0.7"),
            ClientQuotaEntity(ip=DEFAULT),
        }


def test_a_target_names_all_its_rules_and_where_its_quota_comes_from() -> None:
    first, second = replace(RULE, name="a"), replace(RULE, name="b", user="alice", client_id="backfill-1")
    found = {target.entity: target for target in yield_targets((first, second), KNOWN)}
    target = found[ClientQuotaEntity("alice", "backfill-1")]
    assert [(one.rule.name, one.only_own) for one in target.rules] == [("a", True), ("b", False)]
    assert [one.path for one in found[ClientQuotaEntity(DEFAULT, "backfill-2")].fallbacks] == [
        "users/<default>/clients/<default>",
        "users/<default>",
        "clients/backfill-2",
        "clients/<default>",
    ]
    assert [one.path for one in target.fallbacks][:3] == [
        "users/alice/clients/<default>",
        "users/alice",
        "users/<default>/clients/backfill-1",
    ]


def test_a_hundred_rules_and_a_thousand_clients_are_matched_quickly_and_once() -> None:
    rules = tuple(replace(RULE, name=f"r{n}", client_id=f"c{n:02}-*") for n in range(100))
    known = frozenset(ClientQuotaEntity(DEFAULT, f"c{n % 100:02}-{n}") for n in range(1_000))
    started = time.monotonic()
    assert len(yield_targets(rules, known)) == 1_000
    assert time.monotonic() - started < 5
    assert yield_targets(rules, frozenset(known)) is yield_targets(rules, known)
