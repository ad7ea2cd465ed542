"""Shaped links, as far as no root is needed: what is missing for them, and which addresses are free."""

from __future__ import annotations

import ipaddress

import pytest

from autothrottle.core.errors import Invalid, Unavailable
from autothrottle.lab.links import ShapedLinks, free_network, shaping, unmet


def test_root_and_iproute2_are_all_that_is_needed() -> None:
    assert unmet(0, lambda command: f"/sbin/{command}") == ""


def test_without_iproute2_the_package_is_named() -> None:
    assert unmet(0, lambda command: None if command == "tc" else "/sbin/ip") == (
        "Shaped links need tc. Fix on Debian and Ubuntu: apt-get install iproute2."
    )


def test_without_root_the_user_is_told_so() -> None:
    assert unmet(1000, lambda command: f"/sbin/{command}") == (
        "Shaped links need root, and this is user 1000. Fix: run the command with sudo."
    )


@pytest.mark.parametrize("rates", [{}, {1001: 0}, {1001: 20, 1002: -1}])
def test_links_need_brokers_and_rates(rates: dict[int, int]) -> None:
    with pytest.raises(Invalid, match="Fix: 1 to 200 brokers"):
        ShapedLinks(rates)


def test_a_network_touches_none_that_the_machine_knows() -> None:
    chosen = iter([0, 1, 2])
    found = free_network(["10.128.0.0/23", "127.0.0.1", "192.0.2.0/24"], choose=lambda _: next(chosen))
    assert found == ipaddress.IPv4Network("10.128.2.0/24")


def test_where_no_network_is_free_it_is_said() -> None:
    with pytest.raises(Unavailable, match=r"No network of 10\.128\.0\.0/9 is free"):
        free_network(["0.0.0.0/0"])


def test_the_queue_in_front_of_a_link_is_as_long_as_its_rate_makes_it() -> None:
    assert shaping("eth0", 10_000_000)[-1] == str(128 * 1024 + 500_000)
