"""The page below a path of a proxy that ends TLS, as docs/page.md describes it for nginx."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import Error, expect

from autothrottle.adapters.credentials import Tokens
from autothrottle.runtime.access import Access
from tests.builders import eventually
from tests.paths import ROOT
from tests.reverse_proxy import Location, proxying
from tests.unit.autothrottle.gateway.front import Front

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ANNAS = "a" * 32

ACT = """async () => {
  const api = await import("./page/static/api.js");
  await api.readSession();
  await api.put("/v1/brokers/1001/override", { rateBytesPerSecond: "50000000" });
}"""


def example() -> str:
    """Return the nginx example of the page's documentation."""
    match = re.search(r"```nginx\n(.*?)```", (ROOT / "docs" / "page.md").read_text("utf-8"), re.DOTALL)
    assert match
    return match[1]


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    (tmp_path / "tokens").write_text(f"anna {ANNAS} operator\n")
    with Front(access=Access(tokens=Tokens(str(tmp_path / "tokens")))) as front:
        yield front


@contextmanager
def loaded(chromium: Browser, url: str) -> Iterator[Page]:
    context = chromium.new_context(ignore_https_errors=True)
    try:
        page = context.new_page()
        page.goto(url)
        yield page
    finally:
        context.close()


def log_in(page: Page) -> None:
    page.get_by_label("Token").fill(ANNAS)
    page.get_by_role("dialog").get_by_role("button", name="Log in").click()


def operate(chromium: Browser, url: str, front: Front) -> None:
    """Log in below a path, receive live events there, and change a rate."""
    with loaded(chromium, url) as page:
        log_in(page)
        expect(page.get_by_label("Token")).to_have_count(0)
        expect(page.locator("#live")).to_have_attribute("data-state", "open")
        (cookie,) = page.context.cookies()
        assert cookie["path"] == "/autothrottle/"
        page.evaluate(ACT.replace("./page", "/autothrottle/page"))
        assert front.current() == {1001: (50_000_000, False)}
        with page.expect_navigation():
            page.get_by_role("link", name="API").click()
        with page.expect_navigation():
            page.get_by_role("link", name="What moves now").click()
        expect(page.locator("#live")).to_have_attribute("data-state", "open")


def test_the_page_works_below_a_path_of_the_documented_proxy(chromium: Browser, front: Front) -> None:
    """Each login and each change below a path was a 404, since the page's links were absolute."""
    location = replace(Location.of(example()), upstream=front.server.address)
    with proxying(location) as url:
        operate(chromium, url, front)


def test_nginx_serves_the_page_with_the_documented_configuration(
    chromium: Browser, front: Front, tmp_path: Path
) -> None:
    nginx = shutil.which("nginx")
    if nginx is None:
        pytest.skip("nginx is not installed (Debian: apt-get install nginx); the test above applies its directives")
    server = re.sub(r" *ssl_.*\n", "", example()).replace("listen 443 ssl", "listen 127.0.0.1:18443")
    server = server.replace("127.0.0.1:8080", front.server.address)
    (tmp_path / "nginx.conf").write_text(
        f"daemon off; pid {tmp_path}/pid; error_log {tmp_path}/error.log;\n"
        f"events {{}}\nhttp {{ access_log off; client_body_temp_path {tmp_path};\n{server} }}\n"
    )
    process = subprocess.Popen([nginx, "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")])
    try:
        eventually((tmp_path / "pid").exists, 20)
        operate(chromium, "http://localhost:18443/autothrottle/", front)
    finally:
        process.terminate()
        process.wait(20)


def test_a_proxy_that_replaces_the_host_is_named_in_the_answer(chromium: Browser, front: Front) -> None:
    """nginx sends its upstream's name as Host by default. Each login was refused, and nothing named the cause."""
    location = replace(Location.of(example()), upstream=front.server.address, headers=())
    with proxying(location) as url, loaded(chromium, url) as page:
        log_in(page)
        expect(page.get_by_role("dialog")).to_contain_text("proxy_set_header Host $http_host")
        with pytest.raises(Error, match=r"proxy_set_header Host \$http_host"):
            page.evaluate(ACT.replace("./page", "/autothrottle/page"))
    assert front.current() == {}
