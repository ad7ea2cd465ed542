"""Values of quotas: their ranges, their text in ZooKeeper, and the etag of an entity."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.errors import Conflict, Invalid
from autothrottle.core.quotas.keys import (
    MAX_EXACT,
    ClientQuotaEntity,
    QuotaKey,
    check_etag,
    edited,
    format_value,
    parse_key,
    parse_value,
    quota_etag,
    validate_edits,
)

ALICE, ADDRESS = ClientQuotaEntity("alice"), ClientQuotaEntity(ip="10.0.0.1")
PRODUCER, CONSUMER, REQUEST = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE, QuotaKey.REQUEST_PERCENTAGE
CONNECTIONS = QuotaKey.CONNECTION_CREATION_RATE


@given(st.sampled_from(QuotaKey), st.integers(1, 2**31 - 1), st.floats(0.001, 1e12))
def test_the_text_of_a_value_leads_back_to_it(key: QuotaKey, integer: int, number: float) -> None:
    value = integer if key.is_integer else number
    assert parse_value(key, format_value(key, value)) == value


@pytest.mark.parametrize("text", ["", "x", "nan", "inf", "1_000", " 1", "1.5", "1e999"])
def test_texts_that_are_no_integer_are_refused(text: str) -> None:
    with pytest.raises(Invalid, match="is not an integer; give it in bytes/s per broker"):
        parse_value(PRODUCER, text)


def test_numbers_of_other_tools_are_understood() -> None:
    assert parse_value(PRODUCER, "1.0E7") == 10_000_000
    assert parse_value(REQUEST, "12.5") == 12.5


@pytest.mark.parametrize("value", [0, -1, 1.5, MAX_EXACT + 2, math.inf, math.nan])
def test_values_that_kafka_refuses_are_refused(value: float) -> None:
    with pytest.raises(Invalid, match=r"outside of 1 to .* bytes/s per broker.*or remove the key"):
        validate_edits(ALICE, {PRODUCER: value})


def test_a_key_of_another_kind_of_entity_is_refused() -> None:
    with pytest.raises(Invalid, match='cannot be set for user "alice"; Kafka knows consumer_byte_rate'):
        validate_edits(ALICE, {CONNECTIONS: 5})
    with pytest.raises(Invalid, match=r'cannot be set for ip "10\.0\.0\.1"; Kafka knows connection_creation_rate'):
        validate_edits(ADDRESS, {PRODUCER: 5})
    assert validate_edits(ADDRESS, {CONNECTIONS: 5}) == {CONNECTIONS: 5}


def test_an_unknown_key_and_no_key_are_refused() -> None:
    with pytest.raises(Invalid, match="'producer_rate' is not a key of client quotas; give one of producer_byte_rate"):
        parse_key("producer_rate")
    with pytest.raises(Invalid, match="no quota is given"):
        validate_edits(ALICE, {})


def test_edits_replace_and_remove_single_keys() -> None:
    assert edited({PRODUCER: 1, CONSUMER: 2}, {PRODUCER: None, REQUEST: 3.0}) == {CONSUMER: 2, REQUEST: 3.0}


def test_an_etag_accepts_only_the_values_that_it_was_given_for() -> None:
    etag = quota_etag({PRODUCER: 1, CONSUMER: 2})
    check_etag(ALICE, etag, {CONSUMER: 2.0, PRODUCER: 1.0})
    check_etag(ALICE, "", {})
    with pytest.raises(Conflict, match=r"have changed since etag .*: now producer_byte_rate=1; read them again"):
        check_etag(ALICE, etag, {PRODUCER: 1})
    with pytest.raises(Invalid, match="etag '5' is invalid"):
        check_etag(ALICE, "5", {})
