"""The grpcurl lines of the README as printed, carried out as grpcurl does: with nothing but the server's reflection."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from autothrottle.adapters.memory import MemoryMembership, MemoryMetrics
from autothrottle.adapters.rpc import PlannerClient
from autothrottle.admin.servicer import AdminServicer
from autothrottle.planner.servicer import PlannerServicer
from autothrottle.runtime.configuration_reader import parse
from autothrottle.runtime.server import ServiceServer
from autothrottle.v1 import admin_pb2_grpc, planner_pb2_grpc
from tests import builders
from tests.builders import eventually, mb
from tests.services.house import BROKERS, House

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
SECONDS = 60


class Grpcurl:
    """What `grpcurl -plaintext [-d JSON] ADDRESS list|METHOD` does, given the words of such a line."""

    def __init__(self, words: list[str], address: str) -> None:
        assert words[:2] == ["grpcurl", "-plaintext"], words
        rest = words[2:]
        self._body = rest.pop(rest.index("-d") + 1) if "-d" in rest else ""
        self.address, self.method = [word for word in rest if word != "-d"]
        self._channel = grpc.insecure_channel(address)

    def __enter__(self) -> Grpcurl:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def run(self) -> Iterator[Any]:
        """Yield what it prints: names, or an object for each answer."""
        database = ProtoReflectionDescriptorDatabase(self._channel)
        if self.method == "list":
            yield from database.get_services()
            return
        service, _, name = self.method.rpartition("/")
        method = DescriptorPool(database).FindServiceByName(service).methods_by_name[name]
        request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        codecs: dict[str, Any] = {
            "request_serializer": request.SerializeToString,
            "response_deserializer": response.FromString,
        }
        message = json_format.Parse(self._body or "{}", request())
        if method.server_streaming:
            stream: Any = self._channel.unary_stream(f"/{self.method}", **codecs)
            yield from map(json_format.MessageToDict, stream(message, timeout=SECONDS))
        else:
            call: Any = self._channel.unary_unary(f"/{self.method}", **codecs)
            yield json_format.MessageToDict(call(message, timeout=SECONDS))


@pytest.fixture
def house() -> Iterator[House]:
    metrics = MemoryMetrics(*(builders.load(b, tx=mb(20), rx=mb(10)) for b in BROKERS))
    with House(metrics, metrics) as built:
        built.start_planners()
        eventually(lambda: built.planners[0].state().last_cycle)
        yield built


@pytest.fixture
def server(house: House) -> Iterator[str]:
    """One server with what that of `autothrottle run` has."""
    with ExitStack() as stack:
        leading = PlannerClient([house.address("planner-1")])
        stack.callback(leading.close)
        admin = AdminServicer(
            house.overrides,
            leading,
            house.cluster,
            house.cluster,
            MemoryMembership(house.members),
            house.pauses,
            house.estimator,
            house.catch_ups,
        )
        servicers: list[tuple[Callable[[Any, grpc.Server], None], object, str]] = [
            (admin_pb2_grpc.add_AdminServiceServicer_to_server, admin, "autothrottle.v1.AdminService"),
            (
                planner_pb2_grpc.add_PlannerServiceServicer_to_server,
                PlannerServicer(house.planners[0]),
                "autothrottle.v1.PlannerService",
            ),
        ]
        yield stack.enter_context(ServiceServer("run", servicers)).address


def lines() -> dict[str, list[str]]:
    """The last word of each line -> its words."""
    found = [shlex.split(line) for line in README.splitlines() if line.startswith("grpcurl ")]
    return {words[-1].rpartition("/")[2]: words for words in found}


def test_the_readme_lists_sets_and_watches() -> None:
    assert lines().keys() >= {"list", "SetOverride", "WatchCycles"}


def test_the_lines_ask_where_the_start_of_the_readme_listens() -> None:
    (listen,) = {parse([word, value], {}).addresses.grpc_listen for word, value in flags("--grpc-listen")}
    assert {Grpcurl(words, listen).address for words in lines().values()} == {listen}


def flags(name: str) -> Iterator[tuple[str, str]]:
    words = README.split()
    yield from ((word, value) for word, value in pairwise(words) if word == name and "." in value)


def test_the_lines_work_as_printed_one_after_the_other(house: House, server: str) -> None:
    printed: dict[str, Any] = {}
    for name, words in lines().items():
        with Grpcurl(words, server) as grpcurl:
            answers = grpcurl.run()
            printed[name] = list(answers) if name == "list" else next(answers)
        if name == "SetOverride":
            body = json.loads(words[words.index("-d") + 1])["override"]
            standing = house.overrides.read_overrides().brokers
            assert {b: o.rate for b, o in standing.items()} == {body["brokerId"]: int(body["rateBytesPerSecond"])}
    assert {"autothrottle.v1.AdminService", "autothrottle.v1.PlannerService"} <= set(printed["list"])
    assert printed["SetOverride"]["override"]["rateBytesPerSecond"] == "50000000"
    assert printed["RemoveOverride"] == {} and house.overrides.read_overrides().brokers == {}
    assert printed["GetClusterState"]["leaderAddress"] == house.address("planner-1")
    assert printed["WatchCycles"]["cycle"]["term"] == "1"
