from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from autothrottle.adapters.kafka_admin.client_quotas import own_quota_problems
from autothrottle.core.quotas.keys import DEFAULT, ClientQuotaEntity, Name, QuotaKey

READS, WRITES, REQUESTS = QuotaKey.CONSUMER_BYTE_RATE, QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.REQUEST_PERCENTAGE
SASL = {"security_protocol": "SASL_SSL", "sasl_plain_username": "alice"}


@pytest.mark.parametrize(
    ("options", "user", "client_id", "names"),
    [
        ({}, None, DEFAULT, "--entity-type clients --entity-name autothrottle"),
        ({}, None, "autothrottle", "--entity-type clients --entity-name autothrottle"),
        ({"client_id": "at"}, None, DEFAULT, "--entity-type clients --entity-name at"),
        ({}, DEFAULT, None, "--entity-type users --entity-default --entity-type clients --entity-name autothrottle"),
        (
            {},
            "ANONYMOUS",
            None,
            "--entity-type users --entity-name ANONYMOUS --entity-type clients --entity-name autothrottle",
        ),
        (
            SASL,
            "alice",
            DEFAULT,
            "--entity-type users --entity-name alice --entity-type clients --entity-name autothrottle",
        ),
    ],
)
def test_low_quota_names_its_entity_and_the_command_that_exempts_this_client(
    options: Mapping[str, Any], user: Name | None, client_id: Name | None, names: str
) -> None:
    entity = ClientQuotaEntity(user, client_id)
    quotas = {entity: {READS: 1024.0, WRITES: 1_000_000.0, REQUESTS: 0.5}}
    assert own_quota_problems(quotas, options, "k1:9092") == {
        str(
            entity
        ): "limits this client to consumer_byte_rate=1024, request_percentage=0.5, so reading and writing our "
        "state is slow, and large parts of it may never be read. Fix: kafka-configs.sh --bootstrap-server k1:9092 "
        f"--alter --add-config 'consumer_byte_rate=100000000,request_percentage=1000.0' {names}"
    }


def test_quotas_of_others_and_sufficient_ones_are_no_problem() -> None:
    quotas = {
        ClientQuotaEntity("bob"): {READS: 1.0},
        ClientQuotaEntity(client_id="other"): {READS: 1.0},
        ClientQuotaEntity(DEFAULT): {READS: 1.0, WRITES: 1.0},
        ClientQuotaEntity(DEFAULT, "autothrottle"): {READS: 1e6, WRITES: 1e6, QuotaKey.CONTROLLER_MUTATION_RATE: 0.1},
    }
    assert not own_quota_problems(quotas, {}, "k1:9092")
    assert not own_quota_problems(quotas, SASL, "k1:9092")
    unknown_user = {"security_protocol": "SSL"}
    assert not own_quota_problems({ClientQuotaEntity("ANONYMOUS"): {READS: 1.0}}, unknown_user, "k1:9092")
