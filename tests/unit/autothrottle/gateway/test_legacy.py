"""The original's text API over real HTTP: every route and every error."""

from __future__ import annotations

import ipaddress
import threading
import time

import pytest

from autothrottle.adapters.grpc import AdminServiceClient
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.gateway.server import GatewayServer
from autothrottle.runtime.configuration_reader import parse
from tests.builders import mb
from tests.unit.autothrottle.gateway.front import Front

NOT_SET = "no throttle override is set\n"
NOT_SPECIFIED = "rate param must be specified\n"
NOT_POSITIVE = "rate param must be >0\n"
TOO_LARGE = "rate param must be <=1000000\n"
NOT_AN_INTEGER = "rate param must be supplied as an integer\n"
NOT_A_BOOL = "autoremove param must be a bool\n"
NOT_A_BROKER = "broker param must be provided as integer or the string 'all'\n"
DISALLOWED = "disallowed method\n"


@pytest.fixture
def front(shared: Front) -> Front:
    """A cluster override of 200 MB/s with autoremove, and 50 MB/s for broker 1001."""
    shared.clear()
    shared.overrides.set_override(None, StoredOverride(mb(200), autoremove=True))
    shared.overrides.set_override(1001, StoredOverride(mb(50)))
    return shared


INITIAL = {None: (mb(200), True), 1001: (mb(50), False)}


@pytest.mark.parametrize(
    ("target", "body"),
    [
        ("/throttle", "a throttle override is configured at 200MB/s, autoremove==true\n"),
        ("/throttle/1001", "broker 1001: a throttle override is configured at 50MB/s, autoremove==false\n"),
        ("/throttle/1002", f"broker 1002: {NOT_SET}"),
    ],
)
def test_get_shows_an_override(front: Front, target: str, body: str) -> None:
    reply = front.ask("GET", target)
    assert (reply.status, reply.text) == (200, body)
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    head = front.ask("HEAD", target)
    assert (head.status, head.text) == (200, "")


def test_get_reports_that_no_override_is_set(front: Front) -> None:
    front.overrides.remove_override(None)
    reply = front.ask("GET", "/throttle")
    assert (reply.status, reply.text) == (200, NOT_SET)


@pytest.mark.parametrize(
    ("target", "shown", "broker_id", "current"),
    [
        ("/throttle?rate=200&autoremove=true", "200MB/s, autoremove==true\n", None, (mb(200), True)),
        ("/throttle?autoremove=false&rate=7", "7MB/s, autoremove==false\n", None, (mb(7), False)),
        ("/throttle?rate=120", "120MB/s, autoremove==false\n", None, (mb(120), False)),
        ("/throttle?rate=5&autoremove=T", "5MB/s, autoremove==true\n", None, (mb(5), True)),
        ("/throttle?rate=1000000", "1000000MB/s, autoremove==false\n", None, (mb(1_000_000), False)),
        ("/throttle/1001?rate=60", "60MB/s, autoremove==false\n", 1001, (mb(60), False)),
        ("/throttle/1002?rate=1&autoremove=1", "1MB/s, autoremove==true\n", 1002, (mb(1), True)),
        ("/throttle/77?rate=50", "50MB/s, autoremove==false\n", 77, (mb(50), False)),
    ],
)
def test_post_sets_an_override(
    front: Front, target: str, shown: str, broker_id: int | None, current: tuple[int, bool]
) -> None:
    prefix = "" if broker_id is None else f"broker {broker_id}: "
    reply = front.ask("POST", target)
    assert (reply.status, reply.text) == (200, f"{prefix}throttle successfully set to {shown}")
    assert front.current() == INITIAL | {broker_id: current}
    stored = front.overrides.read_overrides()
    override = stored.cluster if broker_id is None else stored.brokers[broker_id]
    assert override is not None and override.beyond_capacity  # as with the original


def test_a_warning_goes_to_the_log_and_never_into_the_text(front: Front, caplog: pytest.LogCaptureFixture) -> None:
    """A rate above the capacity limits nothing. The text route keeps the original's answer."""
    reply = front.ask("POST", "/throttle/1001?rate=500")
    assert reply.text == "broker 1001: throttle successfully set to 500MB/s, autoremove==false\n"
    (warning,) = [line for line in caplog.messages if "above the capacity" in line]
    assert warning.startswith("Override of broker 1001 set to 500000000 bytes/s: the override of 500 MB/s is above the")


def test_post_removes_the_cluster_override(front: Front) -> None:
    """The original answers `throttle successfully removed` here, and another text for a broker. Ours were alike."""
    reply = front.ask("POST", "/throttle/remove")
    assert (reply.status, reply.text) == (200, "throttle successfully removed\n")
    assert front.current() == {1001: (mb(50), False)}
    reply = front.ask("POST", "/throttle/remove")
    assert (reply.status, reply.text) == (200, "throttle successfully removed\n")


def test_post_removes_a_broker_override(front: Front) -> None:
    reply = front.ask("POST", "/throttle/remove/1001")
    assert (reply.status, reply.text) == (200, "broker 1001: throttle removed\n")
    assert front.current() == {None: (mb(200), True)}
    reply = front.ask("POST", "/throttle/remove/1001")
    assert (reply.status, reply.text) == (200, "broker 1001: throttle removed\n")


def test_post_removes_all_broker_overrides_and_keeps_the_cluster_override(front: Front) -> None:
    front.overrides.set_override(9, StoredOverride(mb(9)))
    front.overrides.set_override(1004, StoredOverride(mb(9)))
    reply = front.ask("POST", "/throttle/remove/all")
    lines = ["broker 9: throttle removed", "broker 1001: throttle removed", "broker 1004: throttle removed"]
    assert (reply.status, reply.text) == (200, "".join(f"{line}\n" for line in lines))
    assert front.current() == {None: (mb(200), True)}
    reply = front.ask("POST", "/throttle/remove/all")
    assert (reply.status, reply.text) == (200, "")


def test_remove_all_warns_of_unreadable_overrides(front: Front) -> None:
    front.overrides.unreadable[1002] = "no JSON"
    reply = front.ask("POST", "/throttle/remove/all")
    removed, warning = reply.text.splitlines()
    assert removed == "broker 1001: throttle removed"
    assert warning == "warning: the override of broker 1002 cannot be read: no JSON"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("/throttle", NOT_SPECIFIED),
        ("/throttle/1001", NOT_SPECIFIED),
        ("/throttle?autoremove=true", NOT_SPECIFIED),
        ("/throttle?rate=", NOT_SPECIFIED),
        ("/throttle?rate=0", NOT_POSITIVE),
        ("/throttle?rate=-1", NOT_POSITIVE),
        ("/throttle?rate=-0", NOT_POSITIVE),
        ("/throttle/1001?rate=-50", NOT_POSITIVE),
        *(
            (f"/throttle?rate={text}", NOT_AN_INTEGER)
            for text in (
                *("00", "007", "+5", "%2B5", "%205", "5%20", "5%0A", "1.0", "1e3", "0x10", "1_000", "five", "5MB"),
                *("%D9%A5", "--5", "9" * 5000),
            )
        ),
        *((f"/throttle?rate={rate}", TOO_LARGE) for rate in ("1000001", "80000000", "9223372036855")),
        ("/throttle/1001?rate=80000000", TOO_LARGE),
        ("/throttle?rate=50&autoremove=yes", NOT_A_BOOL),
        ("/throttle?rate=50&autoremove=", NOT_A_BOOL),
        ("/throttle/1001?rate=50&autoremove=2", NOT_A_BOOL),
        ("/throttle?rate=50&rate=60", "rate param must be given once\n"),
        ("/throttle?rate=50&rate=50", "rate param must be given once\n"),
        ("/throttle?rate=50&autoremove=true&autoremove=true", "autoremove param must be given once\n"),
        ("/throttle?rate=50&autoremve=true", "autoremve param is unknown; this route takes rate and autoremove\n"),
        ("/throttle/remove?rate=50", "rate param is unknown; this route takes none\n"),
        ("/throttle/abc?rate=50", NOT_A_BROKER),
        ("/throttle/?rate=50", NOT_A_BROKER),
        ("/throttle/01001?rate=50", NOT_A_BROKER),
        ("/throttle/1001.0?rate=50", NOT_A_BROKER),
        ("/throttle/-1?rate=50", "broker param must be >=0 and <=2147483647\n"),
        ("/throttle/2147483648?rate=50", "broker param must be >=0 and <=2147483647\n"),
        ("/throttle/remove/abc", NOT_A_BROKER),
        ("/throttle/remove/", NOT_A_BROKER),
        ("/throttle/remove/ALL", NOT_A_BROKER),
    ],
)
def test_invalid_input_is_400_and_changes_nothing(front: Front, target: str, message: str) -> None:
    reply = front.ask("POST", target)
    assert (reply.status, reply.text) == (400, message)
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    assert front.current() == INITIAL


@pytest.mark.parametrize("target", ["/throttle?rate=50", "/throttle/1001?autoremove=true"])
def test_a_parameter_of_a_route_without_parameters_is_400(front: Front, target: str) -> None:
    reply = front.ask("GET", target)
    assert (reply.status, "param is unknown; this route takes none\n" in reply.text) == (400, True)


@pytest.mark.parametrize("target", ["/throttle/abc", "/throttle/all", "/throttle/"])
def test_a_broker_that_is_not_an_integer_is_400(front: Front, target: str) -> None:
    reply = front.ask("GET", target)
    assert (reply.status, reply.text) == (400, NOT_A_BROKER)


def test_a_query_that_is_not_utf8_is_400(front: Front) -> None:
    assert front.ask("POST", "/throttle?rate=%ff").status == 400
    assert front.ask("POST", f"/throttle?rate=5{'&a=b' * 40}").status == 400
    assert front.current() == INITIAL


@pytest.mark.parametrize(
    ("verb", "target", "allowed"),
    [
        ("PUT", "/throttle?rate=5", "GET, HEAD, POST"),
        ("DELETE", "/throttle/1001", "GET, HEAD, POST"),
        ("PATCH", "/throttle/1001?rate=5", "GET, HEAD, POST"),
        ("OPTIONS", "/throttle", "GET, HEAD, POST"),
        ("BREW", "/throttle", "GET, HEAD, POST"),
        ("GET", "/throttle/remove", "POST"),
        ("GET", "/throttle/remove/1001", "POST"),
        ("HEAD", "/throttle/remove/all", "POST"),
        ("DELETE", "/throttle/remove/1001", "POST"),
    ],
)
def test_a_wrong_method_is_405_and_changes_nothing(front: Front, verb: str, target: str, allowed: str) -> None:
    reply = front.ask(verb, target)
    assert (reply.status, reply.headers["allow"]) == (405, allowed)
    assert reply.text == ("" if verb == "HEAD" else DISALLOWED)
    assert front.current() == INITIAL


@pytest.mark.parametrize("target", ["/throttle/1001/rate", "/throttle/remove/1001/2", "/throttles"])
def test_an_unknown_route_is_404(front: Front, target: str) -> None:
    reply = front.ask("POST", f"{target}?rate=5")
    assert reply.status == 404
    assert "GET /api lists all" in reply.text
    assert front.current() == INITIAL


def test_an_override_in_fractions_of_a_megabyte_is_shown_exactly(front: Front) -> None:
    for rate, shown in ((mb(1) + 1, "1.000001"), (1_500_000, "1.5"), (1, "0.000001"), (mb(30), "30")):
        front.overrides.set_override(None, StoredOverride(rate))
        expected = f"a throttle override is configured at {shown}MB/s, autoremove==false\n"
        assert front.ask("GET", "/throttle").text == expected


def test_an_unavailable_store_is_503_with_a_message(front: Front) -> None:
    front.overrides.unavailable(True)
    reply = front.ask("POST", "/throttle?rate=5")
    assert reply.status == 503
    assert "the overrides cannot be read or written; try again" in reply.text


def test_a_rate_for_all_brokers_is_refused_without_writing_a_node(front: Front) -> None:
    """D16: the original wrote a node named `all` among the broker overrides. After that no cycle could read them."""
    reply = front.ask("POST", "/throttle/all?rate=50")
    assert (reply.status, "'all' goes with POST /throttle/remove/all only" in reply.text) == (400, True)
    assert front.current() == INITIAL
    assert front.ask("POST", "/throttle/remove/all").text == "broker 1001: throttle removed\n"


def test_invalid_requests_that_the_original_answered_with_200_are_4xx(front: Front) -> None:
    """D17: the original answered 200 to every error, and accepted the rates `-5` and `00`."""
    for target in ("/throttle?rate=-5", "/throttle?rate=00", "/throttle", "/throttle/x?rate=5"):
        assert front.ask("POST", target).status == 400
    assert front.current() == INITIAL


def test_the_default_listener_is_reachable_from_this_host_only() -> None:
    """D17: by default requests need no token, so the default address must keep other hosts out."""
    host, _, port = parse([], {}).api_listen.rpartition(":")
    assert port == "8080"
    admin = AdminServiceClient(["127.0.0.1:1"])
    with GatewayServer(admin, f"{host}:0") as server:
        assert ipaddress.ip_address(server.bound_to).is_loopback
    admin.close()


def test_a_post_does_not_wait_for_a_cycle() -> None:
    """D28: the original's POST blocked while its loop slept and retried: 15 s with 60 brokers.

    Here the cluster hangs during the cycle that the first POST started.
    """
    frozen, thaw = threading.Event(), threading.Event()
    with Front() as front:
        cluster = front.services.cluster
        fetch = type(cluster).fetch_snapshot

        def stuck(*args: object, **kwargs: object) -> object:
            frozen.set()
            thaw.wait(60)
            return fetch(cluster, *args, **kwargs)  # type: ignore[arg-type]

        cluster.fetch_snapshot = stuck  # type: ignore[method-assign, assignment]
        try:
            front.services.start_planners()
            assert frozen.wait(60)
            start = time.monotonic()
            assert front.ask("POST", "/throttle?rate=50").status == 200
            assert front.ask("POST", "/v1/cycles").status == 200
            assert time.monotonic() - start < 30, "the cycle hangs for a minute"
            assert not thaw.is_set()
        finally:
            thaw.set()
