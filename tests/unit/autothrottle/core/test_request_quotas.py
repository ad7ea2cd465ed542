"""Request quotas: precedence, and the rate to which callers are held, in virtual time."""

from __future__ import annotations

import heapq
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.errors import Invalid
from autothrottle.core.request_quotas import (
    MAX_REQUEST_QUOTAS,
    SAMPLE_SECONDS,
    SAMPLES,
    RequestQuotaEntity,
    RequestSensor,
    quota_of,
    throttle_time,
    validate_request_quota_entity,
    validate_request_rate,
    with_request_quota,
)

KAFKA_ORDER = (
    RequestQuotaEntity("anna", "ci"),
    RequestQuotaEntity("anna", ""),
    RequestQuotaEntity("anna"),
    RequestQuotaEntity("", "ci"),
    RequestQuotaEntity("", ""),
    RequestQuotaEntity(""),
    RequestQuotaEntity(None, "ci"),
    RequestQuotaEntity(None, ""),
)
"""The order of precedence in KIP-55, which KIP-124 keeps."""

SHARING = (
    *(RequestQuotaEntity("anna", "ci"), RequestQuotaEntity("anna", "ci"), RequestQuotaEntity("anna")),
    *(RequestQuotaEntity("anna", "ci"), RequestQuotaEntity("anna", "ci"), RequestQuotaEntity("anna")),
    *(RequestQuotaEntity(None, "ci"), RequestQuotaEntity(None, "ci")),
)
"""The entity that shares each of these quotas: under a default, each user or client has one of its own."""


@pytest.mark.parametrize("first", range(len(KAFKA_ORDER)))
def test_the_most_specific_quota_applies_in_kafkas_order(first: int) -> None:
    rates = {entity: 100 + number for number, entity in enumerate(KAFKA_ORDER) if number >= first}
    assert quota_of(rates, "anna", "ci") == (SHARING[first], 100 + first)


def test_without_a_matching_quota_a_caller_is_not_limited() -> None:
    assert quota_of({}, "anna", "ci") is None
    others = {RequestQuotaEntity("ben"): 1, RequestQuotaEntity("anna", "ui"): 1, RequestQuotaEntity(None, "ui"): 1}
    assert quota_of(others, "anna", "ci") is None


def test_a_caller_without_a_client_id_has_the_default_of_client_ids() -> None:
    rates = {RequestQuotaEntity(None, ""): 7}
    assert quota_of(rates, "anna", "") == (RequestQuotaEntity(None, ""), 7)


@given(observed=st.floats(0, 1e7), quota=st.floats(1, 1e6), window=st.floats(SAMPLE_SECONDS, SAMPLES))
def test_the_delay_brings_the_observed_rate_down_to_the_quota(observed: float, quota: float, window: float) -> None:
    delay = throttle_time(observed, quota, window)
    assert 0 <= delay <= SAMPLE_SECONDS
    if 0 < delay < SAMPLE_SECONDS:
        assert observed * window / (window + delay) == pytest.approx(quota)
    assert (delay == 0) == (observed <= quota) or delay < 1e-9


def served(quota: int, offered: float, callers: int, seconds: float, seed: int = 1) -> tuple[list[float], list[float]]:
    """Return the times of all responses, and all delays.

    Each caller sends a request when its last one was answered, and by itself `offered / callers` requests per second. A
    refused caller tries again after a second.
    """
    sensor, random_source = RequestSensor(), random.Random(seed)
    due = [(random_source.random() / 10, number) for number in range(callers)]
    heapq.heapify(due)
    answered, delays = [], []
    while due[0][0] < seconds:
        now, caller = heapq.heappop(due)
        delay = sensor.delay(now, quota)
        is_served = delay <= SAMPLE_SECONDS
        if is_served:
            sensor.count(now, delay)
            answered.append(now + delay)
            delays.append(delay)
        pause = callers / offered if is_served else SAMPLE_SECONDS
        heapq.heappush(due, (now + max(pause, delay if is_served else 0), caller))
    return answered, delays


@given(
    quota=st.integers(1, 300),
    factor=st.floats(1.5, 20),
    callers=st.integers(1, 40),
    seed=st.integers(0, 99),
)
def test_a_caller_above_its_quota_is_held_to_it(quota: int, factor: float, callers: int, seed: int) -> None:
    """At most one second's quota above it, whatever the number of requests in progress, and no response is late."""
    answered, delays = served(quota, quota * factor, callers, 30, seed)
    within = sum(time < 30 for time in answered)
    assert within <= quota * 31 + 1
    assert within >= quota * 30 * 0.9 - callers
    assert max(delays) <= SAMPLE_SECONDS
    # Also in every later stretch of 11 s, when samples expire.
    assert sum(15 <= time < 26 for time in answered) <= quota * 12.1 + 1


@given(quota=st.integers(2, 300), callers=st.integers(1, 5), seed=st.integers(0, 99))
def test_a_caller_below_its_quota_is_never_delayed(quota: int, callers: int, seed: int) -> None:
    callers = min(callers, quota // 2)
    _, delays = served(quota, quota * 0.45, callers, 30, seed)
    assert max(delays) == 0


def test_a_sensor_forgets_after_eleven_samples() -> None:
    """Otherwise memory would grow with the client ids that ever called."""
    sensor = RequestSensor()
    sensor.count(100.5, sensor.delay(100.5, 10))
    assert sensor.rate(100.5) == 1 and not sensor.is_idle(110.9)
    assert sensor.is_idle(111) and sensor.rate(111) == 0


def test_a_lowered_quota_delays_each_response_by_one_sample_at_most() -> None:
    sensor = RequestSensor()
    for number in range(1000):
        now = 100 + number / 100
        sensor.count(now, sensor.delay(now, 1000))
    assert sensor.delay(110, 1) == SAMPLE_SECONDS
    assert sensor.average_delay(110) == 0


@pytest.mark.parametrize("rate", [0, -1, 1_000_001])
def test_a_rate_out_of_range_is_refused(rate: int) -> None:
    with pytest.raises(Invalid, match=rf"request rate {rate} is outside of 1\.\.1000000 requests per second; give"):
        validate_request_rate(rate)


@pytest.mark.parametrize(
    ("entity", "reason"),
    [
        (RequestQuotaEntity(), "needs a user, a client id or both"),
        (RequestQuotaEntity("a" * 256), "has 256 characters; give at most 255"),
        (RequestQuotaEntity("a\nb"), "printable"),
        (RequestQuotaEntity(None, "ö"), "client id 'ö' is not valid; give 1 to 128"),
    ],
)
def test_an_invalid_entity_is_refused(entity: RequestQuotaEntity, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        validate_request_quota_entity(entity)


def test_the_number_of_quotas_is_bounded() -> None:
    rates = {RequestQuotaEntity(f"user-{number}"): 1 for number in range(MAX_REQUEST_QUOTAS)}
    assert with_request_quota(rates, RequestQuotaEntity("user-0"), 2)[RequestQuotaEntity("user-0")] == 2
    with pytest.raises(Invalid, match="1000 request quotas are set, which is the limit; remove one"):
        with_request_quota(rates, RequestQuotaEntity("one more"), 1)
