"""Every gRPC method and every HTTP route with every kind of caller: exactly the allowed calls pass."""

from __future__ import annotations

import http.client
import importlib
import logging
import pkgutil
import re
import ssl
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from starlette.routing import Route

import autothrottle.v1
import autothrottle_client.errors as errors
from autothrottle.adapters.credentials import ServiceCertificates, TlsFiles, Tokens
from autothrottle.core.access import Caller, Role, parse_certificate_roles
from autothrottle.core.errors import Conflict, Forbidden, Invalid, Unauthenticated
from autothrottle.gateway import rest
from autothrottle.gateway.live import AdminReading, LiveView
from autothrottle.gateway.server import GatewayServer
from autothrottle.gateway.web import EVENTS_PATH, SERVICE, SERVICES, application
from autothrottle.runtime.access import (
    OPEN_ENDPOINTS,
    Access,
    AccessInterceptor,
    author,
    method_role,
    require_role,
    role_of_path,
)
from autothrottle.runtime.call_limits import SPARE_REFUSALS
from autothrottle.runtime.server import Servicer, ServiceServer
from autothrottle.v1 import admin_pb2
from autothrottle.v1.admin_pb2_grpc import AdminServiceServicer, AdminServiceStub, add_AdminServiceServicer_to_server
from autothrottle.wire.common import Metadata
from autothrottle_client import AdminClient
from autothrottle_client.throttlectl import main as throttlectl
from tests.builders import eventually
from tests.paths import CERTIFICATES

VIEWER = {
    *("ListOverrides", "GetOverride", "ListAuditRecords", "GetClusterState", "ListReassignments"),
    *(
        "EstimateReassignment",
        "CheckCancellation",
        "GetState",
        "WatchCycles",
        "Check",
        "Watch",
        "List",
        "ServerReflectionInfo",
    ),
    *(
        "GetPoolStatus",
        "GetCapacity",
        "GetForecast",
        "ListRequestQuotas",
        "ListQuotas",
        "DescribeQuota",
    ),
    "ListYieldRules",
}
OPERATOR = {
    *("SetOverride", "RemoveOverride", "RequestCycle", "SubmitReassignment", "CancelReassignment"),
    *("StartCatchUp", "StopCatchUp", "Pause", "Resume", "SetRequestQuota", "RemoveRequestQuota"),
    *("SetQuota", "RemoveQuota", "SetYieldRule", "RemoveYieldRule"),
    "Rebuild",
    "Rebalance",
    "Scale",
    "Decommission",
    "PlanPools",
}
"""Names of the methods that a viewer and an operator may call; only services may call the others."""

ROLES = parse_certificate_roles('{"view*":"viewer","autothrottle":"operator","*vice.example":"service"}')
PEMS = {"viewer": "viewer", "operator": "client", "service": "service", "foreign": "renewed", "expired": "expired"}
"""Caller -> its certificate; the authorities of the servers do not include that of the foreign one."""
TOKENS = {role: role * 4 for role in ("viewer", "operator", "service")}

SECONDS = 20.0


def services() -> dict[str, tuple[ServiceDescriptor, Any]]:
    """Full name -> (descriptor, generated module) of every service in the package."""
    found = {}
    for module in pkgutil.iter_modules(autothrottle.v1.__path__, "autothrottle.v1."):
        if module.name.endswith("_pb2"):
            generated = importlib.import_module(f"{module.name}_grpc")
            for service in importlib.import_module(module.name).DESCRIPTOR.services_by_name.values():
                found[service.full_name] = service, generated
    return found


def methods() -> list[MethodDescriptor]:
    return [method for service, _ in services().values() for method in service.methods]


def paths() -> list[str]:
    """The path of every gRPC method, also of health and reflection."""
    foreign = [f"/{OPEN_ENDPOINTS['health']}/{name}" for name in ("Check", "Watch", "List")]
    foreign.append(f"/{OPEN_ENDPOINTS['reflection']}/ServerReflectionInfo")
    return [f"/{method.containing_service.full_name}/{method.name}" for method in methods()] + foreign


def needed(path: str) -> Role:
    """The role that a gRPC method must need, independent of the protos."""
    service, _, name = path.rpartition("/")
    if name in VIEWER:
        return Role.VIEWER
    of_operators = name in OPERATOR and service.endswith(("AdminService", "PlacementService", "QuotaService"))
    return Role.OPERATOR if of_operators else Role.SERVICE


class Refusing:
    """An admin service whose every answer is Conflict: the call was allowed."""

    def call(self, method: str, request: Message, timeout: timedelta, metadata: Metadata) -> Message:
        raise Conflict("allowed")


@dataclass(frozen=True, slots=True)
class Deployment:
    """A server of all services and a gateway, with the same credentials."""

    grpc_address: str
    http_address: str
    has_tls: bool

    def codes(self, paths: Iterable[str], caller: str) -> dict[str, grpc.StatusCode]:
        """Path -> the status of a gRPC call with an empty request, all on one connection.

        The status of a stream is that of its beginning.
        """
        metadata = () if self.has_tls or not caller else (("authorization", bearer(caller)),)
        found = {}
        with self._channel(caller) as channel:
            for path in paths:
                call: Any = channel.unary_stream(path)(b"", timeout=SECONDS, metadata=metadata)  # type: ignore[arg-type]
                try:
                    next(call, None)
                    found[path] = grpc.StatusCode.OK
                except grpc.RpcError as error:
                    found[path] = error.code()
                finally:
                    call.cancel()
        return found

    def statuses(self, requests: Iterable[tuple[str, str]], caller: str) -> list[int]:
        """The status of each HTTP request, all on one connection; 0: the server refused the handshake."""
        connection = http.client.HTTPConnection(self.http_address, timeout=SECONDS)
        if self.has_tls:
            connection = http.client.HTTPSConnection(self.http_address, timeout=SECONDS, context=context_of(caller))
        headers = {"authorization": bearer(caller)} if caller and not self.has_tls else {}
        found = []
        for verb, target in requests:
            try:
                connection.request(verb, target, headers=headers)
                response = connection.getresponse()
                response.read()
                found.append(response.status)
            except OSError:
                connection.close()
                found.append(0)
        connection.close()
        return found

    def _channel(self, caller: str) -> grpc.Channel:
        if not self.has_tls:
            return grpc.insecure_channel(self.grpc_address)
        pem = (CERTIFICATES / f"{PEMS[caller]}.pem").read_bytes() if caller else None
        credentials = grpc.ssl_channel_credentials((CERTIFICATES / "ca.pem").read_bytes(), pem, pem)
        return grpc.secure_channel(self.grpc_address, credentials)


@cache
def context_of(caller: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(CERTIFICATES / "ca.pem"))
    if caller:
        context.load_cert_chain(CERTIFICATES / f"{PEMS[caller]}.pem")
    return context


def bearer(caller: str) -> str:
    return f"Bearer {TOKENS.get(caller, 'unknown' * 4)}"


def all_servicers() -> list[Servicer]:
    """Every service, each with the generated servicer, whose methods fail after the caller is admitted."""
    return [
        (getattr(generated, f"add_{s.name}Servicer_to_server"), getattr(generated, f"{s.name}Servicer")(), s.full_name)
        for s, generated in services().values()
    ]


@pytest.fixture(scope="module", params=["tls", "tokens"])
def deployment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    directory, has_tls = tmp_path_factory.mktemp("access"), request.param == "tls"
    authorities, tokens = directory / "ca.pem", directory / "tokens"
    trusted = ("ca", "viewer", "service", "expired")
    authorities.write_text("".join((CERTIFICATES / f"{name}.pem").read_text() for name in trusted))
    tokens.write_text("".join(f"{role} {token} {role}\n" for role, token in TOKENS.items()))
    server = str(CERTIFICATES / "server.pem")
    tls = ServiceCertificates(TlsFiles(server, server, str(authorities))) if has_tls else None
    access = Access(ROLES) if has_tls else Access(tokens=Tokens(str(tokens)))
    access.wrong_tokens.ended.set()  # refusals of wrong tokens are not delayed
    with ExitStack() as stack:
        credentials = tls.server_credentials() if tls else None
        services = ServiceServer("all", all_servicers(), access=AccessInterceptor(access), credentials=credentials)
        stack.enter_context(services)
        context = tls.http_context if tls else None
        gateway = GatewayServer(
            Refusing(),
            "0.0.0.0:0",
            access=access,
            tls=context,
            metrics=lambda: "",
            live=LiveView(AdminReading(Refusing())),
            recoveries=dict,
        )
        stack.enter_context(gateway)
        yield Deployment(services.address, gateway.address.replace("0.0.0.0", "127.0.0.1"), has_tls)


CALLERS = ("", "viewer", "operator", "service", "foreign", "expired")
"""The empty name is a caller without credentials. Over tokens, a foreign and an expired caller have unknown tokens."""


@pytest.mark.parametrize("caller", CALLERS)
def test_every_grpc_method_admits_exactly_the_callers_with_its_role(deployment: Deployment, caller: str) -> None:
    """Every certificate of the authorities could call the applier, and every local process everything."""
    wrong: dict[str, grpc.StatusCode] = {}
    for path, code in deployment.codes(paths(), caller).items():
        if caller in TOKENS:
            is_right = (code is grpc.StatusCode.PERMISSION_DENIED) == (Role[caller.upper()] < needed(path))
            is_right &= code not in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE)
        else:
            refused = grpc.StatusCode.UNAVAILABLE if deployment.has_tls else grpc.StatusCode.UNAUTHENTICATED
            is_right = code is refused
        wrong |= {} if is_right else {path: code}
    assert wrong == {}


PUBLIC = (
    *("/", "/api", "/openapi.json", "/healthz", "/readyz"),
    *("/page/static/{name}", "/page/session", "/page/logout"),
)


def routes() -> Iterator[tuple[str, str, Role | None]]:
    """(Verb, path, needed role) of every route; None: it is public."""
    bindings = {(one.verb, one.path): one.method for service in SERVICES for one in rest.bindings(service)}
    live = LiveView(AdminReading(Refusing()))
    for route in application(Refusing(), 1, Access(), (), metrics=lambda: "", live=live, recoveries=dict).routes:
        assert isinstance(route, Route) and route.methods
        for verb in sorted(route.methods - {"HEAD"}):
            if route.path in ("/page/login", EVENTS_PATH):  # the first has no credentials yet, and the second no end
                continue
            if route.path in PUBLIC:
                role = None
            elif route.path.startswith(("/metrics", "/page/")):
                role = Role.VIEWER
            elif route.path.startswith("/throttle"):
                role = Role.VIEWER if verb == "GET" else Role.OPERATOR
            else:
                method = bindings[verb, route.path]
                role = needed(f"/{method.containing_service.full_name}/{method.name}")
            yield verb, re.sub(r"\{.*?\}", "1", route.path.replace("{name}", "index.html")), role
    yield "HEAD", EVENTS_PATH, Role.VIEWER


@pytest.mark.parametrize("caller", CALLERS)
def test_every_http_route_admits_exactly_the_callers_with_its_role(deployment: Deployment, caller: str) -> None:
    wrong: dict[tuple[str, str], int] = {}
    known = list(routes())
    statuses = deployment.statuses([(verb, path) for verb, path, _ in known], caller)
    for (verb, path, role), status in zip(known, statuses, strict=True):
        if caller in ("foreign", "expired") and deployment.has_tls:
            is_right = status == 0
        elif role is None:
            is_right = status == 200
        elif caller in TOKENS:
            is_right = (status == 403) == (Role[caller.upper()] < role) and status not in (0, 401, 404)
        else:
            is_right = status == 401
        wrong |= {} if is_right else {(verb, path): status}
    assert wrong == {}


def test_every_method_has_the_role_in_its_proto() -> None:
    assert len(methods()) > 25
    assert {method.full_name: method_role(method) for method in methods()} == {
        method.full_name: needed(f"/{method.containing_service.full_name}/{method.name}") for method in methods()
    }


def test_a_method_without_a_role_is_refused_to_every_caller() -> None:
    with pytest.raises(Forbidden, match="Apply has no role, so it is refused"):
        require_role(Caller(role=Role.SERVICE), None, "Apply")
    # Of another package, without our option.
    assert role_of_path("/google.protobuf.no.Such/Method") is Role.VIEWER, "the server answers UNIMPLEMENTED"


def test_without_credentials_a_process_is_open() -> None:
    assert Access().caller([], "") == Caller(role=Role.SERVICE, is_proven=False)


def test_a_certificate_without_a_role_is_known_and_may_do_nothing() -> None:
    found = Access(ROLES).caller(["guest", "guest.example"], "")
    assert found == Caller("guest")
    with pytest.raises(Forbidden, match=r"guest has no role, and GetState needs viewer. Fix: .*certificate-roles"):
        require_role(found, Role.VIEWER, "GetState")


def test_a_token_beats_a_certificate_and_an_unknown_token_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"anna {'a' * 16}\nbert {'b' * 16} viewer\n")
    access = Access(ROLES, Tokens(str(file)))
    assert access.caller(["service", "service.example"], f"Bearer {'b' * 16}") == Caller("bert", Role.VIEWER)
    assert access.caller([], f"Bearer {'a' * 16}") == Caller("anna", Role.OPERATOR)
    assert access.caller(["service", "service.example"], "") == Caller("service", Role.SERVICE)
    with pytest.raises(Unauthenticated, match="the token is unknown"):
        access.caller(["service", "service.example"], "Bearer x")
    with pytest.raises(Unauthenticated, match="send `Authorization: Bearer TOKEN` or use a client certificate"):
        access.caller([], "")


@pytest.mark.parametrize("text", ["[]", "1", '"a"', "{", "[[1]]", '{"a":1}', '{"a":"VIEWER"}', '{"a":"x"}'])
def test_invalid_certificate_roles_are_refused(text: str) -> None:
    with pytest.raises(Invalid):
        parse_certificate_roles(text)


def test_a_unix_socket_is_a_service_whatever_else_is_configured(tmp_path: Path) -> None:
    access = AccessInterceptor(Access(ROLES))
    with ServiceServer("all", all_servicers(), f"unix:{tmp_path}/s", access=access) as server:
        local = Deployment(server.address, "", has_tls=False)
        codes = set(local.codes(paths(), "").values())
    assert not codes & {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}


@pytest.mark.parametrize("opened", [(), ("health",), ("reflection",), ("health", "reflection")])
def test_health_and_reflection_need_credentials_unless_they_are_open(opened: tuple[str, ...]) -> None:
    access = Access(ROLES, open_endpoints=opened)
    with ServiceServer("all", all_servicers(), access=AccessInterceptor(access)) as server:
        plain = Deployment(server.address, "", has_tls=False)
        for path, code in plain.codes(paths(), "").items():
            is_open = any(path.startswith(f"/{OPEN_ENDPOINTS[name]}/") for name in opened)
            assert (code is grpc.StatusCode.UNAUTHENTICATED) != is_open, path


@pytest.mark.parametrize("method", ["RunCycle", "SubmitReassignment", "WatchCycles"])
def test_the_request_of_a_refused_caller_is_not_received(method: str) -> None:
    """The request was received and decoded before its caller was checked: 4 MB, or 64 MB for the applier."""
    ended = threading.Event()

    def late() -> Iterator[bytes]:
        ended.wait()
        yield b""

    with (
        ServiceServer("all", all_servicers(), access=AccessInterceptor(Access(ROLES))) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        call: Any = channel.stream_stream(f"/autothrottle.v1.PlannerService/{method}")
        try:
            with pytest.raises(grpc.RpcError) as refused:
                next(call(late(), timeout=SECONDS))
        finally:
            ended.set()
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_refusals_are_logged_once_a_second_with_their_number(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    access = Access(clock=lambda: now[0])
    with caplog.at_level(logging.WARNING):
        for _ in range(1_000):
            access.log_refusal("HTTP 401", "GET '/v1/state'")
            access.log_refusal("HTTP 403", "POST '/throttle'")
        now[0] += 1
        access.log_refusal("HTTP 401", "GET '/v1/state'")
    assert caplog.messages == [
        "Refused with HTTP 401: GET '/v1/state'",
        "Refused with HTTP 403: POST '/throttle'",
        "Refused with HTTP 401: GET '/v1/state' (999 more refusals of this kind since the last line)",
    ]


class Authors(AdminServiceServicer):
    """Answers every list of overrides with the author of the call."""

    def ListOverrides(
        self, request: admin_pb2.ListOverridesRequest, context: grpc.ServicerContext
    ) -> admin_pb2.ListOverridesResponse:
        return admin_pb2.ListOverridesResponse(warnings=[author(context)])


@pytest.mark.parametrize(
    ("caller", "wanted"),
    [
        ("service", r"10\.0\.0\.9:5000 through service at ipv4:127\.0\.0\.1:\d+"),
        ("operator", r"operator at ipv4:127\.0\.0\.1:\d+"),
        ("viewer", r"viewer at ipv4:127\.0\.0\.1:\d+"),
    ],
)
def test_only_a_service_may_name_the_client_on_whose_behalf_it_calls(caller: str, wanted: str, tmp_path: Path) -> None:
    """Any caller could name another one in `forwarded-for`, and the audit recorded that one."""
    (tmp_path / "tokens").write_text("".join(f"{role} {token} {role}\n" for role, token in TOKENS.items()))
    access = Access(tokens=Tokens(str(tmp_path / "tokens")))
    servicer: Servicer = (add_AdminServiceServicer_to_server, Authors(), SERVICE.full_name)  # type: ignore[abstract]
    metadata = (("authorization", bearer(caller)), ("forwarded-for", "10.0.0.9:5000"))
    with (
        ServiceServer("admin", [servicer], access=AccessInterceptor(access)) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        stub, request = AdminServiceStub(channel), admin_pb2.ListOverridesRequest()
        (found,) = stub.ListOverrides(request, timeout=SECONDS, metadata=metadata).warnings
    assert re.fullmatch(wanted, found), found


def test_the_client_package_sends_its_token_with_every_call(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"anna {'a' * 16} viewer\n")
    access = Access(tokens=Tokens(str(tmp_path / "tokens")))
    servicer: Servicer = (add_AdminServiceServicer_to_server, Authors(), SERVICE.full_name)  # type: ignore[abstract]
    with ServiceServer("admin", [servicer], access=AccessInterceptor(access)) as server:
        with AdminClient(server.address, token="a" * 16) as admin:
            _, (found,) = admin.list_overrides()
            assert found.startswith("anna at ipv4:127.0.0.1:")
            with pytest.raises(errors.Forbidden, match="anna has the role viewer, and RemoveOverride needs operator"):
                admin.remove_override()
        with AdminClient(server.address) as admin, pytest.raises(errors.Unauthenticated, match="no credentials"):
            admin.list_overrides()


def test_throttlectl_sends_the_token_of_its_file_or_variable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, mine = tmp_path / "tokens", tmp_path / "token"
    tokens.write_text(f"anna {'a' * 16} viewer\nbert {'b' * 16} viewer\n")
    mine.write_text(f"{'a' * 16}\n")
    servicer: Servicer = (add_AdminServiceServicer_to_server, Authors(), SERVICE.full_name)  # type: ignore[abstract]
    access = AccessInterceptor(Access(tokens=Tokens(str(tokens))))
    with ServiceServer("admin", [servicer], access=access) as server:
        get = ["get", "--addr", server.address]
        monkeypatch.setenv("AUTOTHROTTLE_TOKEN", "b" * 16)
        assert throttlectl([*get, "--token-file", str(mine)]) == 0
        assert "warning: anna at ipv4:" in capsys.readouterr().err
        assert throttlectl(get) == 0
        assert "warning: bert at ipv4:" in capsys.readouterr().err
        monkeypatch.setenv("AUTOTHROTTLE_TOKEN", "")
        assert throttlectl(get) == 1
        assert "the request has no credentials; send `Authorization: Bearer TOKEN`" in capsys.readouterr().err
        assert throttlectl([*get, "--token-file", str(tmp_path / "absent")]) == 2
        assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["10.255.255.1:1", "admin.example:1", "[2001:db8::1]:1"])
def test_the_client_package_does_not_send_a_token_over_a_plain_connection_to_another_host(address: str) -> None:
    with AdminClient(address, token="a" * 16) as admin, pytest.raises(errors.Invalid, match="the token is not sent to"):
        admin.list_overrides()


@pytest.mark.parametrize("token", ["a b", "ü" * 16, "a\n"])
def test_a_token_that_a_header_cannot_hold_is_refused(token: str) -> None:
    with pytest.raises(errors.Invalid, match="the token has characters other than printable ASCII"):
        AdminClient("127.0.0.1:1", token=token)


def test_over_grpc_wrong_tokens_wait_and_a_valid_one_does_not(tmp_path: Path) -> None:
    """Wrong tokens were refused as fast as they came. A delayed refusal must not take the threads of other callers."""
    (tmp_path / "tokens").write_text("".join(f"{role} {token} {role}\n" for role, token in TOKENS.items()))
    access = Access(tokens=Tokens(str(tmp_path / "tokens")))
    for _ in range(300):
        with access.wrong_tokens.refusal("ipv4:127.0.0.1"):
            pass
    servicer: Servicer = (add_AdminServiceServicer_to_server, Authors(), SERVICE.full_name)  # type: ignore[abstract]
    with (
        ServiceServer("admin", [servicer], access=AccessInterceptor(access)) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        method, request = AdminServiceStub(channel).ListOverrides, admin_pb2.ListOverridesRequest()
        wrong = [
            method.future(request, timeout=SECONDS, metadata=(("authorization", f"Bearer {'x' * 16}"),))
            for _ in range(SPARE_REFUSALS)
        ]
        eventually(lambda: access.wrong_tokens._delayed == SPARE_REFUSALS)
        method(request, timeout=SECONDS, metadata=(("authorization", bearer("viewer")),))
        assert not any(call.done() for call in wrong)
        access.wrong_tokens.ended.set()  # the request to stop
        assert {call.code() for call in wrong} == {grpc.StatusCode.UNAUTHENTICATED}
