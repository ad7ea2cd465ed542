"""Who asks, and what of it is believed."""

from __future__ import annotations

import pytest

from autothrottle.wire.callers import caller, forwarded

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


def test_the_client_and_its_trace_go_along() -> None:
    found = forwarded("10.0.0.9:5000", {"traceparent": PARENT, "tracestate": "a=1", "cookie": "secret"})
    assert found == (("forwarded-for", "10.0.0.9:5000"), ("traceparent", PARENT), ("tracestate", "a=1"))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"traceparent": ""},
        {"traceparent": PARENT.upper()},
        {"traceparent": PARENT + "x"},
        {"traceparent": f"{PARENT}\n"},
        {"tracestate": "a=1"},
    ],
)
def test_what_is_no_trace_stays_behind(headers: dict[str, str]) -> None:
    assert forwarded("10.0.0.9:5000", headers) == (("forwarded-for", "10.0.0.9:5000"),)


@pytest.mark.parametrize("state", ["", "a=\u00e4", "a=1\r\nb: 2", "x" * 513])
def test_a_trace_without_a_usable_state_goes_without_it(state: str) -> None:
    assert forwarded("", {"traceparent": PARENT, "tracestate": state}) == (("traceparent", PARENT),)


def test_without_a_gateway_the_peer_is_who_calls() -> None:
    assert caller("ipv4:10.0.0.1:1", []) == "ipv4:10.0.0.1:1"
    assert caller("ipv4:10.0.0.1:1", [("user-agent", "x"), ("forwarded-for-bin", b"x")]) == "ipv4:10.0.0.1:1"


@pytest.mark.parametrize("claimed", ["", "x\nERROR all is lost", "x" * 513, "\x1b[2J"])
def test_a_claim_that_would_spoil_the_log_is_not_told(claimed: str) -> None:
    assert caller("ipv4:10.0.0.1:1", [("forwarded-for", claimed)]) == "ipv4:10.0.0.1:1"


def test_a_name_that_is_no_ascii_is_told_as_ascii() -> None:
    assert forwarded("jürgen at 10.0.0.9:5000", {}) == (("forwarded-for", r"j\xfcrgen at 10.0.0.9:5000"),)
    assert caller("ipv4:10.0.0.1:1", [], {"x509_common_name": ["jürgen".encode()]}) == r"j\xfcrgen at ipv4:10.0.0.1:1"
