"""Which override is in force, how unreadable ones are kept, and which rates are valid."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.cluster.configs import validate_broker_id
from autothrottle.core.errors import Conflict, Invalid
from autothrottle.core.operators.audit import validate_audit_limit
from autothrottle.core.operators.sources import (
    Overrides,
    StoredOverride,
    check_version,
    format_etag,
    parse_etag,
    validate_expire_time,
    validate_rate,
)
from autothrottle.core.traffic.loads import MAX_LINK_RATE
from tests.builders import NOON

CLUSTER, OWN = StoredOverride(200), StoredOverride(50)


def test_broker_override_beats_cluster_override() -> None:
    overrides = Overrides(cluster=CLUSTER, brokers={1: OWN})
    assert overrides.of(1) is OWN
    assert overrides.of(2) is CLUSTER


def test_without_overrides_none_is_in_force() -> None:
    assert Overrides().of(1) is None


def test_override_of_zero_counts_as_removed() -> None:
    overrides = Overrides(cluster=StoredOverride(0), brokers={1: StoredOverride(0), 2: OWN})
    assert overrides.of(1) is None
    assert overrides.active_brokers == {2}


def test_cluster_override_applies_after_the_broker_override_is_removed() -> None:
    assert Overrides(cluster=CLUSTER, brokers={1: StoredOverride(0)}).of(1) is CLUSTER


def test_unreadable_override_keeps_its_last_read_value() -> None:
    """D2: in the original an unreadable override counts as absent: the rate jumps to the measured one."""
    last = Overrides(cluster=CLUSTER, brokers={1: OWN, 2: OWN})
    now = Overrides(brokers={3: OWN}, unreadable={None: "no JSON", 1: "no JSON", 9: "no JSON"})
    kept = now.keeping_unreadable(last)
    assert kept.cluster is CLUSTER
    assert kept.brokers == {1: OWN, 3: OWN}
    assert kept.unreadable == now.unreadable


def test_readable_override_replaces_the_kept_value() -> None:
    """D2: an unreadable override counted as no override."""
    last = Overrides(cluster=CLUSTER, brokers={1: OWN})
    now = Overrides(cluster=StoredOverride(7), unreadable={1: "no JSON"})
    assert now.keeping_unreadable(last).cluster == StoredOverride(7)
    assert Overrides(unreadable={1: "no JSON"}).keeping_unreadable(last).cluster is None


def test_override_may_stay_unreadable_for_many_cycles() -> None:
    """D2: an unreadable override counted as no override."""
    kept = Overrides(brokers={1: OWN})
    for _ in range(3):
        kept = Overrides(unreadable={1: "no JSON"}).keeping_unreadable(kept)
    assert kept.of(1) is OWN


@pytest.mark.parametrize("rate", [1, 10**6, MAX_LINK_RATE])
def test_positive_rate_of_a_link_is_valid(rate: int) -> None:
    assert validate_rate(rate) == rate


@pytest.mark.parametrize("rate", [0, -1, MAX_LINK_RATE + 1])
def test_other_rates_are_refused_with_value_and_range(rate: int) -> None:
    with pytest.raises(Invalid, match=rf"rate {rate} .* outside of 1\.\.{MAX_LINK_RATE}"):
        validate_rate(rate)


def test_broker_id_has_31_bits() -> None:
    assert validate_broker_id(2**31 - 1) == 2**31 - 1
    for broker_id in (-1, 2**31):
        with pytest.raises(Invalid, match=f"broker id {broker_id} "):
            validate_broker_id(broker_id)


# Expiry.

SECOND = timedelta(seconds=1)


def test_override_applies_until_just_before_its_expire_time() -> None:
    ending = StoredOverride(5, expire_time=NOON)
    overrides = Overrides(ending, {1: ending, 2: OWN})
    before, at = NOON - SECOND, NOON
    assert (overrides.acting(before), overrides.expired(before)) == (overrides, {})
    assert overrides.acting(at) == Overrides(None, {2: OWN})
    assert overrides.expired(at) == {None: ending, 1: ending}


def test_unreadable_overrides_are_still_reported_when_others_expire() -> None:
    overrides = Overrides(brokers={1: StoredOverride(5, expire_time=NOON)}, unreadable={2: "no JSON"}, warnings=("x",))
    assert overrides.acting(NOON) == Overrides(unreadable={2: "no JSON"}, warnings=("x",))


def test_next_expiry_is_the_earliest_future_one() -> None:
    over, soon, late = (StoredOverride(5, expire_time=NOON + SECOND * n) for n in (0, 1, 2))
    assert Overrides(late, {1: over, 2: soon, 3: OWN}).next_expiry(NOON) == NOON + SECOND
    assert Overrides(late, {1: over}).next_expiry(NOON) == NOON + 2 * SECOND
    assert Overrides(CLUSTER, {1: over}).next_expiry(NOON) is None


def test_expire_time_must_be_in_the_future() -> None:
    assert validate_expire_time(NOON + SECOND, NOON) == NOON + SECOND
    for time in (NOON, NOON - SECOND):
        with pytest.raises(Invalid, match=r"is not after the present time 20.*; give a later time"):
            validate_expire_time(time, NOON)


# Versions.


@given(st.integers(0, 2**63 - 1))
def test_etag_round_trips_to_its_version(version: int) -> None:
    assert parse_etag(format_etag(version)) == version


@pytest.mark.parametrize("etag", ["0", "00", "FF", "0x1", "-1", " 1", "1\n", "g", "f" * 17, '"1"', "\u0661"])
def test_malformed_etag_is_refused(etag: str) -> None:
    with pytest.raises(Invalid, match="give the etag of a response"):
        parse_etag(etag)


def test_wanted_version_must_be_the_current_one() -> None:
    for wanted, current in ((0, 0), (0, 5), (5, 5)):
        check_version(1, wanted, current)
    with pytest.raises(Conflict, match=r"broker 1 with etag 5 .*: its etag is now 6; read it again"):
        check_version(1, 5, 6)
    with pytest.raises(Conflict, match=r"the cluster with etag 5 .*: it does not exist; read it again"):
        check_version(None, 5, 0)


# Audit records.


def test_audit_limit_defaults_to_100() -> None:
    assert [validate_audit_limit(limit) for limit in (0, 1, 1000)] == [100, 1, 1000]


@pytest.mark.parametrize("limit", [-1, 1001])
def test_audit_limit_out_of_range_is_refused(limit: int) -> None:
    with pytest.raises(Invalid, match=rf"limit {limit} is outside of 1\.\.1000"):
        validate_audit_limit(limit)
