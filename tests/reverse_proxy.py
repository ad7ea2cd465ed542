"""A small reverse proxy that applies the directives of an nginx configuration, where nginx is not installed."""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

SECONDS = 30.0


@dataclass(frozen=True)
class Location:
    """A `location` of nginx with a `proxy_pass`; absent directives mean what they mean in nginx."""

    path: str
    upstream: str
    """`host:port`."""
    target: str
    """Path of `proxy_pass`, which replaces `path`; "": nothing is replaced."""
    headers: tuple[tuple[str, str], ...]
    """Of `proxy_set_header`; the default for Host is the upstream."""
    cookie_path: tuple[str, str] | None

    @classmethod
    def of(cls, configuration: str) -> Location:
        """Return the first location of a configuration."""
        match = re.search(r"location (\S+) \{(.*?)\n\s*\}", configuration, re.DOTALL)
        assert match, "no location"
        directives = [line.split() for line in match[2].replace('""', "''").split(";") if line.strip()]
        url = urlsplit(next(words[1] for words in directives if words[0] == "proxy_pass"))
        headers = tuple((words[1], words[2].strip("'")) for words in directives if words[0] == "proxy_set_header")
        cookies = [(words[1], words[2]) for words in directives if words[0] == "proxy_cookie_path"]
        return cls(match[1], url.netloc, url.path, headers, cookies[0] if cookies else None)


@contextmanager
def proxying(location: Location) -> Iterator[str]:
    """Serve a location; yield its URL. Without TLS: Chromium's shared workers accept no certificate of the tests."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            if not self.path.startswith(location.path):
                self.send_error(404)
                return
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()} | {
                "host": location.upstream,
                "connection": "close",
            }
            for name, value in location.headers:
                headers[name.lower()] = self.headers["host"] if value == "$http_host" else value
            upstream = http.client.HTTPConnection(location.upstream, timeout=SECONDS)
            try:
                headers = {name: value for name, value in headers.items() if value}
                rest = self.path[len(location.path) :]
                upstream.request(self.command, location.target + rest if location.target else self.path, body, headers)
                response = upstream.getresponse()
                self.send_response_only(response.status)
                for name, value in response.getheaders():
                    if name.lower() == "set-cookie" and location.cookie_path:
                        old, new = location.cookie_path
                        value = re.sub(rf"(?i)(path=){re.escape(old)}(?=;|$)", rf"\g<1>{new}", value)
                    if name.lower() not in ("connection", "transfer-encoding"):
                        self.send_header(name, value)
                self.send_header("connection", "close")
                self.end_headers()
                while part := response.read1(1 << 16):
                    self.wfile.write(part)
                    self.wfile.flush()
            except OSError:
                pass  # one side has left
            finally:
                upstream.close()
                self.close_connection = True

        do_GET = do_POST = do_PUT = do_DELETE = _pass

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """Log nothing: browsers end connections."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://localhost:{server.server_address[1]}{location.path}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
