"""The probes of the HTTP API: /healthz and /readyz."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import datetime

import pytest

from autothrottle.adapters.credentials.tokens import Tokens
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


def test_probes_are_read_only_and_outside_the_api(front: Front) -> None:
    assert front.ask("HEAD", "/healthz").text == ""
    assert front.ask("POST", "/healthz").status == 405
    assert "healthz" not in front.ask("GET", "/openapi.json").text
