"""The utilization that samples show, with its exact interval."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.errors import Invalid, Missing
from autothrottle.core.traffic.counters import Series, SeriesKind, SeriesName, utilization
from autothrottle.core.traffic.loads import Utilization

NOW = 1_800_000_000.0


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(NOW + seconds, UTC)


def counter(*samples: tuple[float, float]) -> Series:
    """Return a counter with (seconds from now, bytes)."""
    return Series({}, [(NOW + seconds, value) for seconds, value in samples])


def test_rate_covers_the_interval_from_the_first_to_the_last_sample() -> None:
    assert utilization([counter((-35, 1_000), (-20, 4_000), (-5, 7_000))], NOW) == Utilization(200, at(-35), at(-5))


def test_devices_are_summed_up() -> None:
    devices = [counter((-30, 0), (-10, 2_000)), counter((-30, 500), (-10, 4_500))]
    assert utilization(devices, NOW) == Utilization(300, at(-30), at(-10))


def test_samples_before_a_reset_of_the_counter_do_not_count() -> None:
    assert utilization([counter((-40, 9_000), (-30, 9_900), (-20, 100), (-10, 600))], NOW) == Utilization(
        50, at(-20), at(-10)
    )
    with pytest.raises(Missing, match="a counter that was reset, and one sample; a rate needs two"):
        utilization([counter((-20, 9_000), (-10, 100))], NOW)


def test_one_sample_gives_no_rate() -> None:
    with pytest.raises(Missing, match="has one sample; a rate needs two"):
        utilization([counter((-10, 9_000))], NOW)


def test_gauge_covers_the_seconds_before_its_newest_sample() -> None:
    gauge = Series({}, [(NOW - 25, 7.0), (NOW - 10, 12.4)], mean_seconds=60.0)
    assert utilization([gauge], NOW) == Utilization(12, at(-70), at(-10))


@pytest.mark.parametrize("value", [math.nan, -1.0, math.inf, 2.0**64])
def test_sample_that_is_not_a_number_of_bytes_is_invalid(value: float) -> None:
    with pytest.raises(Invalid, match=re.escape(f"has a sample of {value} bytes; it must be >= 0")):
        utilization([counter((-10, 1), (-5, value))], NOW)


@pytest.mark.parametrize("stamp", [math.nan, math.inf, -math.inf, -1.0, 1e18])
def test_sample_without_a_usable_time_is_invalid(stamp: float) -> None:
    """A NaN passed the check of the age. Its conversion to a date then failed, and no broker had a load."""
    for samples in ([(NOW - 5, 1.0), (stamp, 2.0)], [(stamp, 1.0), (NOW - 5, 2.0)]):
        with pytest.raises(Invalid, match=r"has a sample stamped .*; a time is in seconds since 1970"):
            utilization([Series({}, samples)], NOW)


def test_more_than_a_link_carries_is_invalid() -> None:
    """Several devices of 9e18 bytes/s, or a counter that wraps too fast, gave a rate that no message can hold."""
    gauge = Series({}, [(NOW, 9e18)], mean_seconds=60.0)
    with pytest.raises(Invalid, match=r"has a rate of 1.8e\+19 bytes/s; a link carries 0 to 1e\+12"):
        utilization([gauge, gauge], NOW)
    with pytest.raises(Invalid, match="has a rate of "):
        utilization([counter((-10, 0), (-9, 9e18))], NOW)


def test_samples_a_millisecond_apart_give_no_rate() -> None:
    with pytest.raises(Missing, match=r"has samples 0\.001. s apart; a rate needs 0\.1 s"):
        utilization([counter((-5, 0), (-4.999, 9e15))], NOW)


def test_series_without_a_fresh_sample_is_missing() -> None:
    """A target that has stopped keeps its old samples. At 15 s between samples, three missed ones are too many."""
    samples = [(-90 + 15 * n, n * 1_000.0) for n in range(4)]
    assert utilization([counter(*samples)], NOW)  # 45 s ago
    late = NOW + 1
    with pytest.raises(Missing, match=r"the newest is stamped 46 s ago, and 45 s are allowed.*its clock is right"):
        utilization([counter(*samples)], late)
    slow = [counter((-150, 0), (-90, 60), (-45, 105))]
    assert utilization(slow, NOW).rate == 1


@pytest.mark.parametrize(("off", "reason"), [(60, "59 s in the future"), (-60, "stamped 6. s ago")])
def test_clock_off_by_a_minute_is_named(off: float, reason: str) -> None:
    with pytest.raises(Missing, match=rf"{reason}.*clock"):
        utilization([counter((-6 + off, 0), (-1 + off, 100))], NOW)


def test_stale_device_beside_a_fresh_one_does_not_count() -> None:
    assert utilization([counter((-300, 0), (-290, 9_000)), counter((-20, 0), (-10, 100))], NOW).rate == 10


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=20), st.integers(1, 8))
def test_rate_is_the_growth_over_the_time(growths: list[int], spacing: int) -> None:
    total, samples = 0, []
    for n, growth in enumerate(growths):
        total += growth
        samples.append((spacing * (n + 1 - len(growths)), float(total)))
    found = utilization([counter(*samples)], NOW)
    seconds = spacing * (len(growths) - 1)
    assert found == Utilization(round((total - growths[0]) / seconds), at(-seconds), at(0))


@pytest.mark.parametrize(
    ("metric", "mean_seconds"),
    [
        ("kafka_server_BrokerTopicMetrics_OneMinuteRate", 60),
        ("kafka_server_brokertopicmetrics_bytesinpersec_oneminuterate", 60),
        ("kafka_server_BrokerTopicMetrics_BytesInPerSec_FiveMinuteRate", 300),
        ("bytesin_fifteenminuterate", 900),
        ("kafka_bytesin_1m_rate", 60),
        ("instance:kafka_bytes_in:rate5m", 300),
        ("kafka_bytes_in_per_sec", 60),
        ("kafka_server_outgoing_byte_rate", 60),
        ("kafka_server_brokertopicmetrics_total_bytesinpersec_count", None),
        ("kafka_server_brokertopicmetrics_bytesinpersec_total", None),
        ("kafka_server_BrokerTopicMetrics_BytesInPerSec_Count", None),
        ("bytes_rate_total", None),
        ("net_bytes_sent", None),
        ("node_network_transmit_bytes", None),
    ],
)
def test_name_says_whether_a_series_is_a_counter_or_a_rate(metric: str, mean_seconds: float | None) -> None:
    assert SeriesName(metric).of_kind(None).mean_seconds == mean_seconds


@pytest.mark.parametrize("metric", ["kafka_server_brokertopicmetrics_bytesinpersec", "kafka_BytesInPerSec", "migrate"])
def test_name_of_an_mbean_alone_does_not_say_what_its_series_are(metric: str) -> None:
    """Rules of JMX exporters give this name to the Count of the MBean BytesInPerSec as well as to its rates."""
    with pytest.raises(Invalid, match="its name does not say which"):
        SeriesName(metric).of_kind(None)
    assert SeriesName(metric).of_kind(SeriesKind.RATE).mean_seconds == 60
    assert SeriesName(metric).of_kind(SeriesKind.COUNTER).mean_seconds is None


def test_label_with_the_attribute_says_what_a_series_is() -> None:
    assert SeriesName("jmx", {"attribute": "OneMinuteRate", "topic": "page_count"}).of_kind(None).mean_seconds == 60
    assert SeriesName("jmx", {"attribute": "Count"}).of_kind(None).mean_seconds is None
    assert SeriesName("jmx_count", {"name": "bytes_in_per_sec"}).of_kind(None).mean_seconds is None
    by_mbean = SeriesName("kafka_bytes_in_per_sec", {"attribute": "Count"})
    assert by_mbean.of_kind(None).mean_seconds is None, "a counter was read as a rate of 10^12 bytes/s"
    with pytest.raises(Invalid):
        SeriesName("jmx", {"topic": "page_count"}).of_kind(None)
