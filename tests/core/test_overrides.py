"""Which override rules, which are kept when they cannot be read, and which rates can be set."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.audit import validate_audit_limit
from autothrottle.core.errors import Conflict, Invalid
from autothrottle.core.overrides import (
    MAX_RATE,
    Override,
    Overrides,
    demand_version,
    format_etag,
    parse_etag,
    validate_broker_id,
    validate_expire_time,
    validate_rate,
)
from tests.builders import NOON

CLUSTER, OWN = Override(200), Override(50)


def test_a_brokers_own_override_beats_the_clusters() -> None:
    overrides = Overrides(cluster=CLUSTER, brokers={1: OWN})
    assert overrides.of(1) is OWN
    assert overrides.of(2) is CLUSTER


def test_without_overrides_nobody_rules() -> None:
    assert Overrides().of(1) is None


def test_a_rate_of_zero_is_removed_and_rules_nobody() -> None:
    overrides = Overrides(cluster=Override(0), brokers={1: Override(0), 2: OWN})
    assert overrides.of(1) is None
    assert overrides.active_brokers == {2}


def test_the_clusters_override_rules_where_a_brokers_own_is_removed() -> None:
    assert Overrides(cluster=CLUSTER, brokers={1: Override(0)}).of(1) is CLUSTER


# D2. In the original an override that cannot be read counts as none: the rate jumps to the measured one.
def test_d2_an_unreadable_override_stays_as_it_was_last_read() -> None:
    last = Overrides(cluster=CLUSTER, brokers={1: OWN, 2: OWN})
    now = Overrides(brokers={3: OWN}, unreadable={None: "no JSON", 1: "no JSON", 9: "no JSON"})
    kept = now.keeping_unreadable(last)
    assert kept.cluster is CLUSTER
    assert kept.brokers == {1: OWN, 3: OWN}
    assert kept.unreadable == now.unreadable


def test_d2_what_can_be_read_is_newer_than_what_was_kept() -> None:
    last = Overrides(cluster=CLUSTER, brokers={1: OWN})
    now = Overrides(cluster=Override(7), unreadable={1: "no JSON"})
    assert now.keeping_unreadable(last).cluster == Override(7)
    assert Overrides(unreadable={1: "no JSON"}).keeping_unreadable(last).cluster is None


def test_d2_an_override_stays_unreadable_for_many_cycles() -> None:
    kept = Overrides(brokers={1: OWN})
    for _ in range(3):
        kept = Overrides(unreadable={1: "no JSON"}).keeping_unreadable(kept)
    assert kept.of(1) is OWN


@pytest.mark.parametrize("rate", [1, 10**6, MAX_RATE])
def test_a_positive_rate_that_kafka_can_hold_is_valid(rate: int) -> None:
    assert validate_rate(rate) == rate


@pytest.mark.parametrize("rate", [0, -1, MAX_RATE + 1])
def test_any_other_rate_is_refused_by_value_and_range(rate: int) -> None:
    with pytest.raises(Invalid, match=rf"rate {rate} .* outside of 1\.\.{MAX_RATE}"):
        validate_rate(rate)


def test_a_broker_id_has_31_bits() -> None:
    assert validate_broker_id(2**31 - 1) == 2**31 - 1
    for broker_id in (-1, 2**31):
        with pytest.raises(Invalid, match=f"broker id {broker_id} "):
            validate_broker_id(broker_id)


# The end of an override.

SECOND = timedelta(seconds=1)


def test_an_override_acts_until_its_time_comes_and_not_at_it() -> None:
    ending = Override(5, expire_time=NOON)
    overrides = Overrides(ending, {1: ending, 2: OWN})
    before, at = NOON - SECOND, NOON
    assert (overrides.acting(before), overrides.expired(before)) == (overrides, {})
    assert overrides.acting(at) == Overrides(None, {2: OWN})
    assert overrides.expired(at) == {None: ending, 1: ending}


def test_what_cannot_be_read_is_told_also_when_others_have_ended() -> None:
    overrides = Overrides(brokers={1: Override(5, expire_time=NOON)}, unreadable={2: "no JSON"}, warnings=("x",))
    assert overrides.acting(NOON) == Overrides(unreadable={2: "no JSON"}, warnings=("x",))


def test_the_next_end_is_the_first_of_those_to_come() -> None:
    over, soon, late = (Override(5, expire_time=NOON + SECOND * n) for n in (0, 1, 2))
    assert Overrides(late, {1: over, 2: soon, 3: OWN}).next_expiry(NOON) == NOON + SECOND
    assert Overrides(late, {1: over}).next_expiry(NOON) == NOON + 2 * SECOND
    assert Overrides(CLUSTER, {1: over}).next_expiry(NOON) is None


def test_an_override_can_only_end_later_than_now() -> None:
    assert validate_expire_time(NOON + SECOND, NOON) == NOON + SECOND
    for time in (NOON, NOON - SECOND):
        with pytest.raises(Invalid, match=r"is not after 20.*; give a later time"):
            validate_expire_time(time, NOON)


# Versions.


@given(st.integers(0, 2**63 - 1))
def test_an_etag_names_the_version_that_it_was_made_of(version: int) -> None:
    assert parse_etag(format_etag(version)) == version


@pytest.mark.parametrize("etag", ["0", "00", "FF", "0x1", "-1", " 1", "1\n", "g", "f" * 17, '"1"', "\u0661"])
def test_what_is_no_etag_is_refused(etag: str) -> None:
    with pytest.raises(Invalid, match="give the etag of an answer as it is"):
        parse_etag(etag)


def test_a_version_must_stand_when_one_is_demanded() -> None:
    for wanted, standing in ((0, 0), (0, 5), (5, 5)):
        demand_version(1, wanted, standing)
    with pytest.raises(Conflict, match=r"broker 1 with etag 5 .*: the one with etag 6 stands; read it again"):
        demand_version(1, 5, 6)
    with pytest.raises(Conflict, match=r"the cluster with etag 5 .*: none stands; read it again"):
        demand_version(None, 5, 0)


# The record of changes.


def test_a_hundred_records_are_shown_to_who_does_not_say_how_many() -> None:
    assert [validate_audit_limit(limit) for limit in (0, 1, 1000)] == [100, 1, 1000]


@pytest.mark.parametrize("limit", [-1, 1001])
def test_a_number_of_records_out_of_range_is_refused(limit: int) -> None:
    with pytest.raises(Invalid, match=rf"limit {limit} is outside of 1\.\.1000"):
        validate_audit_limit(limit)
