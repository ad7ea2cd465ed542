from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from autothrottle.adapters.credentials import Tokens
from autothrottle.core.errors import Invalid
from autothrottle.runtime.access import Access
from tests.unit.autothrottle.gateway.front import Front, Reply

ANNAS, BERTS = "a" * 32, "b" * 32


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokens") / "tokens"


@pytest.fixture(scope="module")
def front(file: Path) -> Iterator[Front]:
    file.write_text(f"# Operators.\n\nanna {ANNAS}\n")
    with Front(access=Access(tokens=Tokens(str(file)))) as front:
        yield front


def ask(front: Front, verb: str, target: str, authorization: str) -> Reply:
    return front.ask(verb, target, headers={"authorization": authorization} if authorization else {})


@pytest.mark.parametrize("authorization", ["", ANNAS, f"Bearer {BERTS}", f"Basic {ANNAS}", "Bearer ", "Bearer \xe4"])
@pytest.mark.parametrize("target", ["/throttle?rate=50", "/v1/cycles", "/throttle/remove/all"])
def test_without_a_known_token_a_request_is_401_and_changes_nothing(
    front: Front, target: str, authorization: str
) -> None:
    front.clear()
    reply = ask(front, "POST", target, authorization)
    assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
    assert "send `Authorization: Bearer TOKEN`" in reply.text
    assert front.current() == {}


def test_a_known_token_allows_changes_and_the_audit_contains_its_name(front: Front) -> None:
    assert ask(front, "POST", "/throttle/1001?rate=50", f"bearer {ANNAS}").status == 200
    assert front.current() == {1001: (50_000_000, False)}
    (record,) = ask(front, "GET", "/v1/auditRecords?limit=1", f"Bearer {ANNAS}").json["records"]
    assert record["who"].startswith("anna at 127.0.0.1:")


def test_the_audit_contains_a_non_ascii_name(tmp_path: Path) -> None:
    """A non-ASCII name and its address were lost on the way to admin. The record named the gateway alone."""
    file = tmp_path / "tokens"
    file.write_text(f"jürgen {ANNAS}\n", "utf-8")
    with Front(access=Access(tokens=Tokens(str(file)))) as front:
        assert ask(front, "POST", "/throttle/1001?rate=50", f"bearer {ANNAS}").status == 200
        (record,) = ask(front, "GET", "/v1/auditRecords?limit=1", f"Bearer {ANNAS}").json["records"]
    assert record["who"].startswith(r"j\xfcrgen at 127.0.0.1:")


def test_page_and_openapi_document_are_public(front: Front) -> None:
    assert front.ask("GET", "/").status == 200
    described = front.ask("GET", "/openapi.json").json
    assert described["components"]["securitySchemes"] == {"token": {"type": "http", "scheme": "bearer"}}


def test_tokens_are_reloaded_and_an_unreadable_file_keeps_the_previous_tokens(front: Front, file: Path) -> None:
    file.write_text(f"bert {BERTS}\n")
    assert ask(front, "GET", "/v1/overrides", f"Bearer {BERTS}").status == 200
    assert ask(front, "GET", "/v1/overrides", f"Bearer {ANNAS}").status == 401
    file.unlink()
    assert ask(front, "GET", "/v1/overrides", f"Bearer {BERTS}").status == 200
    file.write_text("bert short\n")
    assert ask(front, "GET", "/v1/overrides", f"Bearer {BERTS}").status == 401
    file.write_text(f"anna {ANNAS}\nbert {BERTS}\n")
    assert ask(front, "GET", "/v1/overrides", f"Bearer {ANNAS}").status == 200


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (f"anna {ANNAS}\nbert\n", "line 2 must be a name, a space and a unique token of at least 16 ASCII characters"),
        ("anna tooshort\n", "line 1 must be"),
        # Such a token was accepted but never matched: curl sends UTF-8, and headers are decoded as Latin-1.
        (f"anna {ANNAS}ü\n", "line 1 must be a name, a space and a unique token of at least 16 ASCII characters"),
        (f"anna {ANNAS} {BERTS}\n", "the third word of line 1 must be a role: viewer, operator, service"),
        (f"anna {ANNAS} root\n", "the third word of line 1 must be a role"),
        (f"anna {ANNAS} viewer more\n", "line 1 must be a name"),
        (f"anna {ANNAS}\nbert {ANNAS}\n", "line 2 must be"),
        ("# no users\n", "contains no token"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_an_invalid_token_file_is_refused_without_showing_its_content(
    tmp_path: Path, content: str | None, reason: str
) -> None:
    path = tmp_path / "tokens"
    if content is not None:
        path.write_text(content, "utf-8")
    with pytest.raises(Invalid, match=reason) as caught:
        Tokens(str(path))
    assert ANNAS not in str(caught.value)
