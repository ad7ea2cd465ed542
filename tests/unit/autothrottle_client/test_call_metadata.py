"""Average and maximum throttle time of a client."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import grpc
import pytest

from autothrottle_client import AdminClient, Invalid, ThrottleTimes


class Details(grpc.ClientCallDetails):
    def __init__(self) -> None:
        self.method, self.timeout, self.metadata = "/m", 1.0, (("a", "b"),)
        self.credentials = self.wait_for_ready = self.compression = None


class Done:
    """A finished call with this trailing metadata."""

    def __init__(self, *metadata: tuple[str, str | bytes]) -> None:
        self._metadata = metadata or None

    def add_done_callback(self, callback: Any) -> None:
        callback(self)

    def trailing_metadata(self) -> Any:
        return self._metadata


def counted(times: ThrottleTimes, done: Done) -> Any:
    """Count a call; return the metadata with which it was made."""
    sent: list[Any] = []

    def call(details: Any, request: object) -> Done:
        sent.append(details.metadata)
        return done

    times.intercept_unary_unary(call, Details(), "request")
    return sent[0]


def test_average_and_maximum_are_those_of_the_responses_with_a_throttle_time() -> None:
    times = ThrottleTimes()
    assert (times.average, times.maximum) == (timedelta(0), timedelta(0))
    for milliseconds in ("0", "250", "50"):
        counted(times, Done(("request-throttle-time-ms", milliseconds)))
    for other in (Done(), Done(("request-throttle-time-ms", "soon")), Done(("x-bin", b"1"))):
        counted(times, other)
    assert (times.average, times.maximum) == (timedelta(milliseconds=100), timedelta(milliseconds=250))
    assert times.counted == 3


def test_the_client_id_is_added_to_the_metadata() -> None:
    assert counted(ThrottleTimes("ci"), Done()) == (("a", "b"), ("client-id", "ci"))
    assert counted(ThrottleTimes(), Done()) == (("a", "b"),)


@pytest.mark.parametrize("client_id", ["x" * 129, "ö", "a\nb"])
def test_an_invalid_client_id_is_refused(client_id: str) -> None:
    with pytest.raises(Invalid, match=r"client id .* is not valid; give 1 to 128 printable ASCII characters"):
        AdminClient("127.0.0.1:1", client_id=client_id)
