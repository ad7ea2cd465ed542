"""The HTTP server of the emulators. The types to know are `EmulatorServer` and `EmulatorRoutes`."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class EmulatorServer(ThreadingHTTPServer):
    """A server that runs from its creation to `close`; a context manager."""

    # Without daemon threads server_close() joins them.
    daemon_threads = False
    request_queue_size = 128

    def __init__(self, routes: type[EmulatorRoutes]) -> None:
        """Start the server on a free port of 127.0.0.1."""
        self.closing = threading.Event()
        """Set by `close`, so that responses that never come end."""
        self._connections: set[socket.socket] = set()
        self._connections_lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), routes)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), name=type(self).__name__)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{self.server_address[0]!s}:{self.server_port}"

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://{self.address}"

    def close(self) -> None:
        """Stop the server, all connections and all threads."""
        self.closing.set()
        self.shutdown()
        with self._connections_lock:  # otherwise threads wait for the next request
            for connection in self._connections:
                with contextlib.suppress(OSError):  # the client may have closed it already
                    connection.shutdown(socket.SHUT_RDWR)
        self.server_close()
        self._thread.join()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._connections_lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._connections_lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client may disconnect during a response; report any other error, because it is a bug of the emulator.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class EmulatorRoutes(BaseHTTPRequestHandler):
    """The base class of the routes; it logs nothing."""

    def body(self) -> bytes:
        """Read the body of the request; empty: it has none."""
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def log_message(self, format: str, *args: object) -> None:
        pass

    def send(
        self, status: int, body: bytes, headers: Mapping[str, str], content_type: str = "application/json"
    ) -> None:
        """Send a response; `headers` may override its Content-Length."""
        self.send_response(status)
        for name, value in {"Content-Type": content_type, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
