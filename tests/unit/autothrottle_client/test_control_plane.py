"""The limiter that yields to recoveries, against the services in one process."""

from __future__ import annotations

import logging
import time
from datetime import timedelta

import pytest

from autothrottle_client import AdminClient
from autothrottle_client.control_plane import ControlPlaneRateLimiter
from autothrottle_client.errors import Invalid, Unavailable
from autothrottle_client.pacing import Pacer
from tests.builders import at_once, eventually
from tests.in_process_services import InProcessServices

LOW, HIGH = 2_000_000.0, 20_000_000.0
SHORT = timedelta(seconds=1)


def limits(address: str) -> dict[str, object]:
    return {
        "rate.limiters": "ControlPlaneRateLimiter",
        "control.plane.addresses": address,
        "byte.rate.limit": HIGH,
        "recovering.byte.rate.limit": LOW,
    }


def limiter_of(admin: AdminClient, **configs: object) -> ControlPlaneRateLimiter:
    limiter = ControlPlaneRateLimiter(admin)
    limiter.configure({"byte.rate.limit": HIGH, "recovering.byte.rate.limit": LOW, **configs})
    return limiter


def has_limit(limiter: ControlPlaneRateLimiter, limit: float | None) -> bool:
    limiter.throttle_time()
    return limiter.limit == limit


def start_reassignment(services: InProcessServices) -> None:
    services.cluster.add_topic("orders", {0: (1001, 1002)})
    services.cluster.submit_reassignment("orders", {0: (1001, 1003)})


def test_the_limit_follows_the_start_and_the_end_of_a_recovery(led: InProcessServices) -> None:
    with AdminClient([led.address("admin")]) as admin:
        limiter = limiter_of(admin)
        assert limiter.limit == LOW, "until the first cycle is known"
        with Pacer({}, [limiter]):
            eventually(lambda: has_limit(limiter, HIGH))
            assert limiter.following
            start_reassignment(led)
            eventually(lambda: has_limit(limiter, LOW))
            led.cluster.finish("orders", 0)
            eventually(lambda: has_limit(limiter, HIGH))


def test_a_failed_cycle_keeps_the_limit(led: InProcessServices) -> None:
    """The cycle does not know what is being reassigned; an empty list would look like the end of the recovery."""
    start_reassignment(led)
    with AdminClient([led.address("admin")]) as admin:
        limiter = limiter_of(admin)
        with Pacer({}, [limiter]):
            eventually(lambda: limiter.following)
            planner = led.planners[0]
            eventually(lambda: (found := planner.state().last_cycle) and found.topics)
            led.cluster.incomplete = "a znode is unreadable"
            planner.request_cycle("a test asks")
            eventually(lambda: (found := planner.state().last_cycle) and found.error)
            time.sleep(0.3)
            assert has_limit(limiter, LOW) and limiter.following


def test_an_outage_keeps_the_last_limit_and_is_logged_once(
    led: InProcessServices, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "autothrottle_client.control_plane")
    with AdminClient([led.address("admin")], SHORT) as admin:
        limiter = limiter_of(admin)
        with Pacer({}, [limiter]):
            eventually(lambda: has_limit(limiter, HIGH))
            led.servers["admin"].stop()
            led.servers["planner-1"].stop()
            eventually(lambda: not limiter.following)
            time.sleep(1.5)  # the watch tries again several times
            assert has_limit(limiter, HIGH)
    messages = [one.message for one in caplog.records]
    assert messages[:2] == [
        "No recovery runs: the limit is 20MB/s",
        "Following the leading planner; the limit is 20MB/s",
    ]
    assert len(messages) == 3
    assert messages[2].startswith("The limit is not confirmed: ")
    assert messages[2].endswith("It stays 20MB/s until admin and the planner answer")


def test_without_admin_the_limit_stays_and_the_open_stream_is_still_followed(
    led: InProcessServices, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("autothrottle_client.control_plane._SILENCE", timedelta(seconds=0.2))
    with AdminClient([led.address("admin")], SHORT) as admin:
        limiter = limiter_of(admin)
        with Pacer({}, [limiter]):
            eventually(lambda: has_limit(limiter, HIGH))
            led.servers["admin"].stop()
            eventually(lambda: not limiter.following)
            assert has_limit(limiter, HIGH)
            assert caplog.text.count("It stays 20MB/s until admin and the planner answer") == 1
            start_reassignment(led)
            eventually(lambda: has_limit(limiter, LOW))


def test_after_a_silence_the_confirmed_leader_counts_as_followed(
    led: InProcessServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autothrottle_client.control_plane._SILENCE", timedelta(seconds=0.1))
    with AdminClient([led.address("admin")], SHORT) as admin:
        limiter = limiter_of(admin)
        with Pacer({}, [limiter]):
            eventually(lambda: limiter.following)
            limiter._note_contact(Unavailable("a test says so"))
            at_once(lambda: limiter.following)


def test_without_a_service_at_the_start_the_limit_of_a_recovery_applies(caplog: pytest.LogCaptureFixture) -> None:
    with Pacer(limits("127.0.0.1:1")) as pacer:
        eventually(lambda: "not confirmed" in caplog.text)
        (limiter,) = pacer._limiters._limiters
        assert isinstance(limiter, ControlPlaneRateLimiter)
        assert has_limit(limiter, LOW) and not limiter.following


def test_without_a_limit_otherwise_only_recoveries_are_paced(led: InProcessServices) -> None:
    with AdminClient([led.address("admin")]) as admin:
        limiter = limiter_of(admin, **{"byte.rate.limit": None})
        with Pacer({}, [limiter]):
            eventually(lambda: has_limit(limiter, None))
            start_reassignment(led)
            eventually(lambda: has_limit(limiter, LOW))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"control.plane.addresses": ""}, "control.plane.addresses"),
        ({"control.plane.addresses": None}, "control.plane.addresses is missing"),
        ({"control.plane.addresses": "kafka1"}, "control.plane.addresses: "),
        ({"recovering.byte.rate.limit": None}, "recovering.byte.rate.limit is missing"),
        ({"recovering.byte.rate.limit": "2MB/s"}, "recovering.byte.rate.limit is '2MB/s'"),
        ({"byte.rate.limit": 1_000}, "recovering.byte.rate.limit 2e\\+06 is above byte.rate.limit 1000"),
    ],
)
def test_bad_configuration_is_refused(change: dict[str, object], text: str) -> None:
    with pytest.raises(Invalid, match=text):
        Pacer({**limits("127.0.0.1:1"), **change})
