"""Shaped links without root: their requirements, free networks, and arguments of `tc`."""

from __future__ import annotations

import ipaddress

import pytest

from autothrottle.core.errors import Invalid, Unavailable
from tests.benchmarks.links.shaped_links import ShapedLinks, free_network, missing_requirements, shaping


def test_shaped_links_need_only_root_and_iproute2() -> None:
    assert missing_requirements(0, lambda command: f"/sbin/{command}") == ""


def test_error_without_iproute2_names_the_package() -> None:
    assert missing_requirements(0, lambda command: None if command == "tc" else "/sbin/ip") == (
        "Shaped links need tc. Fix on Debian and Ubuntu: apt-get install iproute2."
    )


def test_error_without_root_names_the_user_id() -> None:
    assert missing_requirements(1000, lambda command: f"/sbin/{command}") == (
        "Shaped links need root, and this is user 1000. Fix: run the command with sudo."
    )


@pytest.mark.parametrize("rates", [{}, {1001: 0}, {1001: 20, 1002: -1}])
def test_links_without_brokers_or_positive_rates_are_refused(rates: dict[int, int]) -> None:
    with pytest.raises(Invalid, match="Fix: 1 to 200 brokers"):
        ShapedLinks(rates)


def test_free_network_overlaps_no_known_network() -> None:
    chosen = iter([0, 1, 2])
    found = free_network(["10.128.0.0/23", "127.0.0.1", "192.0.2.0/24"], choose=lambda _: next(chosen))
    assert found == ipaddress.IPv4Network("10.128.2.0/24")


def test_no_free_network_raises_unavailable() -> None:
    with pytest.raises(Unavailable, match=r"No network of 10\.128\.0\.0/9 is free"):
        free_network(["0.0.0.0/0"])


def test_queue_of_a_link_is_proportional_to_its_rate() -> None:
    assert shaping("eth0", 10_000_000)[-1] == str(128 * 1024 + 500_000)
