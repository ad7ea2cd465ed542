"""The quota of Kafka's most specific level applies, for each key on its own."""

from __future__ import annotations

from itertools import product

import pytest

from autothrottle.core.quotas.keys import DEFAULT, ClientQuotaEntity, QuotaKey, effective_quotas, effective_quotas_of_ip

PRODUCER, CONSUMER = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE

IN_KAFKA_S_ORDER = (
    ClientQuotaEntity("u", "c"),
    ClientQuotaEntity("u", DEFAULT),
    ClientQuotaEntity("u"),
    ClientQuotaEntity(DEFAULT, "c"),
    ClientQuotaEntity(DEFAULT, DEFAULT),
    ClientQuotaEntity(DEFAULT),
    ClientQuotaEntity(client_id="c"),
    ClientQuotaEntity(client_id=DEFAULT),
)
"""Copied from the list in Kafka's documentation (Operations, Client Quotas)."""


@pytest.mark.parametrize("first", range(8))
def test_the_first_level_with_the_key_decides(first: int) -> None:
    other = {ClientQuotaEntity("v", "c"): {PRODUCER: 1}, ClientQuotaEntity("u", "d"): {PRODUCER: 2}}
    for later in product((False, True), repeat=7 - first):
        is_set = (*[False] * first, True, *later)
        quotas = {entity: {PRODUCER: 100 + n} for n, entity in enumerate(IN_KAFKA_S_ORDER) if is_set[n]}
        (quota,) = effective_quotas({**other, **quotas}, "u", "c")
        assert (quota.value, quota.entity, quota.level) == (100 + first, IN_KAFKA_S_ORDER[first], first + 1), is_set
    assert effective_quotas(other, "u", "c") == ()


def test_each_key_is_decided_on_its_own() -> None:
    quotas = {ClientQuotaEntity("u"): {CONSUMER: 5}, ClientQuotaEntity(client_id=DEFAULT): {PRODUCER: 6, CONSUMER: 7}}
    assert [(one.key, one.value, one.level) for one in effective_quotas(quotas, "u", "c")] == [
        (PRODUCER, 6, 8),
        (CONSUMER, 5, 3),
    ]


def test_an_address_beats_the_default_address() -> None:
    key = QuotaKey.CONNECTION_CREATION_RATE
    quotas = {ClientQuotaEntity(ip=DEFAULT): {key: 5}, ClientQuotaEntity(ip="10.0.0.1"): {key: 6}}
    assert [(one.value, one.level) for one in effective_quotas_of_ip(quotas, "10.0.0.1")] == [(6, 1)]
    assert [(one.value, one.level) for one in effective_quotas_of_ip(quotas, "10.0.0.2")] == [(5, 2)]


@pytest.mark.parametrize("name", ["2001:db8::1", "2001:db8:0:0:0:0:0:1", "2001:DB8:0:0::1"])
def test_an_address_may_have_another_form_than_the_entity(name: str) -> None:
    """Kafka compares addresses, and the quota of one form was not found by another one."""
    key = QuotaKey.CONNECTION_CREATION_RATE
    quotas = {ClientQuotaEntity(ip=DEFAULT): {key: 5}, ClientQuotaEntity(ip="2001:db8::1"): {key: 6}}
    assert [(one.value, one.level) for one in effective_quotas_of_ip(quotas, name)] == [(6, 1)]
    assert [(one.value, one.level) for one in effective_quotas_of_ip(quotas, "2001:db8::2")] == [(5, 2)]
    long = {ClientQuotaEntity(ip="2001:db8:0:0:0:0:0:1"): {key: 7}}
    assert [(one.value, one.level) for one in effective_quotas_of_ip(long, name)] == [(7, 1)]


def test_a_user_called_like_the_default_is_a_user() -> None:
    quotas = {ClientQuotaEntity("<default>"): {PRODUCER: 5}}
    assert effective_quotas(quotas, "u", "c") == ()
    assert [one.level for one in effective_quotas(quotas, "<default>", "c")] == [3]
