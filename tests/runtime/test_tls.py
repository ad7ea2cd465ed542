"""Mutual TLS between a service and those who call it; the certificates are those of tests/adapters/tls."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path

import grpc
import pytest

from autothrottle.adapters.endpoints import Endpoints
from autothrottle.adapters.tls import Tls, TlsFiles
from autothrottle.core.errors import Invalid, Unavailable
from autothrottle.runtime.server import ServiceServer
from autothrottle.v1 import admin_pb2
from autothrottle.v1.admin_pb2_grpc import AdminServiceServicer, AdminServiceStub, add_AdminServiceServicer_to_server
from autothrottle_client import AdminClient
from autothrottle_client import Tls as ClientTls
from autothrottle_client import Unavailable as ClientUnavailable

PEMS = Path(__file__).parents[1] / "adapters" / "tls"
CA, SERVER, CLIENT, ELSEWHERE, RENEWED = (
    str(PEMS / f"{name}.pem") for name in ("ca", "server", "client", "elsewhere", "renewed")
)
"""All but the last, which nobody but itself has signed, are signed by the first."""
PATIENT, SHORT = timedelta(seconds=60), timedelta(seconds=1.5)


class Callers(AdminServiceServicer):
    """Answers every list of overrides with whom the caller's certificate names."""

    def ListOverrides(
        self, request: admin_pb2.ListOverridesRequest, context: grpc.ServicerContext
    ) -> admin_pb2.ListOverridesResponse:
        names = context.auth_context().get("x509_common_name", ())
        return admin_pb2.ListOverridesResponse(warnings=[bytes(name).decode() for name in names])


def files(certificate: str, server_name: str = "", authorities: str = CA) -> TlsFiles:
    return TlsFiles(certificate, certificate, authorities, server_name)


Serve = Callable[..., ServiceServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:

        def start(certificate: str, listen: str = "127.0.0.1:0", authorities: str = CA) -> ServiceServer:
            service = (add_AdminServiceServicer_to_server, Callers(), "autothrottle.v1.AdminService")  # type: ignore[abstract]
            credentials = Tls(files(certificate, authorities=authorities)).server_credentials()
            return stack.enter_context(ServiceServer("admin", [service], listen, credentials=credentials))

        yield start


def asked(channel: grpc.Channel, seconds: float) -> list[str]:
    request = admin_pb2.ListOverridesRequest()
    return list(AdminServiceStub(channel).ListOverrides(request, timeout=seconds).warnings)


def ask(address: str, tls: Tls | None, timeout: timedelta = PATIENT) -> Sequence[str]:
    with closing(Endpoints("admin", [address], tls=tls)) as endpoints:
        return endpoints.call(asked, timeout)


def test_services_know_one_another_by_their_certificates(serve: Serve) -> None:
    server = serve(SERVER)
    assert ask(server.address, Tls(files(CLIENT))) == ["autothrottle"]
    assert ask(f"localhost:{server.address.rpartition(':')[2]}", Tls(files(CLIENT))) == ["autothrottle"]


def test_whoever_has_no_certificate_of_the_authorities_is_not_answered(serve: Serve) -> None:
    server = serve(SERVER)
    with pytest.raises(Unavailable):
        ask(server.address, None, SHORT)
    credentials = grpc.ssl_channel_credentials(Path(CA).read_bytes())
    with grpc.secure_channel(server.address, credentials) as channel, pytest.raises(grpc.RpcError) as caught:
        asked(channel, 10)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_server_whose_certificate_bears_another_name_is_not_talked_to_unless_that_name_is_wanted(
    serve: Serve,
) -> None:
    server = serve(ELSEWHERE)
    with pytest.raises(Unavailable):
        ask(server.address, Tls(files(CLIENT)), SHORT)
    assert ask(server.address, Tls(files(CLIENT, "elsewhere.example"))) == ["autothrottle"]


def test_a_unix_socket_needs_no_certificate(serve: Serve, tmp_path: Path) -> None:
    address = serve(SERVER, f"unix:{tmp_path}/admin.sock").address
    assert ask(address, None) == []
    assert ask(address, Tls(files(CLIENT))) == []


def test_certificates_are_renewed_without_a_restart_on_both_sides(serve: Serve, tmp_path: Path) -> None:
    ours, theirs, both = (str(tmp_path / name) for name in ("ours.pem", "theirs.pem", "both.pem"))
    Path(both).write_bytes(Path(CA).read_bytes() + Path(RENEWED).read_bytes())
    shutil.copy(SERVER, theirs)
    shutil.copy(CLIENT, ours)
    server = serve(theirs, authorities=both)
    with closing(Endpoints("admin", [server.address], tls=Tls(files(ours)))) as endpoints:
        assert endpoints.call(asked, PATIENT) == ["autothrottle"]
        shutil.copy(RENEWED, ours)
        assert endpoints.call(asked, PATIENT) == ["renewed"]
        # Half of a renewal: what was there before stays in use.
        Path(ours).write_text("-----BEGIN CERTIFICATE-----")
        assert endpoints.call(asked, PATIENT) == ["renewed"]
    shutil.copy(ELSEWHERE, theirs)
    assert ask(server.address, Tls(files(CLIENT, "elsewhere.example"))) == ["autothrottle"]


def test_the_client_package_speaks_mutual_tls_too(serve: Serve) -> None:
    address = serve(SERVER).address
    with AdminClient(address, PATIENT, ClientTls(CLIENT, CLIENT, CA)) as admin:
        assert admin.list_overrides() == ((), ("autothrottle",))
    with AdminClient(address, SHORT) as plain, pytest.raises(ClientUnavailable):
        plain.list_overrides()


def test_the_client_package_follows_renewals_and_what_is_under_way_goes_on(serve: Serve, tmp_path: Path) -> None:
    """A channel connects again with the certificate of its beginning: after its end no call came through any more."""
    ours, both = str(shutil.copy(CLIENT, tmp_path / "ours.pem")), str(tmp_path / "both.pem")
    Path(both).write_bytes(Path(CA).read_bytes() + Path(RENEWED).read_bytes())
    server = serve(SERVER, authorities=both)
    with AdminClient(server.address, PATIENT, ClientTls(ours, ours, CA)) as admin:
        assert admin.list_overrides()[1] == ("autothrottle",)
        before = admin._replicas.peer(admin._replicas.addresses[0])
        shutil.copy(RENEWED, ours)
        assert admin.list_overrides()[1] == ("renewed",)
        assert asked(before.channel, PATIENT.total_seconds()) == ["autothrottle"]
        for half in (lambda: Path(ours).write_text("-----BEGIN CERTIFICATE-----"), Path(ours).unlink):
            half()
            assert admin.list_overrides()[1] == ("renewed",)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (TlsFiles("/nowhere.pem", CLIENT, CA), "'/nowhere.pem' cannot be read: No such file"),
        (TlsFiles(CLIENT, SERVER, CA), "tls-cert .+client.pem' and tls-key .+ are not a PEM certificate and its"),
        (TlsFiles(CLIENT, str(PEMS / "client-encrypted.pem"), CA), "without a password"),
        (TlsFiles(CLIENT, CLIENT, __file__), "tls-ca .+ holds no PEM certificates"),
    ],
)
def test_files_that_do_not_fit_are_refused_with_their_names(wrong: TlsFiles, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        Tls(wrong)
