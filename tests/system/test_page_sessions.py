"""Sessions of the page in a headless Chromium, against a real gateway: a login, its end, and pages that attack it."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from autothrottle.adapters.credentials import ServiceCertificates, TlsFiles, Tokens
from autothrottle.gateway.server import GatewayServer
from autothrottle.runtime.access import Access
from tests.paths import CERTIFICATES
from tests.unit.autothrottle.gateway.front import Front
from tests.unit.autothrottle.runtime.test_access import Refusing

pytestmark = pytest.mark.xdist_group("page")

ANNAS, BERTS = "a" * 32, "b" * 32
FILE = f"anna {ANNAS}\nbert {BERTS} viewer\n"

ATTACK = """<!doctype html><title>attack</title>
<iframe name="sink"></iframe><iframe id="victim" src="{gateway}/"></iframe>
<script>window.stolen = []; window.read = (name) => window.stolen.push(name)</script>
<script src="{gateway}/page/session" onload="read('session')"></script>
<script type="module" src="{gateway}/page/static/page.js"></script>
<form id="rate" method="post" action="{gateway}/throttle?rate=5" target="sink"></form>
<form id="login" method="post" action="{gateway}/page/login" target="sink" enctype="text/plain">
<input name='{{"token":"{token}","x":"' value='"}}'></form>
<form id="logout" method="post" action="{gateway}/page/logout" target="sink"></form>
<script>
async function attempt(name, path, options) {{
  try {{
    const reply = await fetch("{gateway}" + path, {{ credentials: "include", ...options }});
    if (reply.type !== "opaque") read(name);
  }} catch {{}}
}}
async function attack() {{
  document.cookie = "{cookie}=x; path=/";
  document.cookie = "{cookie}=x; path=/page";
  for (const form of document.forms) {{
    form.submit();
    await new Promise((resolve) => setTimeout(resolve, 200));
  }}
  const json = {{ "content-type": "application/json", "x-csrf-token": "x" }};
  await attempt("plain", "/throttle?rate=5", {{ method: "POST" }});
  await attempt("opaque", "/throttle?rate=5", {{ method: "POST", mode: "no-cors" }});
  await attempt("preflight", "/v1/override", {{ method: "PUT", headers: json, body: '{{"rateBytesPerSecond":"5"}}' }});
  await attempt("csrf", "/page/session", {{}});
  await attempt("state", "/v1/state", {{}});
  await new Promise((resolve) => {{
    const source = new EventSource("{gateway}/page/events", {{ withCredentials: true }});
    source.onopen = () => (read("events"), resolve());
    source.onerror = resolve;
  }});
  try {{ if (document.getElementById("victim").contentDocument.body.innerText) read("frame"); }} catch {{}}
  return window.stolen;
}}
</script>"""


@pytest.fixture
def context(chromium: Browser) -> Iterator[BrowserContext]:
    context = chromium.new_context(ignore_https_errors=True)
    yield context
    context.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "tokens"
    file.write_text(FILE)
    return file


@pytest.fixture
def front(file: Path) -> Iterator[Front]:
    with Front(access=Access(tokens=Tokens(str(file)))) as front:
        yield front


def opened(context: BrowserContext, front: Front, token: str) -> Page:
    """A page whose user has logged in."""
    page = context.new_page()
    page.goto(f"http://{front.server.address}/")
    page.get_by_label("Token").fill(token)
    page.get_by_role("dialog").get_by_role("button", name="Log in").click()
    expect(page.get_by_label("Token")).to_have_count(0)
    expect(page.locator("#live")).to_have_attribute("data-state", "open")
    return page


def test_an_operator_logs_in_acts_and_logs_out(context: BrowserContext, front: Front) -> None:
    urls: list[str] = []
    context.on("request", lambda request: urls.append(request.url))
    page = opened(context, front, ANNAS)
    expect(page.locator("#who")).to_contain_text("anna")
    (cookie,) = context.cookies()
    attributes = (cookie["httpOnly"], cookie["sameSite"], cookie["secure"], cookie["path"])
    assert attributes == (True, "Strict", False, "/")
    stored = "[document.cookie, localStorage.length, sessionStorage.length]"
    assert page.evaluate(stored) == ["", 0, 0]
    act = """async () => {
      const api = await import("/page/static/api.js");
      await api.readSession();
      await api.put("/v1/brokers/1001/override", { rateBytesPerSecond: "50000000" });
    }"""
    page.evaluate(act)
    assert front.current() == {1001: (50_000_000, False)}
    audit = front.ask("GET", "/v1/auditRecords?limit=1", headers={"authorization": f"Bearer {ANNAS}"})
    assert audit.json["records"][0]["who"].startswith("anna at 127.0.0.1:")
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    assert context.cookies() == []
    assert [url for url in urls if ANNAS in url] == []


def test_a_page_asks_for_a_login_when_its_token_leaves_the_file(
    context: BrowserContext, front: Front, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autothrottle.gateway.live._CHECK_SECONDS", 0.5)
    page = opened(context, front, BERTS)
    file.write_text(f"anna {ANNAS}\n")
    expect(page.get_by_label("Token")).to_be_visible(timeout=20_000)


@contextmanager
def serving(content: str) -> Iterator[int]:
    """Serve a page on all addresses of this host; yield the port."""

    class Attacker(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(content.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Attacker)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("localhost", marks=pytest.mark.repeat)])
@pytest.mark.parametrize("has_tokens", [True, False], ids=["tokens", "open"])
def test_a_hostile_page_in_the_same_browser_changes_and_reads_nothing(
    context: BrowserContext, file: Path, host: str, has_tokens: bool
) -> None:
    """On another port of 127.0.0.1 it belongs to the same site, so that the browser sends the session's cookie."""
    with Front(access=Access(tokens=Tokens(str(file))) if has_tokens else None) as front:
        name = f"autothrottle-{front.server.address.rpartition(':')[2]}"
        if has_tokens:
            victim = opened(context, front, ANNAS)
        else:
            victim = context.new_page()
            victim.goto(f"http://{front.server.address}/")
            expect(victim.locator("#live")).to_have_attribute("data-state", "open")
        gateway = f"http://{front.server.address}"
        with serving(ATTACK.format(gateway=gateway, token=BERTS, cookie=name)) as port:
            attacker = context.new_page()
            attacker.goto(f"http://{host}:{port}/")
            assert attacker.evaluate("attack()") == []
        assert front.current() == {}
        session = "async () => (await (await fetch('/page/session')).json())"
        assert victim.evaluate(session)["name"] == ("anna" if has_tokens else "")
        expect(victim.locator("#live")).to_have_attribute("data-state", "open")


def test_under_tls_the_cookie_is_secure_and_of_this_host_alone(context: BrowserContext, file: Path) -> None:
    server = str(CERTIFICATES / "server.pem")
    tls = ServiceCertificates(TlsFiles(server, server, str(CERTIFICATES / "ca.pem"))).http_context
    access = Access({}, Tokens(str(file)))
    with GatewayServer(Refusing(), "127.0.0.1:0", access=access, tls=tls) as gateway:
        page = context.new_page()
        page.goto(f"https://{gateway.address}/")
        login = """async (token) => {
          const api = await import("/page/static/api.js");
          const session = await api.logIn(token);
          const refused = await api.post("/v1/cycles").catch((refusal) => refusal);
          return [session.name, refused.status, document.cookie];
        }"""
        assert page.evaluate(login, ANNAS) == ["anna", 409, ""], "409: the request was admitted"
        (cookie,) = context.cookies()
        assert cookie["name"] == f"__Host-autothrottle-{gateway.address.rpartition(':')[2]}"
        assert (cookie["secure"], cookie["httpOnly"], cookie["sameSite"]) == (True, True, "Strict")
