from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from autothrottle.adapters.credentials import Tokens
from autothrottle.core.errors import Invalid
from autothrottle.runtime.access import FREE_WRONG_TOKENS, LONGEST_DELAY_SECONDS, Access, WrongTokens
from autothrottle.runtime.call_limits import SPARE_REFUSALS
from autothrottle.runtime.health import Health
from tests.builders import eventually
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


def delays(wrong_tokens: WrongTokens, count: int, host: str = "10.0.0.9") -> list[float]:
    """Return the delays of so many refusals of one host, one after the other."""
    seconds = []
    for _ in range(count):
        with wrong_tokens.refusal(host) as delay:
            seconds.append(delay)
    return seconds


def test_wrong_tokens_are_refused_slower_and_slower() -> None:
    """300 wrong tokens in a row were refused as fast as they came; only failed logins had a limit."""
    now = [0.0]
    wrong_tokens = WrongTokens(lambda: now[0])
    of_host = delays(wrong_tokens, 300)
    assert of_host[:FREE_WRONG_TOKENS] == [0.0] * FREE_WRONG_TOKENS
    assert of_host == sorted(of_host) and of_host[11] > of_host[10] > 0
    assert set(of_host[260:]) == {LONGEST_DELAY_SECONDS} and wrong_tokens.is_slowed("10.0.0.9")
    assert sum(of_host) > 600
    assert delays(wrong_tokens, 1, "10.0.0.8") == [0.0]
    now[0] += 540
    assert delays(wrong_tokens, 1) == [0.0]


def test_only_some_refusals_wait_at_a_time_and_none_at_the_end() -> None:
    wrong_tokens = WrongTokens(lambda: 0.0)
    delays(wrong_tokens, 300)
    with ExitStack() as waiting:
        assert all(waiting.enter_context(wrong_tokens.refusal("10.0.0.9")) for _ in range(SPARE_REFUSALS))
        assert delays(wrong_tokens, 1) == [0.0]
    assert delays(wrong_tokens, 1) == [LONGEST_DELAY_SECONDS]
    wrong_tokens.ended.set()
    assert delays(wrong_tokens, 1) == [0.0]


def test_a_valid_token_never_waits_for_the_wrong_ones_of_its_host(tmp_path: Path) -> None:
    """Behind an Ingress, all callers are one host."""
    (tmp_path / "tokens").write_text(f"anna {ANNAS}\n")
    access = Access(tokens=Tokens(str(tmp_path / "tokens")))
    delays(access.wrong_tokens, 300, "127.0.0.1")
    with Front(access=access) as front, ThreadPoolExecutor(40) as guessers:
        wrong = [guessers.submit(ask, front, "GET", "/v1/overrides", f"Bearer {BERTS}") for _ in range(40)]
        eventually(lambda: access.wrong_tokens._delayed == SPARE_REFUSALS)
        for target in ("/v1/overrides", "/page/session", "/metrics"):
            assert ask(front, "GET", target, f"Bearer {ANNAS}").status == 200
        assert not any(guess.done() and guess.result().status == 429 for guess in wrong)
        access.wrong_tokens.ended.set()  # the request to stop
        assert {guess.result(10).status for guess in wrong} == {401}


def test_no_public_route_tells_a_guesser_whether_a_token_is_valid(tmp_path: Path) -> None:
    """The probes show addresses to a known token, and the session its name, without any limit of guesses."""
    (tmp_path / "tokens").write_text(f"anna {ANNAS}\n")
    access, health = Access(tokens=Tokens(str(tmp_path / "tokens"))), Health()
    health.add("store", lambda: "zk1:2181 does not answer")
    with closing(health), Front(access=access, health=health) as front:
        health.start()
        eventually(lambda: "..." in ask(front, "GET", "/readyz", "").text)
        assert ask(front, "GET", "/page/session", f"Bearer {ANNAS}").json["name"] == "anna"
        assert "zk1:2181" in ask(front, "GET", "/readyz", f"Bearer {ANNAS}").text
        for _ in range(2 * FREE_WRONG_TOKENS):
            assert "..." in ask(front, "GET", "/readyz", f"Bearer {BERTS}").text
        assert "..." in ask(front, "GET", "/readyz", f"Bearer {ANNAS}").text
        assert ask(front, "GET", "/page/session", f"Bearer {ANNAS}").json["name"] == ""
        assert ask(front, "GET", "/v1/overrides", f"Bearer {ANNAS}").status == 200


def test_a_basic_login_at_a_proxy_does_not_end_a_session(front: Front, file: Path) -> None:
    """nginx passes the header of its own basic login on. The gateway took it for a wrong token."""
    file.write_text(f"anna {ANNAS}\n")
    login = front.ask("POST", "/page/login", f'{{"token": "{ANNAS}"}}', {"content-type": "application/json"})
    cookie = login.headers["set-cookie"].partition(";")[0]
    headers = {"authorization": "Basic YW5uYTp4", "cookie": cookie}
    assert front.ask("GET", "/v1/overrides", headers=headers).status == 200
    assert front.ask("POST", "/v1/cycles", headers=headers).status == 403  # without its CSRF token


def test_a_refusal_that_a_proxy_can_cause_names_what_the_proxy_must_pass_on(front: Front) -> None:
    """nginx sends another Host by default, and the answers named neither the header nor the directive."""
    origin = {"origin": "https://throttle.example", "content-type": "application/json"}
    replies = [
        front.ask("POST", "/page/login", '{"token": "x"}', origin),
        front.ask("GET", "/v1/overrides", headers={"host": "throttle.example"}),
    ]
    assert [reply.status for reply in replies] == [403, 421]
    assert all("nginx: proxy_set_header Host $http_host" in reply.text for reply in replies)
