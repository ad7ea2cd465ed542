"""The Datadog emulator: its means, routes and faults."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.adapters.datadog import DatadogMetrics, DatadogSettings
from autothrottle.core.traffic.capacity import CapacityLimits
from autothrottle.core.traffic.loads import Capacity
from autothrottle_lab.emulators.datadog import (
    API_KEY,
    APP_KEY,
    MIN_COVERED_SECONDS,
    RETRY_AFTER_SECONDS,
    CumulativeCounters,
    DatadogEmulator,
    Late,
)
from tests.builders import at_once

KEYS = {"DD-API-KEY": API_KEY, "DD-APPLICATION-KEY": APP_KEY}
TX = "avg:system.net.bytes_sent{service:kafka} by {host}"
RX = "avg:system.net.bytes_rcvd{service:kafka} by {host}"


@pytest.fixture
def emulator() -> Iterator[DatadogEmulator]:
    threads = set(threading.enumerate())
    with DatadogEmulator() as opened:
        yield opened
    assert set(threading.enumerate()) <= threads, "the emulator left threads running"


def get(emulator: DatadogEmulator, path: str, headers: dict[str, str] = KEYS) -> tuple[int, Any]:
    try:
        with urlopen(Request(emulator.url + path, headers=headers), timeout=60) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


def points(emulator: DatadogEmulator, query: str, rollup: int, start: float, end: float) -> list[list[float]]:
    (series,) = emulator.series(query, rollup, start, end)
    found: list[list[float]] = series["pointlist"]
    return found


# Means


# A counter is a polyline through its samples. So its mean over any time range is the difference of its values at both
# ends, divided by the length of the range.
@given(
    st.lists(st.tuples(st.floats(0.2, 5), st.floats(0, 1e9)), min_size=1, max_size=30),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_interpolated_mean_equals_the_true_mean(steps: list[tuple[float, float]], one: float, other: float) -> None:
    counters = CumulativeCounters(keep_seconds=1e9)
    at, total = 0.0, 0.0
    counters.add(at, total, 2 * total)
    segments = []
    for seconds, rate in steps:
        segments.append((at, at + seconds, rate))
        at, total = at + seconds, total + seconds * rate
        counters.add(at, total, 2 * total)
    start, end = sorted((one * at, other * at))
    true_bytes = sum(rate * max(0.0, min(b, end) - max(a, start)) for a, b, rate in segments)
    mean = counters.mean(0, start, end)
    if end - start < MIN_COVERED_SECONDS:
        assert mean is None
    else:
        assert mean == pytest.approx(true_bytes / (end - start), rel=1e-6, abs=1e-3)
        assert counters.mean(1, start, end) == pytest.approx(2 * true_bytes / (end - start), rel=1e-6, abs=1e-3)


def test_buckets_are_aligned_to_multiples_of_the_rollup(emulator: DatadogEmulator) -> None:
    emulator.add_host("h1", 1)
    for t in range(1_000, 1_100):
        emulator.record(1, t, t * 10.0, t * 20.0)
    assert points(emulator, TX, 30, 1_005, 1_065) == [
        [990_000.0, pytest.approx(10)],
        [1_020_000.0, pytest.approx(10)],
        [1_050_000.0, pytest.approx(10)],
    ]
    assert points(emulator, RX, 30, 1_020, 1_050) == [[1_020_000.0, pytest.approx(20)]]


# 10 bytes/s until 1,010, then 100: if a query covers the last 5 s of a bucket, the point is the mean of these 5 s.
def test_bucket_is_the_mean_over_the_time_that_query_and_samples_cover(
    emulator: DatadogEmulator,
) -> None:
    emulator.add_host("h1", 1)
    for at, total in ((1_000, 0), (1_010, 100), (1_022, 1_300)):
        emulator.record(1, at, total, total)
    assert points(emulator, TX, 20, 1_015, 1_035) == [
        [1_000_000.0, pytest.approx(100)],
        [1_020_000.0, pytest.approx(100)],
    ]
    assert points(emulator, TX, 20, 1_000, 1_020) == [[1_000_000.0, pytest.approx(55)]]


def test_bucket_with_too_little_data_is_omitted(emulator: DatadogEmulator) -> None:
    emulator.add_host("h1", 1)
    emulator.record(1, 1_000, 0, 0)
    emulator.record(1, 1_002.2, 220, 220)
    assert [stamp for stamp, _ in points(emulator, TX, 3, 999, 1_005)] == [999_000.0]
    emulator.record(1, 1_002.5, 250, 250)
    assert len(points(emulator, TX, 3, 1_000, 1_005)) == 2


def test_host_without_samples_has_no_series(emulator: DatadogEmulator) -> None:
    emulator.add_host("h1", 1)
    assert emulator.series(TX, 10, 0, 100) == []
    emulator.record(1, 50, 0, 0)
    assert emulator.series(TX, 10, 0, 100) == []


def test_old_samples_are_dropped_without_changing_the_means() -> None:
    counters = CumulativeCounters(keep_seconds=60)
    for t in range(100_000):
        counters.add(t * 0.2, t * 2.0, t * 4.0)
    assert len(counters._times) < 60 / 0.2 + 100
    newest = 99_999 * 0.2
    assert counters.mean(0, newest - 60, newest) == pytest.approx(10)


# Routes


def test_query_route_responds_in_datadogs_format(emulator: DatadogEmulator) -> None:
    emulator.add_host("h1", 1)
    for t in range(0, 120, 10):
        emulator.record(1, t, t * 5.0, 0)
    path = f"/api/v1/query?from=0&to=100&query={TX}.rollup(avg,%2050)".replace(" ", "%20")
    status, body = get(emulator, path.replace("{", "%7B").replace("}", "%7D"))
    assert status == 200 and body["status"] == "ok"
    (series,) = body["series"]
    assert series["scope"] == "host:h1,service:kafka"
    assert series["interval"] == 50
    assert series["pointlist"] == [[0.0, 5.0], [50_000.0, 5.0]]


@pytest.mark.parametrize(
    "query",
    [
        *("", "?from=0&to=100", "?from=0&to=100&query=a"),
        *("?from=x&to=1&query=a.rollup(avg,%201)", "?from=0&to=100&query=a.rollup(avg,%200)"),
    ],
)
def test_query_without_rollup_or_time_range_is_refused(emulator: DatadogEmulator, query: str) -> None:
    assert get(emulator, f"/api/v1/query{query}")[0] == 400


def test_tags_are_available_by_host(emulator: DatadogEmulator) -> None:
    emulator.add_host("h2", 2, "d2.xlarge")
    assert get(emulator, "/api/v1/tags/hosts/h2") == (
        200,
        {"host": "h2", "tags": ["broker_id:2", "instance-type:d2.xlarge"]},
    )
    assert get(emulator, "/api/v1/tags/hosts/h3")[0] == 404


@pytest.mark.parametrize(
    ("host", "scopes"),
    [
        ({"broker_id": 1}, ["host:h,broker_id:1,env:N/A"]),
        ({"broker_id": 1, "extra_tags": ["env:a", "env:b"]}, ["host:h,broker_id:1,env:a", "host:h,broker_id:1,env:b"]),
        ({"broker_id": 1, "has_tagged_series": False}, ["host:h,broker_id:N/A,env:N/A"]),
    ],
)
def test_series_carry_the_tags_that_the_query_groups_by(
    emulator: DatadogEmulator, host: dict[str, Any], scopes: list[str]
) -> None:
    emulator.add_host("h", **host)
    for at in (0, 100):
        emulator.record(1, at, at, at)
    series = emulator.series("avg:system.net.bytes_sent{*} by {host,broker_id,env}", 100, 0, 100)
    assert [one["scope"] for one in series] == scopes


def test_requests_beyond_the_rate_limit_are_refused_with_headers(emulator: DatadogEmulator) -> None:
    emulator.limit_rate(1, reset_seconds=30, path="/api/v1/validate")
    path = "/api/v1/validate"
    assert [get(emulator, path)[0], get(emulator, path)[0], get(emulator, "/api/v1/query")[0]] == [200, 429, 400]
    emulator.heal()
    assert get(emulator, path)[0] == 200


def test_keys_are_required_in_headers(emulator: DatadogEmulator) -> None:
    path = "/api/v1/tags/hosts/h1"
    assert get(emulator, path, {})[0] == 401
    assert get(emulator, path, {"DD-API-KEY": API_KEY})[0] == 401
    assert get(emulator, path, {**KEYS, "DD-API-KEY": "wrong"})[0] == 403
    assert get(emulator, path, {**KEYS, "DD-APPLICATION-KEY": "wrong"})[0] == 403
    assert get(emulator, "/api/v1/validate", {"DD-API-KEY": API_KEY}) == (200, {"valid": True})
    assert get(emulator, f"/api/v1/validate?api_key={API_KEY}")[0] == 400


def test_unknown_route_is_not_found(emulator: DatadogEmulator) -> None:
    assert get(emulator, "/api/v2/query")[0] == 404


def test_event_without_title_is_refused(emulator: DatadogEmulator) -> None:
    for body in (b"{", b"[]", b'{"text": "x"}'):
        with pytest.raises(HTTPError) as raised:
            urlopen(Request(f"{emulator.url}/api/v1/events", body, KEYS), timeout=10)
        with raised.value as answer:
            assert answer.code == 400
    assert emulator.events == []


# Faults


def test_fault_ends_after_its_count_or_when_healed(emulator: DatadogEmulator) -> None:
    emulator.fail(503, times=2)
    assert [get(emulator, "/api/v1/validate")[0] for _ in range(3)] == [503, 503, 200]
    emulator.fail(500, path="/api/v1/tags")
    assert [get(emulator, path)[0] for path in ("/api/v1/validate", "/api/v1/tags/hosts/h")] == [200, 500]
    emulator.heal()
    assert get(emulator, "/api/v1/tags/hosts/h")[0] == 404


def test_hanging_server_can_be_closed() -> None:
    with DatadogEmulator() as emulator:
        emulator.fail("hang")
        with pytest.raises(TimeoutError):
            urlopen(Request(f"{emulator.url}/api/v1/validate", headers=KEYS), timeout=0.2)
        began = time.monotonic()
    assert time.monotonic() - began < 30


def test_requests_are_recorded_without_keys(emulator: DatadogEmulator) -> None:
    get(emulator, "/api/v1/query?from=1&to=2&query=x")
    (request,) = emulator.requests
    assert (request.method, request.path) == ("GET", "/api/v1/query")
    assert request.query == {"from": "1", "to": "2", "query": "x"}
    assert API_KEY not in repr(request) and APP_KEY not in repr(request)


# The adapter in real time


# A window of 3 s and samples every 0.2 s. However the query aligns with the buckets, the measurement covers at least
# half a window and is recent.
def test_adapter_reads_a_short_window_at_any_time(emulator: DatadogEmulator) -> None:
    emulator.add_host("h1", 1)
    for tick in range(200):
        emulator.record(1, 1_000 + tick * 0.2, tick * 0.2 * 10_000_000, 0)
    limits = CapacityLimits(default=Capacity(1, 1))
    now = [1_010.0]
    emulator.clock = lambda: now[0]
    settings = DatadogSettings(url=emulator.url, api_key=API_KEY, app_key=APP_KEY, metrics_window=timedelta(seconds=3))
    with closing(DatadogMetrics(settings, limits, clock=lambda: now[0])) as metrics:
        for tenths in range(0, 60, 3):
            now[0] = 1_010 + tenths / 10
            loads = metrics.fetch_loads(timedelta(seconds=10))
            utilization = loads.brokers[1].outbound
            assert utilization.rate == pytest.approx(10_000_000, rel=1e-6)
            assert utilization.end - utilization.start >= timedelta(seconds=1.5)
            assert now[0] - utilization.end.timestamp() <= 2.5


def test_late_response_is_correct_and_arrives_at_once_after_heal(emulator: DatadogEmulator) -> None:
    emulator.fail(Late(600), path="/api/v1/validate")
    answers: list[tuple[int, Any]] = []
    request = threading.Thread(target=lambda: answers.append(get(emulator, "/api/v1/validate")))
    request.start()
    while not emulator.requests:
        time.sleep(0.01)
    emulator.heal()
    at_once(lambda: answers)
    request.join(60)
    assert answers == [(200, {"valid": True})]


def test_status_429_has_a_retry_after_header(emulator: DatadogEmulator) -> None:
    emulator.fail(429)
    with pytest.raises(HTTPError) as refused:
        urlopen(Request(f"{emulator.url}/api/v1/validate", headers=KEYS), timeout=60)
    with refused.value as error:
        assert (error.code, error.headers["Retry-After"]) == (429, str(RETRY_AFTER_SECONDS))
