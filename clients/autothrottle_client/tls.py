"""Mutual TLS: a process's own certificate and the authorities that it trusts.

Certificates may be renewed while a process runs. Each new connection checks the files for changes, and clients
reconnect to replicas that they reached with an old certificate. Unix sockets use no TLS: file permissions control
access. The types to know are `Tls` and `Certificates`.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc

from autothrottle_client.errors import Invalid
from autothrottle_client.files import ReloadedFiles, private_file

_BEGIN = re.compile(r"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----")
_CERTIFICATE = re.compile(r"-----BEGIN ((?:X509 |TRUSTED )?CERTIFICATE)-----[^-]*-----END \1-----")


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files of mutual TLS. They may be renewed at any time; later calls use the new content."""

    certificate: str
    """Certificate of this process with its intermediates; the other side identifies the caller by it."""
    key: str
    """The certificate's private key, without a password; may be in the same file."""
    authorities: str
    """Certificates of the authorities that sign clients and servers."""
    server_name: str = ""
    """Name in the servers' certificates; "": the host of their address."""


@dataclass(frozen=True, slots=True)
class Pems:
    """Contents of the files, as gRPC takes them."""

    certificate: bytes
    key: bytes
    authorities: bytes


class Certificates:
    """The current certificates. Thread-safe.

    The own pair and the authorities are read apart: while one of them is faulty, a change of the other counts.
    """

    def __init__(self, files: Tls) -> None:
        """Read the files.

        Raises:
            Invalid: a file cannot be read or is not a PEM file, or the key does not match the certificate.
        """
        self.files = files
        self.pair = reloaded_pair(files.certificate, files.key)
        """The content of the own certificate and of its key."""
        self.authorities = reloaded_authorities(files.authorities, "clients and servers", "tls-ca ")
        """The certificates of the trusted authorities."""

    def current(self) -> tuple[Pems, int]:
        """Return the contents and their generation: 1, plus 1 for each renewal."""
        (certificate, key), generation = self.pair.current()
        authorities, renewals = self.authorities.current()
        return Pems(certificate, key, authorities.encode()), generation + renewals - 1

    @property
    def generation(self) -> int:
        """Generation of the certificates: 1, plus 1 for each renewal."""
        return self.current()[1]

    def channel(self, target: str, address: str, options: Sequence[tuple[str, int]]) -> grpc.Channel:
        """Return a channel, which connects on the first call.

        Args:
            target: `ip:port` or `host:port`.
            address: the configured address of the target. The server's certificate must contain the host of a
                `host:port`. An address that stands for many hosts (`members:planner`) has none; then the certificate
                must contain the target's IP address.
            options: gRPC channel options.
        """
        pems, _ = self.current()
        name = self.files.server_name or _host(address) or _host(target)
        credentials = grpc.ssl_channel_credentials(pems.authorities, pems.key, pems.certificate)
        return grpc.secure_channel(target, credentials, options=[*options, ("grpc.ssl_target_name_override", name)])


def _host(address: str) -> str:
    host, _, port = address.rpartition(":")
    return host.strip("[]") if port.isdecimal() else ""


def reloaded_pair(
    certificate: str, key: str, options: tuple[str, str] = ("tls-cert", "tls-key")
) -> ReloadedFiles[tuple[bytes, bytes]]:
    """Return the contents of a certificate and its private key; the arguments are those of `read_pair`.

    Raises:
        Invalid: as `read_pair`.
    """
    return ReloadedFiles([*dict.fromkeys((certificate, key))], partial(read_pair, certificate, key, options), Invalid)


def use_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Let a context identify itself by the contents of a certificate and of its private key; it reads no disk.

    Raises:
        OSError: they do not match.
    """
    with private_file(certificate) as certificate_path, private_file(key) as key_path:
        # Without a password, OpenSSL would prompt for it on the terminal.
        context.load_cert_chain(certificate_path, key_path, password="")


def read_pair(certificate: str, key: str, options: tuple[str, str] = ("tls-cert", "tls-key")) -> tuple[bytes, bytes]:
    """Return the contents of a certificate and its private key, which match. Each file is read once.

    Args:
        certificate: PEM file with the certificate.
        key: PEM file with its private key, perhaps the same one.
        options: their names, for the message.

    Raises:
        Invalid: a file cannot be read, or they are not a certificate and its private key without a password.
    """
    options_by_path = dict(zip((certificate, key), options, strict=True))
    contents = {path: _content(option, path) for path, option in options_by_path.items()}
    pair = contents[certificate], contents[key]
    try:
        use_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), *pair)
    except (OSError, ValueError) as error:
        raise Invalid(
            f"{options[0]} {certificate!r} and {options[1]} {key!r} are not a PEM certificate and its private "
            f"key without a password ({error}). Fix: give a matching pair"
        ) from error
    return pair


def reloaded_authorities(path: str, servers: str, option: str = "") -> ReloadedFiles[str]:
    """Return the certificates of authorities in a file, as PEM text; the arguments are those of `valid_authorities`.

    Of a changed file only its valid certificates count: an authority that has left it is not trusted any more,
    whatever else is in the file. A file without a valid certificate leaves the previous ones in use.

    Raises:
        Invalid: the file cannot be read, holds no certificates, or a faulty one.
    """
    read = partial(valid_authorities, path, servers, option)

    def read_strictly() -> str:
        text, problem = read()
        if problem:
            raise Invalid(problem)
        return text

    return ReloadedFiles((path,), read_strictly, Invalid, changed=lambda previous: read())


def valid_authorities(path: str, servers: str, option: str = "") -> tuple[str, str]:
    """Return the valid certificates of authorities in a file as PEM text, and what is wrong with the others.

    Args:
        path: of the file.
        servers: whose certificates they sign, for the message.
        option: its name with a space, for the message.

    Raises:
        Invalid: the file cannot be read, or holds no valid certificate.
    """
    try:
        text = Path(path).read_text("utf-8", "replace")
    except OSError as error:
        text, reason = "", error.strerror
    else:
        reason = "it has none"
    valid, fault = valid_certificates(text)
    if not valid:
        raise Invalid(
            f"{option}{path!r} holds no PEM certificates ({fault or reason}). Fix: give the file with the certificates "
            f"of the authorities that sign {servers}"
        )
    return "\n".join([*valid, ""]), f"{option}{path!r}: {fault}" if fault else ""


def valid_certificates(text: str) -> tuple[Sequence[str], str]:
    """Return the valid certificates of a PEM text, and what is wrong with the others; "": all are valid."""
    faults = {match[0]: _fault(match[0]) for match in _CERTIFICATE.finditer(text)}
    valid = [block for block, fault in faults.items() if not fault]
    count = len(set(faults)) + len(_BEGIN.findall(text)) - len(_CERTIFICATE.findall(text))
    if len(valid) == count:
        return valid, ""
    reason = next(filter(None, faults.values()), "it has no end")
    return valid, f"{count - len(valid)} of {count} certificates are faulty ({reason}). Fix: replace or remove them"


def _fault(pem: str) -> str:
    """Return why a certificate in PEM cannot be read; "": it can."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem)
    except (OSError, ValueError) as error:
        return str(error) or "it is empty"
    return ""


def _content(option: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise Invalid(f"{option} {path!r} cannot be read: {error.strerror}. Fix: name a readable PEM file") from error
