"""Yield rules over HTTP: every route, the parameters, and requests that are refused."""

from __future__ import annotations

import json

import pytest

from tests.unit.autothrottle.gateway.front import Front

PATH = "/v1/yieldRules/backfills"
GIVEN = {"clientId": "backfill-*", "atMostBytesPerSecond": 20_000_000, "floorBytesPerSecond": 1_000_000}
SENTENCE = 'while recovering: client-id "backfill-*" may use at most 20 MB/s per broker, at least 1 MB/s'


def rule(**edits: object) -> str:
    return json.dumps({**GIVEN, **edits})


def test_a_rule_is_set_listed_and_removed(front: Front) -> None:
    done = front.ask("PUT", PATH, rule())
    assert done.status == 200
    assert done.json["rule"]["sentence"] == SENTENCE
    (listed,) = front.ask("GET", "/v1/yieldRules").json["rules"]
    assert listed == done.json["rule"]
    assert (listed["name"], listed["atMostBytesPerSecond"]) == ("backfills", "20000000")
    assert front.ask("DELETE", f"{PATH}?validateOnly=true").json["before"] == listed
    assert front.services.yield_rules.read().keys() == {"backfills"}
    assert front.ask("DELETE", PATH).json["before"] == listed
    assert front.services.yield_rules.read() == {}
    assert front.ask("DELETE", PATH).status == 404


def test_a_listed_rule_can_be_edited_and_sent_back(front: Front) -> None:
    front.ask("PUT", PATH, rule())
    (listed,) = front.ask("GET", "/v1/yieldRules").json["rules"]
    assert front.ask("PUT", PATH, json.dumps({**listed, "floorBytesPerSecond": 5})).status == 200
    assert front.services.yield_rules.read()["backfills"].floor_bytes_per_second == 5


def test_dry_run_and_confirmation_are_parameters(front: Front) -> None:
    everyone = rule(clientId="*")
    refused = front.ask("PUT", PATH, everyone)
    assert refused.status == 400 and "matches every client" in refused.text
    assert front.ask("PUT", f"{PATH}?force=true&validateOnly=true", everyone).status == 200
    assert front.services.yield_rules.read() == {}
    assert front.ask("PUT", f"{PATH}?force=true", everyone).status == 200
    assert front.services.yield_rules.read().keys() == {"backfills"}


@pytest.mark.parametrize("name", ["iMeanIt", "i_mean_it"])
def test_the_old_name_of_the_confirmation_is_refused_with_the_new_one(front: Front, name: str) -> None:
    refused = front.ask("PUT", f"{PATH}?{name}=true", rule(clientId="*"))
    assert refused.status == 400 and f"parameter '{name}' is 'force' now; give force=true" in refused.text
    assert front.services.yield_rules.read() == {}


@pytest.mark.parametrize(
    ("path", "body", "problem"),
    [
        (PATH, rule(rate=5), "rate"),
        (PATH, rule(keys=["rate"]), "'rate' is not a key of client quotas"),
        (PATH, rule(floorBytesPerSecond=30_000_000), "give a floor that is not above the limit"),
        (PATH, rule(atMostShare=0.5), "has a rate and a share of the capacity"),
        (PATH, rule(atMostBytesPerSecond=1.5), "the body cannot be read"),
        ("/v1/yieldRules/Back%20fills", rule(), "rule name 'Back fills' is invalid"),
    ],
)
def test_a_wrong_rule_is_refused_with_the_fix(front: Front, path: str, body: str, problem: str) -> None:
    refused = front.ask("PUT", path, body)
    assert refused.status == 400
    assert problem in refused.text
    assert front.services.yield_rules.read() == {}
