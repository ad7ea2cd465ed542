from __future__ import annotations

from datetime import timedelta

import grpc
import pytest

from autothrottle.core import errors
from autothrottle.core.errors import (
    AutothrottleError,
    Conflict,
    Incomplete,
    Invalid,
    Missing,
    NotLeader,
    Unavailable,
)
from autothrottle.wire.errors import CODES, LEADER_ADDRESS, MAX_MESSAGE_BYTES, from_rpc_error, to_status


class Failed(grpc.RpcError):
    """A failed call as a client sees it."""

    def __init__(self, code: grpc.StatusCode, details: str, metadata: tuple[tuple[str, str], ...] = ()) -> None:
        self._code, self._details, self._metadata = code, details, metadata

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> tuple[grpc._Metadatum, ...]:
        return tuple(_Datum(key, value) for key, value in self._metadata)  # type: ignore[misc]


class _Datum:
    def __init__(self, key: str, value: str) -> None:
        self.key, self.value = key, value


def tree(root: type[AutothrottleError] = AutothrottleError) -> list[type[AutothrottleError]]:
    own = [kind for kind in root.__subclasses__() if kind.__module__ == errors.__name__]
    return [root, *(kind for child in own for kind in tree(child))]


def test_the_table_has_every_error_of_the_tree_and_nothing_else() -> None:
    assert set(CODES) == set(tree())
    assert len(tree()) == 7


def test_every_error_has_a_code_of_its_own_so_that_the_table_can_be_read_backwards() -> None:
    assert len(set(CODES.values())) == len(CODES)


@pytest.mark.parametrize("kind", tree(), ids=lambda kind: kind.__name__)
def test_an_error_comes_back_as_itself_with_its_message(kind: type[AutothrottleError]) -> None:
    code, message, metadata = to_status(kind("rate is -1; give > 0"))
    returned = from_rpc_error(Failed(code, message, metadata))
    assert type(returned) is kind
    assert str(returned) == "rate is -1; give > 0"


@pytest.mark.parametrize("address", ["10.0.0.7:4003", ""])
def test_not_leader_carries_the_leaders_address_there_and_back(address: str) -> None:
    code, message, metadata = to_status(NotLeader("another planner leads", address))
    assert metadata == (((LEADER_ADDRESS, address),) if address else ())
    returned = from_rpc_error(Failed(code, message, metadata))
    assert isinstance(returned, NotLeader)
    assert returned.leader_address == address


def test_a_subclass_has_the_code_of_its_nearest_ancestor() -> None:
    class Narrower(Invalid):
        pass

    assert to_status(Narrower("x"))[0] is grpc.StatusCode.INVALID_ARGUMENT


def test_a_deadline_is_unavailable_and_named() -> None:
    failed = Failed(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
    returned = from_rpc_error(failed, peer="discovery at 127.0.0.1:4001", deadline=timedelta(seconds=1.5))
    assert type(returned) is Unavailable
    assert "discovery at 127.0.0.1:4001 did not answer within 1.5 s" in str(returned)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.CANCELLED, Unavailable),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, Unavailable),
        (grpc.StatusCode.ALREADY_EXISTS, Conflict),
        (grpc.StatusCode.OUT_OF_RANGE, Invalid),
        (grpc.StatusCode.UNIMPLEMENTED, AutothrottleError),
        (grpc.StatusCode.UNAUTHENTICATED, AutothrottleError),
        (grpc.StatusCode.UNKNOWN, AutothrottleError),
    ],
)
def test_a_code_that_only_grpc_makes_is_folded_onto_the_tree_and_named(
    code: grpc.StatusCode, kind: type[AutothrottleError]
) -> None:
    returned = from_rpc_error(Failed(code, "no such method"), peer="planner at h:1")
    assert type(returned) is kind
    assert str(returned) == f"planner at h:1 answered {code.name}: no such method"


def test_every_code_that_grpc_knows_becomes_an_error_of_the_tree() -> None:
    for code in grpc.StatusCode:
        assert isinstance(from_rpc_error(Failed(code, "x")), AutothrottleError)


def test_an_rpc_error_that_never_became_a_call_is_an_error_of_the_tree() -> None:
    assert isinstance(from_rpc_error(grpc.RpcError("broken")), AutothrottleError)


def test_the_peer_is_named_when_it_cannot_be_reached() -> None:
    failed = Failed(grpc.StatusCode.UNAVAILABLE, "connection refused")
    assert str(from_rpc_error(failed, peer="applier at h:1")) == "applier at h:1: connection refused"


@pytest.mark.parametrize("character", ["x", "%", "ü", "\U0001f600", "\udc80"])
def test_a_message_of_any_length_fits_into_a_header(character: str) -> None:
    _, message, _ = to_status(Incomplete(character * 20_000))
    encoded = sum(1 if c == "x" else 3 * len(c.encode(errors="replace")) for c in message.removesuffix(" ... (cut)"))
    assert MAX_MESSAGE_BYTES - 12 <= encoded <= MAX_MESSAGE_BYTES


def test_a_message_that_fits_is_not_cut() -> None:
    assert to_status(Missing("y" * MAX_MESSAGE_BYTES))[1] == "y" * MAX_MESSAGE_BYTES
