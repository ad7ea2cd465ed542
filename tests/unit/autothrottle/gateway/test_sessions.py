"""Sessions of the page over real HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from autothrottle.adapters.credentials import Tokens
from autothrottle.runtime.access import Access
from tests.unit.autothrottle.gateway.front import Front, Reply

ANNAS, BERTS, CLARAS, SERVICES = "a" * 32, "b" * 32, "c" * 32, "s" * 32
FILE = f"anna {ANNAS}\nbert {BERTS} viewer\nclara {CLARAS} operator\nservices {SERVICES} service\n"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokens") / "tokens"


@pytest.fixture(scope="module")
def shared_front(file: Path) -> Iterator[Front]:
    file.write_text(FILE)
    with Front(access=Access(tokens=Tokens(str(file)))) as front:
        yield front


@pytest.fixture
def front(shared_front: Front, file: Path) -> Front:
    file.write_text(FILE)
    return shared_front.clear()


def login(front: Front, token: str) -> Reply:
    return front.ask("POST", "/page/login", json.dumps({"token": token}), {"content-type": "application/json"})


def session(front: Front, token: str) -> dict[str, str]:
    """The headers of a page with a session."""
    reply = login(front, token)
    assert reply.status == 200, reply.text
    return {"cookie": reply.headers["set-cookie"].partition(";")[0], "x-csrf-token": reply.json["csrf"]}


def test_a_session_reads_and_changes_and_the_audit_names_its_caller(front: Front) -> None:
    headers = session(front, ANNAS)
    assert front.ask("POST", "/throttle/1001?rate=50", headers=headers).status == 200
    assert front.current() == {1001: (50_000_000, False)}
    (record,) = front.ask("GET", "/v1/auditRecords?limit=1", headers=headers).json["records"]
    assert record["who"].startswith("anna at 127.0.0.1:")
