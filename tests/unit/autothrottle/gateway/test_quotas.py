"""Client quotas over HTTP: every route, the etag, odd names, and requests that are refused."""

from __future__ import annotations

import json

import pytest

from autothrottle.core.quotas.keys import DEFAULT, ClientQuotaEntity, QuotaKey
from tests.unit.autothrottle.gateway.front import Front

PAIR = {"user": "a/b", "clientId": "100% ☃"}
KEY, PAIR_ENTITY = QuotaKey.PRODUCER_BYTE_RATE, ClientQuotaEntity("a/b", "100% ☃")


def quota(values: dict[str, object], entity: dict[str, object] | None = None) -> str:
    return json.dumps({"entity": PAIR if entity is None else entity, "values": values})


def test_a_quota_is_set_listed_described_and_removed(front: Front) -> None:
    done = front.ask("PUT", "/v1/quota", quota({"producerByteRate": 5_000_000}))
    assert done.status == 200
    assert done.headers["etag"] == f'"{done.json["quota"]["etag"]}"'
    assert front.services.quotas.quotas == {PAIR_ENTITY: {KEY: 5_000_000}}
    (listed,) = front.ask("GET", "/v1/quotas").json["quotas"]
    assert listed["values"] == {"producerByteRate": "5000000"}
    path = "/v1/effectiveQuotas?user=a%2Fb&clientId=100%25%20%E2%98%83"
    (effective,) = front.ask("GET", path).json["quotas"]
    assert (effective["key"], effective["value"], effective["level"]) == ("producer_byte_rate", 5_000_000, 1)
    removed = front.ask("POST", "/v1/quota/remove", json.dumps({"entity": PAIR}))
    assert removed.json["before"] == {"producerByteRate": "5000000"}
    assert front.services.quotas.quotas == {}
    assert front.ask("POST", "/v1/quota/remove", json.dumps({"entity": PAIR})).status == 404


def test_an_unlimited_quota_is_answered_and_can_be_sent_back(front: Front) -> None:
    """The list of all quotas had the status 500 while one user was exempt from a default quota."""
    front.services.quotas.quotas[PAIR_ENTITY] = {KEY: 2**63 - 1}
    (listed,) = front.ask("GET", "/v1/quotas").json["quotas"]
    assert listed["values"] == {"producerByteRate": "9223372036854775807"}
    assert front.ask("PUT", "/v1/quota", quota(listed["values"])).status == 200
    removed = front.ask("POST", "/v1/quota/remove", json.dumps({"entity": PAIR}))
    assert removed.json["before"] == listed["values"]


def test_if_match_changes_only_its_version(front: Front) -> None:
    old = front.ask("PUT", "/v1/quota", quota({"producerByteRate": 5})).headers["etag"]
    assert front.ask("PUT", "/v1/quota", quota({"producerByteRate": 6}), {"If-Match": old}).status == 200
    assert front.ask("PUT", "/v1/quota", quota({"producerByteRate": 7}), {"If-Match": old}).status == 409
    body = json.dumps({"entity": PAIR})
    assert front.ask("POST", "/v1/quota/remove", body, {"If-Match": old}).status == 409
    assert front.services.quotas.quotas == {PAIR_ENTITY: {KEY: 6}}


def test_a_dry_run_is_a_parameter(front: Front) -> None:
    default = quota({"consumerByteRate": "7"}, {"defaultUser": True, "defaultClientId": True})
    shown = front.ask("PUT", "/v1/quota?validateOnly=true", default)
    assert shown.json["quota"]["values"] == {"consumerByteRate": "7"}
    assert front.services.quotas.quotas == {}
    front.ask("PUT", "/v1/quota", default)
    assert front.services.quotas.quotas.keys() == {ClientQuotaEntity(DEFAULT, DEFAULT)}


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (quota({"producer_rate": 5}), "producer_rate"),
        (quota({"producerByteRate": 0}), "producer_byte_rate 0 is outside of 1 to"),
        (quota({"producerByteRate": 1.5}), "the body cannot be read"),
        (quota({"producerByteRate": 5}, {"user": "a", "defaultUser": True}), "and as the default; give one"),
        (quota({}), "no quota is given"),
        ("{}", "the entity has no part"),
    ],
)
def test_a_wrong_quota_is_refused_with_the_fix(front: Front, body: str, problem: str) -> None:
    refused = front.ask("PUT", "/v1/quota", body)
    assert refused.status == 400
    assert problem in refused.text
    assert front.services.quotas.quotas == {}
