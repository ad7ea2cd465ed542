"""Mutual TLS between a service and its callers, with the certificates in tests/certificates."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path

import grpc
import pytest

from autothrottle.adapters.credentials import ServiceCertificates, TlsFiles
from autothrottle.core.errors import Invalid
from autothrottle.runtime.server import ServiceServer
from autothrottle.v1 import admin_pb2
from autothrottle.v1.admin_pb2_grpc import AdminServiceServicer, AdminServiceStub, add_AdminServiceServicer_to_server
from autothrottle_client import AdminClient, Unavailable
from autothrottle_client.replicas import Connection, Replica, Replicas, resolved
from tests.paths import CERTIFICATES

PEMS = CERTIFICATES
CA, SERVER, CLIENT, ELSEWHERE, RENEWED = (
    str(PEMS / f"{name}.pem") for name in ("ca", "server", "client", "elsewhere", "renewed")
)
"""The first signs all others except the last, which is self-signed."""
PATIENT, SHORT = timedelta(seconds=60), timedelta(seconds=1.5)


class Callers(AdminServiceServicer):
    """Answers every list of overrides with the common name in the caller's certificate."""

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
            credentials = ServiceCertificates(files(certificate, authorities=authorities)).server_credentials()
            return stack.enter_context(ServiceServer("admin", [service], listen, credentials=credentials))

        yield start


def asked(channel: grpc.Channel, seconds: float) -> list[str]:
    request = admin_pb2.ListOverridesRequest()
    return list(AdminServiceStub(channel).ListOverrides(request, timeout=seconds).warnings)


def fetch_names(replica: Replica, seconds: float) -> list[str]:
    return asked(replica.channel, seconds)


def connected(address: str, tls: ServiceCertificates | None) -> closing[Replicas]:
    return closing(Replicas("admin", [address], Connection(certificates=tls, resolve=resolved)))


def ask(address: str, tls: ServiceCertificates | None, timeout: timedelta = PATIENT) -> Sequence[str]:
    with connected(address, tls) as replicas:
        return replicas.call(fetch_names, timeout)


def test_services_authenticate_one_another_by_certificate(serve: Serve) -> None:
    server = serve(SERVER)
    assert ask(server.address, ServiceCertificates(files(CLIENT))) == ["autothrottle"]
    assert ask(f"localhost:{server.address.rpartition(':')[2]}", ServiceCertificates(files(CLIENT))) == ["autothrottle"]


def test_a_caller_without_a_certificate_of_the_authorities_is_rejected(serve: Serve) -> None:
    server = serve(SERVER)
    with pytest.raises(Unavailable):
        ask(server.address, None, SHORT)
    credentials = grpc.ssl_channel_credentials(Path(CA).read_bytes())
    with grpc.secure_channel(server.address, credentials) as channel, pytest.raises(grpc.RpcError) as caught:
        asked(channel, 10)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_server_certificate_with_another_name_is_rejected_unless_that_name_is_configured(
    serve: Serve,
) -> None:
    server = serve(ELSEWHERE)
    with pytest.raises(Unavailable):
        ask(server.address, ServiceCertificates(files(CLIENT)), SHORT)
    assert ask(server.address, ServiceCertificates(files(CLIENT, "elsewhere.example"))) == ["autothrottle"]


def test_a_unix_socket_needs_no_certificate(serve: Serve, tmp_path: Path) -> None:
    address = serve(SERVER, f"unix:{tmp_path}/admin.sock").address
    assert ask(address, None) == []
    assert ask(address, ServiceCertificates(files(CLIENT))) == []


def test_certificates_are_renewed_on_both_sides_without_a_restart(serve: Serve, tmp_path: Path) -> None:
    ours, theirs, both = (str(tmp_path / name) for name in ("ours.pem", "theirs.pem", "both.pem"))
    Path(both).write_bytes(Path(CA).read_bytes() + Path(RENEWED).read_bytes())
    shutil.copy(SERVER, theirs)
    shutil.copy(CLIENT, ours)
    server = serve(theirs, authorities=both)
    with connected(server.address, ServiceCertificates(files(ours))) as replicas:
        assert replicas.call(fetch_names, PATIENT) == ["autothrottle"]

        def renew(replica: Replica, seconds: float) -> list[str]:
            shutil.copy(RENEWED, ours)
            assert replicas.call(fetch_names, PATIENT) == ["renewed"]
            return fetch_names(replica, seconds)

        assert replicas.call(renew, PATIENT) == ["autothrottle"], "a call in progress keeps its connection"
        # During half of a renewal the previous certificate stays in use.
        for half in (lambda: Path(ours).write_text("-----BEGIN CERTIFICATE-----"), Path(ours).unlink):
            half()
            assert replicas.call(fetch_names, PATIENT) == ["renewed"]
    shutil.copy(ELSEWHERE, theirs)
    assert ask(server.address, ServiceCertificates(files(CLIENT, "elsewhere.example"))) == ["autothrottle"]


def test_the_client_package_uses_mutual_tls(serve: Serve) -> None:
    address = serve(SERVER).address
    with AdminClient(address, PATIENT, files(CLIENT)) as admin:
        assert admin.list_overrides() == ((), ("autothrottle",))
    with AdminClient(address, SHORT) as plain, pytest.raises(Unavailable):
        plain.list_overrides()


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (TlsFiles("/nowhere.pem", CLIENT, CA), "'/nowhere.pem' cannot be read: No such file"),
        (TlsFiles(CLIENT, SERVER, CA), "tls-cert .+client.pem' and tls-key .+ are not a PEM certificate and its"),
        (TlsFiles(CLIENT, str(PEMS / "client-encrypted.pem"), CA), "without a password"),
        (TlsFiles(CLIENT, CLIENT, __file__), "tls-ca .+ holds no PEM certificates"),
    ],
)
def test_mismatched_files_are_refused_with_their_names(wrong: TlsFiles, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        ServiceCertificates(wrong)
    with pytest.raises(Invalid, match=reason):
        AdminClient("127.0.0.1:1", tls=wrong)
