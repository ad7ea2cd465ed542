"""What exports of traces and of metrics share: their credentials, and the log of their outages.

The library reads the files of its OTEL_* variables once, and logs every failed attempt. The types to know are
`RenewedExporter` and `OutageLog`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any
from urllib.parse import urlsplit

import grpc

from autothrottle.adapters.credentials import CredentialFiles, Expiries, pem_expiries
from autothrottle.core.errors import Invalid
from autothrottle_client.files import ReloadedFiles
from autothrottle_client.tls import read_pair, valid_authorities

logger = logging.getLogger(__name__)

_LIBRARY, _SILENCE = logging.getLogger("opentelemetry"), logging.NullHandler()
_lock = threading.Lock()
_silenced = 0


def silence_library() -> None:
    """Silence the library's log until as many calls of `restore_library_log`; `OutageLog` reports what matters."""
    global _silenced
    with _lock:
        _silenced += 1
        _LIBRARY.addHandler(_SILENCE)
        _LIBRARY.propagate = False


def restore_library_log() -> None:
    """Undo one call of `silence_library`."""
    global _silenced
    with _lock:
        _silenced -= 1
        if not _silenced:
            _LIBRARY.removeHandler(_SILENCE)
            _LIBRARY.propagate = True


@dataclass(slots=True)
class OutageLog:
    """Logs when exports start to fail and when they succeed again; the library would log every attempt."""

    what: str
    """`Traces` or `Metrics`."""
    lost: str
    variable: str
    """Name of the variable that turns these exports off."""
    _failing: bool = False

    def succeeds(self, export: Callable[[], bool]) -> bool:
        """Export, and return whether that succeeded. No error of the exporter leaves this method."""
        try:
            ok, why = export(), "the collector does not answer or refuses them"
        except Exception as error:  # A faulty collector must cost nothing but what it should receive.
            ok, why = False, f"{type(error).__name__}: {error}"
        if not ok and not self._failing:
            logger.warning(
                "%s cannot be exported and %s (%s). "
                "Fix: check OTEL_EXPORTER_OTLP_ENDPOINT and the collector, or set %s=none.",
                self.what,
                self.lost,
                why,
                self.variable,
            )
        elif self._failing and ok:
            logger.info("%s are exported again", self.what)
        self._failing = not ok
        return ok


@dataclass(frozen=True, slots=True)
class _Variable:
    """An environment variable; both are empty if the operator has not set it."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class _CollectorFiles:
    authorities: _Variable
    certificate: _Variable
    key: _Variable

    @property
    def named(self) -> Sequence[_Variable]:
        return [variable for variable in (self.authorities, self.certificate, self.key) if variable.value]


@dataclass(frozen=True, slots=True)
class _CollectorPems:
    """The contents of the files; None: the variable is not set, and gRPC uses the authorities of the system."""

    authorities: bytes | None
    certificate: bytes | None
    key: bytes | None


class RenewedExporter:
    """An exporter of the library that is replaced before an export if its files have changed.

    An export in progress ends on its own connection. Only one thread exports.
    """

    def __init__(self, signal: str, new: Callable[[grpc.ChannelCredentials | None], Any]) -> None:
        """Read the files that the OTEL_* variables name.

        Args:
            signal: part of the names of the variables: `TRACES` or `METRICS`.
            new: returns an exporter with these credentials; None: the library chooses them.

        Raises:
            Invalid: a file cannot be read, or has other content.
        """
        self._pems: ReloadedFiles[_CollectorPems] | None = None
        self.credentials: Sequence[CredentialFiles] = ()
        if files := _tls_files(signal):
            self._pems = _reloaded(files)
            self.credentials = (CredentialFiles(files.named[0].name, self._pems, partial(_expiries, files)),)
        self._new, self._lock, self._closed = new, threading.Lock(), False
        self._generation = 0
        self._exporter: Any = None
        self._current()

    def exports(self, data: Any) -> bool:
        """Export, and return whether that succeeded. An export that fails while the files change is repeated once."""
        exporter = self._current()
        if _succeeds(exporter, data):
            return True
        renewed = self._current()
        return renewed is not exporter and _succeeds(renewed, data)

    def shutdown(self) -> None:
        """Abort the export in progress and all later ones."""
        with self._lock:
            self._closed = True
            self._exporter.shutdown()

    def _current(self) -> Any:
        """Return the exporter with the current contents of the files."""
        pems, generation = self._pems.current() if self._pems else (None, 1)
        with self._lock:
            if generation != self._generation and not self._closed:
                if self._exporter:
                    self._exporter.shutdown()
                self._exporter, self._generation = self._new(_channel_credentials(pems)), generation
            return self._exporter


def _channel_credentials(pems: _CollectorPems | None) -> grpc.ChannelCredentials | None:
    return grpc.ssl_channel_credentials(pems.authorities, pems.key, pems.certificate) if pems else None


def _succeeds(exporter: Any, data: Any) -> bool:
    return bool(exporter.export(data).name == "SUCCESS")


def _tls_files(signal: str) -> _CollectorFiles | None:
    """Return the files with which an exporter uses TLS; None: there are none.

    Source: opentelemetry.io/docs/specs/otel/protocol/exporter. A variable of the signal beats the one for all signals.
    """
    endpoint = urlsplit(_variable(signal, "ENDPOINT").value)
    insecure = _variable(signal, "INSECURE").value.strip().lower()
    is_plain = endpoint.scheme != "https" and (insecure == "true" or (not insecure and endpoint.scheme == "http"))
    files = _CollectorFiles(
        _variable(signal, "CERTIFICATE"), _variable(signal, "CLIENT_CERTIFICATE"), _variable(signal, "CLIENT_KEY")
    )
    if is_plain or not files.named or _has_provider(signal):
        return None
    if bool(files.certificate.value) != bool(files.key.value):
        given = files.certificate if files.certificate.value else files.key
        raise Invalid(f"{given.name} is set alone. Fix: name the client's certificate and its private key")
    return files


def _variable(signal: str, name: str) -> _Variable:
    for variable in (f"OTEL_EXPORTER_OTLP_{signal}_{name}", f"OTEL_EXPORTER_OTLP_{name}"):
        if value := os.environ.get(variable):
            return _Variable(variable, value)
    return _Variable("", "")


def _has_provider(signal: str) -> bool:
    """Whether a plug-in of the library makes the credentials."""
    names = (f"GRPC_{signal}_CREDENTIAL_PROVIDER", "GRPC_CREDENTIAL_PROVIDER")
    return any(os.environ.get(f"OTEL_PYTHON_EXPORTER_OTLP_{name}") for name in names)


@cache
def _reloaded(files: _CollectorFiles) -> ReloadedFiles[_CollectorPems]:
    """Return the contents of the files, the same object for both signals: the log has one line for each change."""
    paths = dict.fromkeys(variable.value for variable in files.named)  # one file may have certificate and key
    changed = lambda previous: _read_valid(files)  # noqa: E731
    return ReloadedFiles([*paths], partial(_read, files), Invalid, changed=changed)


def _read(files: _CollectorFiles) -> _CollectorPems:
    pems, fault = _read_valid(files)
    if fault:
        raise Invalid(fault)
    return pems


def _read_valid(files: _CollectorFiles) -> tuple[_CollectorPems, str]:
    """Return the contents with the valid certificates of authorities, and what is wrong with the others."""
    authorities, certificate, key = files.authorities, files.certificate, files.key
    pem, fault = "", ""
    if authorities.value:
        pem, fault = valid_authorities(authorities.value, "the collector", f"{authorities.name} ")
    if not certificate.value:
        return _CollectorPems(pem.encode() or None, None, None), fault
    pair = read_pair(certificate.value, key.value, (certificate.name, key.name))
    return _CollectorPems(pem.encode() or None, *pair), fault


def _expiries(files: _CollectorFiles, pems: _CollectorPems) -> Expiries:
    """Return variable -> expiry."""
    contents = {files.authorities.name: pems.authorities, files.certificate.name: pems.certificate}
    expiries = pem_expiries(**{variable: pem for variable, pem in contents.items() if pem})
    return {option.replace("-", "_"): expiry for option, expiry in expiries.items()}
