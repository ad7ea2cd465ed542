"""Sessions of the page: cookies and CSRF tokens as values, and hostile requests over real HTTP."""

from __future__ import annotations

import http.client
import json
import logging
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import product
from pathlib import Path

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.adapters.credentials import ServiceCertificates, TlsFiles, Tokens
from autothrottle.core.access import Caller, Role
from autothrottle.core.errors import Unauthenticated
from autothrottle.gateway.server import GatewayServer
from autothrottle.gateway.sessions import (
    FAILURE_SECONDS,
    MOST_FAILED_LOGINS,
    SESSION_SECONDS,
    FailedLogins,
    Sessions,
    csrf_of,
)
from autothrottle.runtime.access import Access
from autothrottle.runtime.call_limits import LimitReached
from autothrottle.v1 import admin_pb2
from autothrottle.wire.common import Metadata
from tests.paths import CERTIFICATES
from tests.unit.autothrottle.gateway.front import SLACK, Front, Reply

ANNAS, BERTS, SERVICES = "a" * 32, "b" * 32, "s" * 32
FILE = f"anna {ANNAS}\nbert {BERTS} viewer\nservices {SERVICES} service\n"
JSON = {"content-type": "application/json"}
CALLERS = {ANNAS: Caller("anna", Role.OPERATOR), BERTS: Caller("bert", Role.VIEWER)}
START = 1_800_000_000.0
TEXT = "09AZaz_-.=~ \n\x00é٣"
SIZES = (2, 43, 22, 43)


def sessions(seconds: float = 0, callers: dict[str, Caller] | None = None) -> Sessions:
    """The sessions of a gateway, some seconds after the start."""
    return Sessions(lambda: CALLERS if callers is None else callers, lambda: START + seconds)


# Cookies as values.


def test_a_session_is_valid_on_every_gateway_with_its_token_until_its_end() -> None:
    session, cookie = sessions().login(ANNAS)
    assert session.caller == Caller("anna", Role.OPERATOR)
    assert sessions(1).session(cookie) == session
    assert sessions(SESSION_SECONDS - 1).session(cookie) == session
    assert sessions(SESSION_SECONDS).session(cookie) is None
    assert sessions(-200).session(cookie) == session, "the clock of another gateway is 200 s late"


def test_a_session_that_a_wrong_clock_began_in_the_future_is_invalid() -> None:
    """A gateway whose clock was a year ahead would have signed a session for a year."""
    _, cookie = sessions(365 * 86400).login(ANNAS)
    assert sessions().session(cookie) is None


def test_a_session_ends_with_its_token_and_has_the_role_that_the_token_has_now() -> None:
    _, cookie = sessions().login(ANNAS)
    assert sessions(callers={BERTS: CALLERS[BERTS]}).session(cookie) is None
    assert sessions(callers={"n" * 32: CALLERS[ANNAS]}).session(cookie) is None, "the token was replaced"
    session = sessions(callers={ANNAS: Caller("anna", Role.VIEWER)}).session(cookie)
    assert session is not None and session.caller.role is Role.VIEWER
    assert Sessions(None).session(cookie) is None


def test_two_sessions_of_a_caller_have_different_cookies_and_csrf_tokens() -> None:
    (first, first_cookie), (second, second_cookie) = sessions().login(ANNAS), sessions().login(ANNAS)
    assert first_cookie != second_cookie and first.csrf != second.csrf


def test_neither_cookie_nor_csrf_token_contain_the_token() -> None:
    session, cookie = sessions().login(ANNAS)
    assert ANNAS[:4] not in cookie + session.csrf
    assert session.csrf not in cookie


@pytest.mark.parametrize("token", ["", "x", ANNAS[:-1], ANNAS + "a", "ä" * 32, "\ud800", "a" * 60_000])
def test_an_unknown_token_begins_no_session(token: str) -> None:
    with pytest.raises(Unauthenticated, match="the token is unknown"):
        sessions().login(token)


@given(st.integers(0, 200), st.sampled_from(TEXT))
def test_a_changed_cookie_is_invalid(index: int, character: str) -> None:
    _, cookie = sessions().login(ANNAS)
    index %= len(cookie)
    changed = cookie[:index] + character + cookie[index + 1 :]
    assert changed == cookie or sessions().session(changed) is None


@given(
    st.text(TEXT)
    | st.builds("18000{:0>5}.{}.{}.{}".format, *(st.text("09AZaz_-", min_size=n, max_size=n) for n in SIZES))
)
def test_a_forged_cookie_is_invalid(cookie: str) -> None:
    assert sessions().session(cookie) is None


@given(st.text(TEXT))
def test_the_cookie_of_a_caller_without_a_session_is_no_session(name: str) -> None:
    _, cookie = sessions().login(ANNAS)
    assert csrf_of(cookie) == ""
    unsigned = sessions().new_cookie(Caller(name))
    assert sessions().session(unsigned) is None and csrf_of(unsigned) not in ("", unsigned)


def test_parts_of_two_cookies_are_no_cookie() -> None:
    _, first = sessions().login(ANNAS)
    _, second = sessions().login(ANNAS)
    _, other = sessions().login(BERTS)
    for another in (second, other):
        for parts in product(*zip(first.split("."), another.split("."), strict=True)):
            text = ".".join(parts)
            assert text in (first, another) or sessions().session(text) is None
    end, rest = first.split(".", 1)
    assert sessions().session(f"{int(end) + 1}.{rest}") is None
    assert sessions().session(f"0{end}.{rest}") is None


def test_a_logout_ends_one_session_on_one_gateway() -> None:
    """Users of other products found that a copied cookie worked after the logout."""
    gateway, other_gateway = sessions(), sessions()
    (_, cookie), (other, other_cookie) = gateway.login(ANNAS), gateway.login(ANNAS)
    gateway.logout("x")
    gateway.logout(cookie)
    gateway.logout(cookie)
    assert gateway.session(cookie) is None and gateway.session(other_cookie) == other
    assert other_gateway.session(cookie) is not None


def test_many_logouts_take_limited_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autothrottle.gateway.sessions._MOST_ENDED", 10)
    gateway = sessions()
    cookies = [gateway.login(ANNAS)[1] for _ in range(20)]
    for cookie in cookies:
        gateway.logout(cookie)
    assert [gateway.session(cookie) is None for cookie in cookies] == [False] * 10 + [True] * 10


def test_tabs_of_a_caller_without_a_session_share_a_cookie() -> None:
    """Seven restored tabs would otherwise replace one another's cookie, and six could not change anything."""
    shared = sessions()
    assert shared.new_cookie(Caller("anna")) == shared.new_cookie(Caller("anna"))
    assert shared.new_cookie(Caller("anna")) != shared.new_cookie(Caller("bert"))
    assert shared.new_cookie(Caller("anna")) != sessions().new_cookie(Caller("anna"))


# The limit of failed logins.


class Clock:
    """A clock that the test moves."""

    time = 0.0

    def __call__(self) -> float:
        return self.time


def attempt(logins: FailedLogins, host: str, succeeds: bool = False) -> bool:
    """Whether a login may be tried."""
    try:
        with logins.attempt(host):
            if not succeeds:
                raise Unauthenticated("unknown")
    except Unauthenticated:
        pass
    except LimitReached:
        return False
    return True


def test_a_host_may_fail_ten_times_a_minute_and_others_may_go_on() -> None:
    clock = Clock()
    logins = FailedLogins(clock)
    assert [attempt(logins, "a") for _ in range(12)] == [True] * MOST_FAILED_LOGINS + [False] * 2
    assert attempt(logins, "b")
    clock.time = FAILURE_SECONDS - 1
    assert not attempt(logins, "a", succeeds=True)
    clock.time = FAILURE_SECONDS
    assert [attempt(logins, "a") for _ in range(11)] == [True] * MOST_FAILED_LOGINS + [False]


def test_a_success_is_not_counted_and_forgives_no_failure() -> None:
    """With the token of a viewer, a caller could otherwise guess those of operators without end."""
    logins = FailedLogins(Clock())
    tries = [(attempt(logins, "a"), attempt(logins, "a", succeeds=True)) for _ in range(11)]
    assert tries == [(True, True)] * 9 + [(True, False), (False, False)]


def test_many_hosts_take_limited_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autothrottle.gateway.sessions._MOST_HOSTS", 10)
    logins = FailedLogins(Clock())
    for host in range(20):
        assert [attempt(logins, str(host)) for _ in range(11)] == [True] * MOST_FAILED_LOGINS + [False]
    assert [attempt(logins, str(host)) for host in reversed(range(20))] == [False] * 10 + [True] * 10


# Over HTTP.


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


@pytest.fixture(scope="module")
def open_front() -> Iterator[Front]:
    with Front() as front:
        yield front


def login(front: Front, token: str) -> Reply:
    return front.ask("POST", "/page/login", json.dumps({"token": token}), JSON)


def begun(front: Front, token: str) -> dict[str, str]:
    """The headers of a page with a session."""
    reply = login(front, token)
    assert reply.status == 200, reply.text
    return page_headers(reply)


def page_headers(reply: Reply) -> dict[str, str]:
    return {"cookie": reply.headers["set-cookie"].partition(";")[0], "x-csrf-token": reply.json["csrf"]}


def test_a_session_reads_and_changes_and_the_audit_names_its_caller(front: Front) -> None:
    headers = begun(front, ANNAS)
    assert front.ask("POST", "/throttle/1001?rate=50", headers=headers).status == 200
    assert front.current() == {1001: (50_000_000, False)}
    (record,) = front.ask("GET", "/v1/auditRecords?limit=1", headers=headers).json["records"]
    assert record["who"].startswith("anna at 127.0.0.1:")


def test_a_login_tells_the_page_who_uses_it(front: Front) -> None:
    nobody = front.ask("GET", "/page/session")
    assert nobody.json == {"name": "", "role": "", "login": True, "csrf": ""}
    assert "set-cookie" not in nobody.headers
    reply = login(front, f" {ANNAS}\n")
    assert reply.json | {"csrf": ""} == {"name": "anna", "role": "operator", "login": True, "csrf": ""}
    later = front.ask("GET", "/page/session", headers={"cookie": page_headers(reply)["cookie"]})
    assert later.json == reply.json and "set-cookie" not in later.headers


def test_the_cookie_is_hidden_from_scripts_other_sites_and_other_clusters(front: Front) -> None:
    cookie, *attributes = login(front, ANNAS).headers["set-cookie"].split("; ")
    port = front.server.address.rpartition(":")[2]
    assert cookie.startswith(f"autothrottle-{port}=")
    expected = {"httponly", f"max-age={SESSION_SECONDS}", "path=/", "samesite=strict"}
    assert {text.lower() for text in attributes} == expected


def test_the_cookie_is_secure_behind_a_proxy_that_ends_tls(front: Front) -> None:
    headers = JSON | {"origin": f"https://{front.server.address}"}
    reply = front.ask("POST", "/page/login", json.dumps({"token": ANNAS}), headers)
    assert "Secure" in reply.headers["set-cookie"].split("; ")
    assert front.ask("GET", "/v1/overrides", headers=page_headers(reply)).status == 200


def test_a_viewer_reads_and_cannot_act(front: Front) -> None:
    headers = begun(front, BERTS)
    assert front.ask("GET", "/v1/overrides", headers=headers).status == 200
    for verb, target in (("POST", "/throttle?rate=5"), ("PUT", "/v1/pause"), ("POST", "/v1/cycles")):
        reply = front.ask(verb, target, headers=headers)
        assert (reply.status, "bert has the role viewer" in reply.text) == (403, True)
    assert front.current() == {}


def test_the_session_of_a_services_token_has_the_role_operator(front: Front) -> None:
    assert login(front, SERVICES).json["role"] == "operator"


@pytest.mark.parametrize("csrf", [None, "", "x", "ü", "a" * 43, "a" * 10_000])
@pytest.mark.parametrize("target", ["/throttle?rate=5", "/v1/cycles", "/page/logout"])
def test_a_change_without_the_csrf_token_is_refused(front: Front, target: str, csrf: str | None) -> None:
    headers = {"cookie": begun(front, ANNAS)["cookie"]}
    if csrf is not None:
        headers["x-csrf-token"] = csrf
    assert front.ask("POST", target, headers=headers).status == 403
    assert front.current() == {}


def test_the_csrf_token_of_another_session_is_refused(front: Front) -> None:
    anna, bert = begun(front, ANNAS), begun(front, BERTS)
    headers = anna | {"x-csrf-token": bert["x-csrf-token"]}
    assert front.ask("POST", "/throttle?rate=5", headers=headers).status == 403
    again = begun(front, ANNAS)
    assert front.ask("POST", "/throttle?rate=5", headers=again | {"cookie": anna["cookie"]}).status == 403
    assert front.current() == {}


@pytest.mark.parametrize(
    "foreign",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
@pytest.mark.parametrize("target", ["/throttle?rate=5", "/page/login", "/page/logout"])
def test_a_page_of_another_site_cannot_use_a_session_or_begin_one(
    front: Front, target: str, foreign: dict[str, str]
) -> None:
    body = json.dumps({"token": ANNAS}) if target == "/page/login" else None
    reply = front.ask("POST", target, body, begun(front, ANNAS) | foreign | JSON)
    assert (reply.status, "set-cookie" in reply.headers) == (403, False)
    assert front.current() == {}


@pytest.mark.parametrize("target", ["/page/session", "/page/static/index.html", "/page/events", "/page/history/1"])
def test_a_page_of_another_site_cannot_read_below_page(front: Front, target: str) -> None:
    for site in ("cross-site", "same-site"):
        assert front.ask("GET", target, headers={"sec-fetch-site": site}).status == 403
    assert front.ask("GET", "/", headers={"sec-fetch-site": "cross-site"}).status == 200, "a link to the page works"


def test_a_program_with_a_token_needs_no_csrf_token(front: Front) -> None:
    for headers in ({}, {"origin": f"http://{front.server.address}"}, {"cookie": begun(front, BERTS)["cookie"]}):
        reply = front.ask("POST", "/throttle/1001?rate=5", headers={"authorization": f"Bearer {ANNAS}", **headers})
        assert reply.status == 200, reply.text


def test_a_session_ends_with_its_token_on_every_gateway(front: Front, file: Path) -> None:
    with Front(access=Access(tokens=Tokens(str(file)))) as other:
        headers = begun(front, ANNAS)
        port, other_port = (gateway.server.address.rpartition(":")[2] for gateway in (front, other))
        on_other = headers | {"cookie": headers["cookie"].replace(port, other_port, 1)}
        for gateway, cookies in ((front, headers), (other, on_other)):
            assert gateway.ask("GET", "/v1/overrides", headers=cookies).status == 200
        assert other.ask("POST", "/throttle/1001?rate=5", headers=on_other).status == 200
        file.write_text(f"anna {'n' * 32}\nbert {BERTS} viewer\n")
        for gateway, cookies in ((front, headers), (other, on_other)):
            reply = gateway.ask("GET", "/v1/overrides", headers=cookies)
            assert (reply.status, "the session has ended" in reply.text) == (401, True)
            assert gateway.ask("GET", "/page/session", headers=cookies).json["role"] == ""


def test_a_role_that_changes_applies_at_once(front: Front, file: Path) -> None:
    headers = begun(front, ANNAS)
    file.write_text(FILE.replace(ANNAS, f"{ANNAS} viewer"))
    assert front.ask("POST", "/throttle?rate=5", headers=headers).status == 403
    assert front.ask("GET", "/page/session", headers=headers).json["role"] == "viewer"


def test_logging_out_ends_the_session_and_removes_the_cookie(front: Front) -> None:
    headers = begun(front, ANNAS)
    reply = front.ask("POST", "/page/logout", headers=headers)
    assert reply.json == {"name": "", "role": "", "login": True, "csrf": ""}
    cookie, *attributes = reply.headers["set-cookie"].split("; ")
    assert cookie.endswith('=""') and "Max-Age=0" in attributes
    assert front.ask("GET", "/v1/overrides", headers=headers).status == 401, "a copy of the cookie has ended, too"
    assert front.ask("POST", "/page/logout").status == 200, "also without a session"


def test_the_stream_of_a_page_ends_after_its_logout(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autothrottle.gateway.live._CHECK_SECONDS", 0.1)
    headers = begun(front, BERTS)
    connection = http.client.HTTPConnection(front.server.address, timeout=SLACK)
    connection.request("GET", "/page/events", headers=headers)
    stream = connection.getresponse()
    assert stream.status == 200 and stream.readline().startswith(b"retry:")
    assert front.ask("POST", "/page/logout", headers=headers).status == 200
    stream.read()  # ends
    connection.close()
    assert front.ask("GET", "/page/events", headers=headers).status == 401


@pytest.mark.parametrize(
    "cookie",
    [
        "",
        "x",
        ";;;==;;",
        "autothrottle-{port}",
        "autothrottle-{port}=",
        "autothrottle-{port}=..",
        "autothrottle-{port}=9999999999." + f"{'a' * 43}.{'a' * 22}.{'a' * 43}",
        "autothrottle-{port}=\x80\xff",
        "autothrottle-{port}=" + "a" * 12_000,
        "a=b; " * 2_000,
        "__Host-autothrottle-{port}={valid}",
        "autothrottle={valid}",
        "autothrottle-1={valid}",
        "autothrottle-{port}={valid}x",
        "autothrottle-{port}={valid}; autothrottle-{port}=x",
    ],
)
def test_a_hostile_cookie_is_401(front: Front, cookie: str) -> None:
    valid = begun(front, ANNAS)["cookie"].partition("=")[2]
    text = cookie.replace("{port}", front.server.address.rpartition(":")[2]).replace("{valid}", valid)
    assert front.ask("GET", "/v1/overrides", headers={"cookie": text}).status == 401
    assert front.ask("GET", "/page/session", headers={"cookie": text}).json["role"] == ""


@pytest.mark.parametrize(
    "body",
    ["", "[]", "null", '"x"', "{}", '{"token":1}', '{"token":["%s"]}', '{"token":"%s"', "[" * 60_000, "\x00", "%s"],
)
def test_a_malformed_login_is_refused_without_showing_its_content(front: Front, body: str) -> None:
    reply = front.ask("POST", "/page/login", body.replace("%s", ANNAS), JSON)
    assert (reply.status, ANNAS in reply.text, "set-cookie" in reply.headers) == (400, False, False)


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_a_form_cannot_log_in(front: Front, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    assert front.ask("POST", "/page/login", json.dumps({"token": ANNAS}), headers).status == 400


def test_a_token_in_the_url_logs_nobody_in(front: Front) -> None:
    assert front.ask("GET", f"/page/login?token={ANNAS}").status == 405
    assert front.ask("POST", f"/page/login?token={ANNAS}", "{}", JSON).status == 400


def test_many_failed_logins_at_once_are_limited_and_no_log_line_has_a_token(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file.write_text(FILE)
    caplog.set_level(logging.DEBUG)
    with Front(access=Access(tokens=Tokens(str(file)))) as front, ThreadPoolExecutor(8) as threads:
        session = begun(front, ANNAS)
        guesses = [f"guess{number:027}" for number in range(60)]
        statuses = [reply.status for reply in threads.map(lambda token: login(front, token), guesses)]
        assert (statuses.count(401), statuses.count(429)) == (MOST_FAILED_LOGINS, 60 - MOST_FAILED_LOGINS)
        reply = login(front, ANNAS)
        assert (reply.status, "wait for" in reply.text, reply.headers["retry-after"]) == (429, True, "60")
        assert front.ask("GET", "/v1/overrides", headers=session).status == 200, "sessions go on"
        assert front.ask("GET", "/v1/overrides", headers={"authorization": f"Bearer {ANNAS}"}).status == 200
        assert login_from("127.0.0.9", front) == 200
    assert "anna logged in to the page from 127.0.0.9" in caplog.text
    assert ANNAS not in caplog.text and "guess" not in caplog.text and session["x-csrf-token"] not in caplog.text


def login_from(host: str, front: Front) -> int:
    connection = http.client.HTTPConnection(front.server.address, timeout=SLACK, source_address=(host, 0))
    connection.request("POST", "/page/login", json.dumps({"token": ANNAS}), JSON)
    status = connection.getresponse().status
    connection.close()
    return status


# Callers without a session.


def test_a_browser_on_an_open_gateway_needs_a_csrf_token_and_a_program_does_not(open_front: Front) -> None:
    front = open_front.clear()
    own = {"origin": f"http://{front.server.address}", "sec-fetch-site": "same-origin"}
    assert front.ask("POST", "/throttle/1001?rate=5", headers=own).status == 403
    assert front.current() == {}
    reply = front.ask("GET", "/page/session", headers={"sec-fetch-site": "same-origin"})
    assert (reply.json["role"], reply.json["login"]) == ("service", False)
    assert "httponly" in reply.headers["set-cookie"].lower() and "max-age" not in reply.headers["set-cookie"].lower()
    assert front.ask("POST", "/throttle/1001?rate=5", headers=own | page_headers(reply)).status == 200
    assert front.ask("POST", "/throttle/1001?rate=6").status == 200
    for made in ({"cookie": page_headers(reply)["cookie"]}, {"x-csrf-token": page_headers(reply)["x-csrf-token"]}):
        assert front.ask("POST", "/throttle/1001?rate=7", headers=own | made).status == 403
    # A browser adds the credentials of a URL, which are not a bearer token.
    assert front.ask("POST", "/throttle/1001?rate=7", headers=own | {"authorization": "Basic YTpi"}).status == 403
    assert front.current() == {1001: (6_000_000, False)}


def test_an_open_gateway_has_no_login(open_front: Front) -> None:
    reply = login(open_front, ANNAS)
    assert (reply.status, "has no tokens to log in with" in reply.text) == (400, True)


class Accepting:
    """An admin service that remembers who called it."""

    def __init__(self) -> None:
        self.clients: list[str] = []

    def call(self, method: str, request: Message, timeout: timedelta, metadata: Metadata) -> Message:
        self.clients.append(str(dict(metadata)["forwarded-for"]).partition(" at ")[0])
        return admin_pb2.RequestCycleResponse()


def test_certificates_and_sessions_under_tls(tmp_path: Path) -> None:
    file, authorities = tmp_path / "tokens", tmp_path / "ca.pem"
    file.write_text(FILE)
    authorities.write_text("".join((CERTIFICATES / f"{name}.pem").read_text() for name in ("ca", "viewer", "service")))
    server = str(CERTIFICATES / "server.pem")
    tls = ServiceCertificates(TlsFiles(server, server, str(authorities))).http_context
    access, admin = Access({"service": Role.OPERATOR, "viewer*": Role.VIEWER}, Tokens(str(file))), Accepting()
    with GatewayServer(admin, "127.0.0.1:0", access=access, tls=tls) as gateway:

        def ask(verb: str, target: str, certificate: str = "", body: str = "", **headers: str) -> Reply:
            context = ssl.create_default_context(cafile=str(CERTIFICATES / "ca.pem"))
            if certificate:
                context.load_cert_chain(CERTIFICATES / f"{certificate}.pem")
            connection = http.client.HTTPSConnection(gateway.address, timeout=SLACK, context=context)
            connection.request(verb, target, body, {name.replace("_", "-"): value for name, value in headers.items()})
            response = connection.getresponse()
            reply = Reply(response.status, response.read().decode(), {n.lower(): v for n, v in response.getheaders()})
            connection.close()
            return reply

        def headers_of(reply: Reply) -> dict[str, str]:
            return {name.replace("-", "_"): value for name, value in page_headers(reply).items()}

        own = {"origin": f"https://{gateway.address}"}
        # A program with a certificate needs nothing else, a browser with one needs the token of its page.
        assert ask("POST", "/v1/cycles", "service").status == 200
        assert ask("POST", "/v1/cycles", "service", **own).status == 403
        reply = ask("GET", "/page/session", "service")
        assert (reply.json["name"], reply.json["role"], reply.json["login"]) == ("service", "operator", True)
        name, *attributes = reply.headers["set-cookie"].split("; ")
        assert name.startswith(f"__Host-autothrottle-{gateway.address.rpartition(':')[2]}=")
        assert "Secure" in attributes and "Path=/" in attributes
        assert ask("POST", "/v1/cycles", "service", **own, **headers_of(reply)).status == 200
        # A session beats the certificate: its caller has logged in on purpose.
        reply = ask("POST", "/page/login", "viewer", json.dumps({"token": ANNAS}), content_type="application/json")
        assert "Secure" in reply.headers["set-cookie"].split("; ")
        assert ask("POST", "/v1/cycles", "viewer", **own, **headers_of(reply)).status == 200
        assert ask("POST", "/v1/cycles", "viewer", **own).status == 403
        assert ask("POST", "/v1/cycles", **own, **headers_of(reply)).status == 200
        # After the session, the certificate counts again.
        file.write_text(f"bert {BERTS} viewer\n")
        assert ask("GET", "/page/session", "viewer", **headers_of(reply)).json["role"] == "viewer"
    assert admin.clients == ["service", "service", "anna", "anna"]


# The files of the page.

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def test_the_page_is_public_and_allows_only_its_own_scripts_and_styles(front: Front) -> None:
    for target in ("/", "/page/static/index.html"):
        reply = front.ask("GET", target)
        assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert reply.headers["content-security-policy"] == POLICY
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["referrer-policy"] == "no-referrer"
        assert "set-cookie" not in reply.headers
        again = front.ask("GET", target, headers={"if-none-match": reply.headers["etag"]})
        assert (again.status, again.text, again.headers["content-security-policy"]) == (304, "", POLICY)


@pytest.mark.parametrize(
    "name", ["../web.py", "..%2fweb.py", "%2e%2e/web.py", "x.js", "", "a/b", "%00", "index.html%00", "INDEX.HTML", "/"]
)
def test_no_other_file_is_served(front: Front, name: str) -> None:
    assert front.ask("GET", f"/page/static/{name}").status == 404


def test_every_answer_refuses_inline_code_of_others(front: Front) -> None:
    for target in ("/", "/api", "/openapi.json", "/v1/overrides", "/page/session", "/healthz", "/absent", "/throttle"):
        headers = front.ask("GET", target).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["cross-origin-resource-policy"] == "same-origin"
