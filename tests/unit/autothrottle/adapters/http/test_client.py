"""Responses without an end, or with odd contents, end at their limits and are an error of their server alone."""

from __future__ import annotations

import gzip
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial

import pytest
from urllib3 import BaseHTTPResponse

from autothrottle.adapters.http.client import (
    MAX_BODY_BYTES,
    Call,
    Failure,
    HttpClient,
    parse_json,
    read_body,
    read_json,
    server_of,
)

HEAD = b"HTTP/1.1 200 OK\r\n"
MEGABYTE = bytes(1_000_000)


@contextmanager
def server(respond: Callable[[socket.socket], None]) -> Iterator[str]:
    """Yield the URL of a server that answers each request with `respond`."""
    threads: list[threading.Thread] = []

    def answer(client: socket.socket) -> None:
        with client, suppress(OSError):  # the client has ended the connection
            client.recv(65536)
            respond(client)
            client.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threads.append(threading.Thread(target=answer, args=(listener.accept()[0],)))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept)
        accepting.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/x?token=secret"
        listener.shutdown(socket.SHUT_RDWR)
    accepting.join()
    for thread in threads:
        thread.join()


def fetch(
    url: str, read: Callable[[BaseHTTPResponse], object] = read_json, seconds: float = 20.0
) -> tuple[object | Failure, float]:
    """Return the result of one call, and the seconds that it took."""
    began = time.monotonic()
    with closing(HttpClient("test", 1)) as client:
        (answer,) = client.run([Call("x", partial(client.send, url, {}), read)], began + seconds, stop_at_failure=True)
        return answer, time.monotonic() - began


def endless(client: socket.socket) -> None:
    client.sendall(HEAD + b"\r\n")
    while True:
        client.sendall(MEGABYTE)


def endless_chunks(client: socket.socket) -> None:
    client.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    while True:
        client.sendall(b"f4240\r\n" + MEGABYTE + b"\r\n")


def ten_gigabytes(client: socket.socket) -> None:
    client.sendall(HEAD + b"Content-Length: 10000000000\r\n\r\n")
    while True:
        client.sendall(MEGABYTE)


@pytest.mark.parametrize("respond", [endless, endless_chunks, ten_gigabytes])
def test_body_without_an_end_is_refused_at_the_limit(respond: Callable[[socket.socket], None]) -> None:
    """An endless body of Prometheus or Datadog was read until the timeout, which took 2 to 3 GB of memory."""
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with server(respond) as url:
        answer, _ = fetch(url)
    assert isinstance(answer, Failure)
    assert answer.reason == f"answers with more than {MAX_BODY_BYTES} bytes; the rest is not read"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 150_000  # kB


def test_small_gzip_text_of_many_bytes_is_refused_at_the_limit() -> None:
    body = gzip.compress(bytes(MAX_BODY_BYTES + 1), 1)
    head = HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    with server(lambda client: client.sendall(head + body)) as url:
        answer, _ = fetch(url)
    assert isinstance(answer, Failure)
    assert "answers with more than" in answer.reason


def test_body_in_single_bytes_ends_at_the_deadline() -> None:
    """Each byte comes within the timeout of the socket, so only a deadline of the whole call ends it."""

    def drip(client: socket.socket) -> None:
        client.sendall(HEAD + b"\r\n")
        while True:
            client.sendall(b" ")
            time.sleep(0.02)

    with server(drip) as url:
        answer, seconds = fetch(url, seconds=0.3)
    assert isinstance(answer, Failure)
    assert answer.reason == "does not answer in time"
    assert seconds < 5


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n", "answers 302"),
        (HEAD + b"a: b\r\n" * 200 + b"\r\n{}", "does not answer (ProtocolError)"),
        (HEAD + b"Content-Encoding: gzip\r\n\r\nplain", "does not answer (DecodeError)"),
        (HEAD + b"Content-Encoding: br, gzip\r\n\r\n{}", "does not answer (DecodeError)"),
        (HEAD + b"Content-Length: 9\r\n\r\n{}", "does not answer (ProtocolError)"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "does not answer (ProtocolError)"),
        (HEAD + b"\r\n" + b"[" * 100_000, "answers with invalid JSON"),
        (b"\x00\xff\r\n\r\n", "does not answer (ProtocolError)"),
    ],
)
def test_odd_response_is_an_error_of_its_server(response: bytes, reason: str) -> None:
    def read(answered: BaseHTTPResponse) -> object:
        if answered.status != 200:
            raise Failure(f"answers {answered.status}", answered.status)
        return read_json(answered)

    with server(lambda client: client.sendall(response)) as url:
        answer, _ = fetch(url, read)
    assert isinstance(answer, Failure)
    assert answer.reason == reason


def test_unexpected_error_in_a_response_is_an_error_of_its_server() -> None:
    """It left the thread that waits for all servers, so that the scraper read no exporter any more."""

    def read(answered: BaseHTTPResponse) -> object:
        raise TypeError("odd")

    with server(lambda client: client.sendall(HEAD + b"\r\n{}")) as url:
        answer, _ = fetch(url, read)
    assert isinstance(answer, Failure)
    assert answer.reason == "cannot be read (TypeError: odd)"


def test_body_of_an_error_is_cut_off() -> None:
    response = b"HTTP/1.1 500 Odd\r\n\r\n" + MEGABYTE
    with server(lambda client: client.sendall(response)) as url:
        answer, _ = fetch(url, read_body)
    assert isinstance(answer, bytes)
    assert 0 < len(answer) <= 65536


def test_headers_that_cannot_be_parsed_do_not_log_the_url(caplog: pytest.LogCaptureFixture) -> None:
    """The library logs the URL of such a response with its query, which may hold a token."""
    with server(lambda client: client.sendall(HEAD + b"odd header\r\n\r\n{}")) as url:
        fetch(url)
    assert "secret" not in caplog.text


@pytest.mark.parametrize("part", [b"[],", b"{},", b"0,"])
def test_body_of_too_many_values_is_refused(part: bytes) -> None:
    """32 MB of empty lists become 700 MB of objects, for each of four queries at the same time."""
    with pytest.raises(Failure, match="answers with too many values: more than 1048576 lists and objects"):
        parse_json(b"[" + part * 5_000_000 + b"0]")


def test_one_odd_number_or_text_leaves_the_rest_of_a_body_readable() -> None:
    body = b'{"a": ' + b"9" * 5000 + b', "b": "\xff", "c": 7}'
    assert parse_json(body) == {"a": float("inf"), "b": "\ufffd", "c": 7}


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://u:p@b1:9100/metrics?token=t#f", "http://b1:9100"),
        ("https://u:p/w@b1", "https://u:p"),
        ("http://[::1]:9100/", "http://[::1]:9100"),
        ("http://[::1/u:p@x", "http://(invalid)"),
    ],
)
def test_server_of_a_url_shows_scheme_host_and_port(url: str, shown: str) -> None:
    assert server_of(url) == shown
