from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from autothrottle.core.errors import Invalid
from autothrottle.gateway.tokens import Tokens
from tests.gateway.front import Front, Reply

ANNAS, BERTS = "a" * 32, "b" * 32


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokens") / "tokens"


@pytest.fixture(scope="module")
def front(file: Path) -> Iterator[Front]:
    file.write_text(f"# Operators.\n\nanna {ANNAS}\n")
    with Front(tokens=Tokens(str(file))) as front:
        yield front


def ask(front: Front, verb: str, target: str, authorization: str) -> Reply:
    return front.ask(verb, target, headers={"authorization": authorization} if authorization else {})


@pytest.mark.parametrize("authorization", ["", ANNAS, f"Bearer {BERTS}", f"Basic {ANNAS}", "Bearer ", "Bearer \xe4"])
@pytest.mark.parametrize("target", ["/throttle?rate=50", "/v1/cycles", "/throttle/remove/all"])
def test_without_a_known_token_nothing_is_done_and_the_answer_says_what_is_needed(
    front: Front, target: str, authorization: str
) -> None:
    front.clear()
    reply = ask(front, "POST", target, authorization)
    assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
    assert "send `Authorization: Bearer TOKEN`" in reply.text
    assert front.standing() == {}


def test_who_has_a_token_may_and_the_audit_bears_the_name(front: Front) -> None:
    assert ask(front, "POST", "/throttle/1001?rate=50", f"bearer {ANNAS}").status == 200
    assert front.standing() == {1001: (50_000_000, False)}
    (record,) = ask(front, "GET", "/v1/auditRecords?limit=1", f"Bearer {ANNAS}").json["records"]
    assert record["who"].startswith("anna at 127.0.0.1:")


def test_a_name_that_is_no_ascii_stands_in_the_audit_too(tmp_path: Path) -> None:
    """It did not go along to admin, and neither did the address: the record told of the gateway alone."""
    file = tmp_path / "tokens"
    file.write_text(f"jürgen {ANNAS}\n", "utf-8")
    with Front(tokens=Tokens(str(file))) as front:
        assert ask(front, "POST", "/throttle/1001?rate=50", f"bearer {ANNAS}").status == 200
        (record,) = ask(front, "GET", "/v1/auditRecords?limit=1", f"Bearer {ANNAS}").json["records"]
    assert record["who"].startswith(r"j\xfcrgen at 127.0.0.1:")


def test_what_the_api_is_is_told_to_everybody(front: Front) -> None:
    assert front.ask("GET", "/").status == 200
    described = front.ask("GET", "/openapi.json").json
    assert described["components"]["securitySchemes"] == {"token": {"type": "http", "scheme": "bearer"}}


def test_tokens_are_renewed_without_a_restart_and_a_file_that_is_wrong_changes_nothing(
    front: Front, file: Path
) -> None:
    file.write_text(f"bert {BERTS}\n")
    assert ask(front, "GET", "/v1/overrides", f"Bearer {BERTS}").status == 200
    assert ask(front, "GET", "/v1/overrides", f"Bearer {ANNAS}").status == 401
    file.write_text("bert short\n")
    assert ask(front, "GET", "/v1/overrides", f"Bearer {BERTS}").status == 200
    file.unlink()
    assert ask(front, "GET", "/v1/overrides", f"Bearer {BERTS}").status == 200
    file.write_text(f"anna {ANNAS}\nbert {BERTS}\n")
    assert ask(front, "GET", "/v1/overrides", f"Bearer {ANNAS}").status == 200


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (f"anna {ANNAS}\nbert\n", "line 2 must be a name, a space and a token of at least 16 characters"),
        ("anna tooshort\n", "line 1 must be"),
        # It was taken, and whoever sent it was nobody: curl sends UTF-8, and a header is read as Latin-1.
        (f"anna {ANNAS}ü\n", "line 1 must be a name, a space and a token of at least 16 characters, ASCII,"),
        (f"anna {ANNAS} {BERTS}\n", "line 1 must be"),
        (f"anna {ANNAS}\nbert {ANNAS}\n", "line 2 must be"),
        ("# nobody\n", "holds no token"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_a_file_that_is_no_list_of_tokens_is_refused_without_showing_what_is_in_it(
    tmp_path: Path, content: str | None, reason: str
) -> None:
    path = tmp_path / "tokens"
    if content is not None:
        path.write_text(content, "utf-8")
    with pytest.raises(Invalid, match=reason) as caught:
        Tokens(str(path))
    assert ANNAS not in str(caught.value)
