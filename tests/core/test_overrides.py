"""Which override rules, which are kept when they cannot be read, and which rates can be set."""

import pytest

from autothrottle.core.errors import Invalid
from autothrottle.core.overrides import (
    MAX_RATE,
    Override,
    Overrides,
    validate_broker_id,
    validate_rate,
)

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
