"""The grpcurl commands of docs/http-api.md, run like grpcurl: with the server's reflection only."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from autothrottle.adapters.grpc import PlannerServiceClient
from autothrottle.adapters.memory import MemoryMembership, MemoryMetrics
from autothrottle.admin.servicer import AdminServicer
from autothrottle.planner.servicer import PlannerServicer
from autothrottle.runtime.configuration_reader import parse
from autothrottle.runtime.server import ServiceServer
from autothrottle.topicmappr import execution
from autothrottle.v1 import admin_pb2_grpc, planner_pb2_grpc
from autothrottle_client import throttlectl
from tests import builders
from tests.builders import eventually, mb
from tests.in_process_services import BROKERS, InProcessServices
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "http-api.md").read_text("utf-8")
SECONDS = 60


class Grpcurl:
    """Runs `grpcurl -plaintext [-d JSON] ADDRESS list|METHOD`, given as a list of words."""

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
        """Yield its output: service names, or one JSON object per answer."""
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
def services() -> Iterator[InProcessServices]:
    metrics = MemoryMetrics(*(builders.load(b, outbound=mb(20), inbound=mb(10)) for b in BROKERS))
    with InProcessServices(metrics, metrics) as built:
        built.start_planners()
        eventually(lambda: built.planners[0].state().last_cycle)
        yield built


@pytest.fixture
def server(services: InProcessServices) -> Iterator[str]:
    """A server with the services of the public server of `autothrottle run`."""
    with ExitStack() as stack:
        leading = PlannerServiceClient([services.address("planner-1")])
        stack.callback(leading.close)
        admin = AdminServicer(
            services.overrides,
            leading,
            services.cluster,
            services.cluster,
            MemoryMembership(services.members),
            services.pauses,
            services.estimator,
            services.catch_ups,
            services.request_quotas,
            services.plan_check,
        )
        servicers: list[tuple[Callable[[Any, grpc.Server], None], object, str]] = [
            (admin_pb2_grpc.add_AdminServiceServicer_to_server, admin, "autothrottle.v1.AdminService"),
            (
                planner_pb2_grpc.add_PlannerServiceServicer_to_server,
                PlannerServicer(services.planners[0]),
                "autothrottle.v1.PlannerService",
            ),
        ]
        yield stack.enter_context(ServiceServer("run", servicers)).address


def lines() -> dict[str, list[str]]:
    """Method name of each grpcurl line -> its words."""
    found = [shlex.split(line) for line in PAGE.splitlines() if line.startswith("grpcurl ")]
    return {words[-1].rpartition("/")[2]: words for words in found}


def test_the_page_has_examples_for_list_set_and_watch() -> None:
    assert lines().keys() >= {"list", "SetOverride", "WatchCycles"}


def test_the_examples_and_the_clients_use_the_address_at_which_run_listens() -> None:
    """`run` listened on any free port, so that throttlectl did not find it without an option."""
    listen = parse([], {}).grpc_listen
    assert {Grpcurl(words, listen).address for words in lines().values()} == {listen}
    assert listen == throttlectl.DEFAULT_ADDRESS == execution.DEFAULT_ADMIN_ADDRESS


def test_the_examples_work_in_their_order(services: InProcessServices, server: str) -> None:
    printed: dict[str, Any] = {}
    for name, words in lines().items():
        with Grpcurl(words, server) as grpcurl:
            answers = grpcurl.run()
            printed[name] = list(answers) if name == "list" else next(answers)
        if name == "SetOverride":
            body = json.loads(words[words.index("-d") + 1])["override"]
            current = services.overrides.read_overrides().brokers
            assert {b: o.rate for b, o in current.items()} == {body["brokerId"]: int(body["rateBytesPerSecond"])}
    assert {"autothrottle.v1.AdminService", "autothrottle.v1.PlannerService"} <= set(printed["list"])
    assert printed["SetOverride"]["override"]["rateBytesPerSecond"] == "50000000"
    assert printed["RemoveOverride"] == {} and services.overrides.read_overrides().brokers == {}
    assert printed["GetClusterState"]["leaderAddress"] == services.address("planner-1")
    assert printed["WatchCycles"]["cycle"]["term"] == "1"
