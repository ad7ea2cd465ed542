"""The probes of the HTTP API, /healthz and /readyz, and /metrics."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime

import pytest

from autothrottle.adapters.credentials import Tokens
from autothrottle.gateway.server import GatewayServer
from autothrottle.runtime.access import Access
from autothrottle.runtime.health import Health, Scope
from tests.builders import eventually
from tests.unit.autothrottle.gateway.front import Front

PROBLEMS = {"loop": "", "state store": ""}


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    file = tmp_path_factory.mktemp("tokens") / "tokens"
    file.write_text(f"anna {'a' * 32}\n")
    with (
        closing(Health(period_seconds=0.01)) as health,
        Front(access=Access(tokens=Tokens(str(file))), health=health) as front,
    ):
        health.add("loop", lambda: PROBLEMS["loop"], Scope.LIVENESS)
        health.add("state store", lambda: PROBLEMS["state store"])
        health.start()
        yield front


@pytest.mark.parametrize(
    ("path", "name", "other"), [("/healthz", "loop", "/readyz"), ("/readyz", "state store", "/healthz")]
)
def test_probe_fails_with_its_checks_and_needs_no_token(
    front: Front, path: str, name: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    eventually(lambda: front.ask("GET", path).status == 200)
    assert front.ask("GET", path).json["ok"] is True
    monkeypatch.setitem(PROBLEMS, name, "frozen")
    eventually(lambda: front.ask("GET", path).status == 503)
    reply = front.ask("GET", path, headers={"origin": "http://elsewhere"}).json
    assert reply["ok"] is False
    (check,) = [check for check in reply["checks"] if check["name"] == name]
    assert (check["ok"], check["message"]) == (False, "frozen")
    assert datetime.fromisoformat(check["since"]).tzinfo is not None
    assert front.ask("GET", other).status == 200


def test_only_callers_with_a_role_see_addresses_in_probes(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every caller could read the addresses of ZooKeeper from a failing probe."""
    problem = "ZooKeeper (zk1:2181,[2001:db8::1]:2181,10.0.0.7:2181,zk.internal.example) has not answered for 7 s"
    monkeypatch.setitem(PROBLEMS, "state store", problem)
    eventually(lambda: "for 7 s" in front.ask("GET", "/readyz").text)
    known = {"authorization": f"Bearer {'a' * 32}"}
    for headers, shown in (
        ({}, "ZooKeeper (...,...,...,...) has not answered for 7 s"),
        ({"authorization": f"Bearer {'b' * 32}"}, "ZooKeeper (...,...,...,...) has not answered for 7 s"),
        (known, problem),
    ):
        (check,) = [c for c in front.ask("GET", "/readyz", headers=headers).json["checks"] if not c["ok"]]
        assert check["message"] == shown


def test_probes_are_read_only_and_outside_the_api(front: Front) -> None:
    assert front.ask("HEAD", "/healthz").text == ""
    assert front.ask("POST", "/healthz").status == 405
    assert "healthz" not in front.ask("GET", "/openapi.json").text


def test_metrics_on_loopback_need_no_token(front: Front) -> None:
    reply = front.ask("GET", "/metrics")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert 'autothrottle_build_info{cluster="kafka",service="gateway",version="1.2"} 1.0' in reply.text
    assert front.ask("GET", "/metrics", headers={"host": "elsewhere.example"}).status == 421


def test_a_single_service_serves_metrics_and_probes_only() -> None:
    with GatewayServer(None, "127.0.0.1:0", metrics=lambda: "text", option="metrics-listen") as server:
        statuses = {
            path: status(server.address, path) for path in ("/metrics", "/healthz", "/readyz", "/", "/v1/state")
        }
    assert statuses == {"/metrics": 200, "/healthz": 200, "/readyz": 200, "/": 404, "/v1/state": 404}


def status(address: str, path: str) -> int:
    connection = http.client.HTTPConnection(address, timeout=60)
    with closing(connection):
        connection.request("GET", path)
        return connection.getresponse().status
