"""The certificates of this process and the tokens of its callers, reloaded when their files change.

Mutual TLS between services uses the client package's certificates; each accepted connection checks the files for
changes. `Tokens` has the callers with a bearer token: names, tokens and roles. Every credential that a process reads
from files is a `CredentialFiles`: it says which changed file is faulty, and when certificates expire.
"""

from __future__ import annotations

import hmac
import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc

from autothrottle.core.access import ROLES, Caller, Role
from autothrottle.core.errors import Invalid
from autothrottle.core.exported_metrics import CERTIFICATE_EXPIRY, CREDENTIALS_OK, MetricSample
from autothrottle_client import tls
from autothrottle_client.files import ReloadedFiles
from autothrottle_client.tls import Certificates, Pems

TlsFiles = tls.Tls
"""Paths of the PEM files."""


log = logging.getLogger(__name__)

_WATCH_SECONDS = 2.0
_HOUR_SECONDS = 3_600

Expiries = Mapping[str, datetime]
"""Option -> when the first certificate in its file expires."""


@dataclass(frozen=True, slots=True, eq=False)
class CredentialFiles:
    """Files with one credential, for the findings of cycles and for metrics."""

    option: str
    """Name of the option or property with the file, or the first of them."""
    files: ReloadedFiles[Any]
    expiries: Callable[[Any], Expiries] = lambda contents: {}
    """Returns the expiries of the contents that are in use."""
    refusal: Callable[[], str] = str
    """Returns why the other side does not accept the contents; "": it does, or it is unknown."""


class CredentialWatch:
    """Looks for changes of credentials every two seconds, in a thread: no cycle and no scrape waits for a disk."""

    def __init__(self, credentials: Callable[[], Iterable[CredentialFiles]], stop: threading.Event) -> None:
        """Prepare; `start` begins.

        Args:
            credentials: returns those of the process, of which some appear when they are first used.
            stop: ends the thread when it is set.
        """
        self._credentials, self._stop = credentials, stop
        self._problems: Mapping[str, str] = {}
        self._expiries: Expiries = {}
        self._parsed: dict[ReloadedFiles[Any], tuple[tuple[int, int], Expiries]] = {}
        """Files -> generation and hour, and the expiries of their contents then."""
        self._thread = threading.Thread(target=self._run, name="credentials", daemon=True)

    def start(self) -> None:
        """Begin, and return at once. Idempotent."""
        if not self._thread.ident:
            self._thread.start()

    @property
    def problems(self) -> tuple[str, ...]:
        """A sentence for each credential whose changed file is faulty."""
        problems = [(option, problem) for option, problem in self._problems.items() if problem]
        return tuple(
            f"the changed file of {option} is faulty, so the previous content is in use: {text}"
            for option, text in problems
        )

    def samples(self) -> Iterator[MetricSample]:
        """Return the exported metrics."""
        for option, problem in self._problems.items():
            yield CREDENTIALS_OK.sample(not problem, option)
        for option, expiry in self._expiries.items():
            yield CERTIFICATE_EXPIRY.sample(expiry.timestamp() - time.time(), option)

    def check(self) -> None:
        """Look for changes now."""
        problems: dict[str, str] = {}
        expiries: dict[str, datetime] = {}
        for credential in self._credentials():
            contents, generation = credential.files.current()
            problems[credential.option] = (
                problems.get(credential.option) or credential.files.problem or credential.refusal()
            )
            version = (generation, int(time.time() // _HOUR_SECONDS))
            if self._parsed.get(credential.files, ((0, 0), {}))[0] != version:
                self._parsed[credential.files] = version, credential.expiries(contents)
            expiries |= self._parsed[credential.files][1]
        self._problems, self._expiries = problems, expiries

    def _run(self) -> None:
        while True:
            try:
                self.check()
            except Exception:  # the watch of the others goes on
                log.exception("The files of credentials cannot be checked")
            if self._stop.wait(_WATCH_SECONDS):
                return


def pem_expiries(**pems: bytes) -> Expiries:
    """Return the expiries of the certificates in PEM texts, by option with `_` for `-`; absent: it has none.

    An authority that has expired already counts only if all have: a file may keep one that nothing uses any more.
    """
    from cryptography import x509  # takes 0.1 s to import, and only processes with certificates need it

    expiries = {}
    for name, pem in pems.items():
        try:
            times = [certificate.not_valid_after_utc for certificate in x509.load_pem_x509_certificates(pem)]
        except ValueError:  # OpenSSL accepts more
            continue
        expiries[name.replace("_", "-")] = first_expiry(times)
    return expiries


def first_expiry(times: Iterable[datetime]) -> datetime:
    """Return the first of these times that is not over, or the last one."""
    ordered = sorted(times)
    now = datetime.now(UTC)
    return next((time for time in ordered if time > now), ordered[-1])


class ServiceCertificates(Certificates):
    """The current certificates, for clients and servers. Thread-safe.

    Raises:
        Invalid: a file cannot be read or is not a PEM file, or the key does not match the certificate.
    """

    _http: tuple[ssl.SSLContext, int] | None = None
    """The context of HTTPS, and the generation of its certificates."""

    @property
    def credentials(self) -> CredentialFiles:
        """The files."""
        return CredentialFiles(
            "tls-cert", self._pems, lambda pems: pem_expiries(tls_cert=pems.certificate, tls_ca=pems.authorities)
        )

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return the credentials of a server that requires client certificates signed by the authorities."""
        pems, given = self.current()

        # None means "unchanged" to gRPC, which its type stubs do not show.
        def renewed() -> Any:
            nonlocal given
            pems, generation = self.current()
            if generation == given:
                return None
            given = generation
            return _server_certificates(pems)

        return grpc.dynamic_ssl_server_credentials(_server_certificates(pems), renewed, True)

    def http_context(self) -> ssl.SSLContext:
        """Return the context of an HTTPS server for its next connection, made of the current files.

        It accepts client certificates of the authorities.
        """
        pems, generation = self.current()
        context, loaded = self._http or (None, 0)
        if context is None or loaded != generation:
            try:
                context = self._new_http_context(pems)
            except (OSError, ValueError):  # the files have just changed again; the next connection looks at them
                if context is None:
                    raise
            self._http = context, generation
        return context

    def _new_http_context(self, pems: Pems) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_cert_chain(self.files.certificate, self.files.key, password="")
        context.load_verify_locations(cadata=pems.authorities.decode("ascii"))
        return context


def _server_certificates(pems: Pems) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pems.key, pems.certificate)], pems.authorities)


SHORTEST_TOKEN = 16
"""Minimum length of a token, in characters."""


class Tokens:
    """The current tokens of a file. Thread-safe.

    Raises:
        Invalid: the file cannot be read, or a line is not a name, a token and an optional role.
    """

    def __init__(self, path: str) -> None:
        """Read the file."""
        self._tokens = ReloadedFiles((path,), lambda: _read_tokens(path), Invalid)

    @property
    def credentials(self) -> CredentialFiles:
        """The file."""
        return CredentialFiles("api-tokens-file", self._tokens)

    @property
    def of_services(self) -> str:
        """The first token with the role service, by which services call one another; "": none."""
        return next((token for token, caller in self.current().items() if caller.role is Role.SERVICE), "")

    def current(self) -> Mapping[str, Caller]:
        """Return token -> its caller, as the file has them now."""
        tokens, _ = self._tokens.current()
        return tokens

    def caller_of(self, authorization: str) -> Caller | None:
        """Return the caller with the token in an `Authorization` header; None: unknown or absent token."""
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return None
        tokens = self.current()
        token = equal_token(tokens, given.strip())
        return None if token is None else tokens[token]


def equal_token(tokens: Iterable[str], given: str) -> str | None:
    """Return the token that equals a given text; None: none does.

    It compares all of them in constant time: the duration reveals nothing about a token.
    """
    text = given.encode("utf-8", "replace")
    equal = [token for token in tokens if hmac.compare_digest(token.encode(), text)]
    return equal[0] if equal else None


def _read_tokens(path: str) -> Mapping[str, Caller]:
    """Return token -> its caller."""
    subject = f"api-tokens-file {path!r}"
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except OSError as error:
        raise Invalid(f"{subject} cannot be read: {error.strerror}. Fix: name a readable file") from error
    except ValueError as error:
        raise Invalid(f"{subject} is not UTF-8 text ({error})") from error
    tokens: dict[str, Caller] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        # Headers are bytes, and clients encode non-ASCII letters differently.
        is_token = len(words) in (2, 3) and words[1].isascii() and len(words[1]) >= SHORTEST_TOKEN
        if not is_token or not line.isprintable() or words[1] in tokens:
            # The message omits the line, because it may contain a token.
            raise Invalid(
                f"{subject}: line {number} must be a name, a space and a unique token of at least {SHORTEST_TOKEN} "
                "ASCII characters, then optionally a role. Fix: for example `anna $(openssl rand -hex 32) viewer`"
            )
        name, token, role = *words[:2], words[2] if len(words) == 3 else str(Role.OPERATOR)
        if role not in ROLES:
            # The message omits the word: with a blank in the name, the third word is the token.
            raise Invalid(f"{subject}: the third word of line {number} must be a role: {', '.join(ROLES)}")
        tokens[token] = Caller(name, ROLES[role])
    if not tokens:
        raise Invalid(f"{subject} contains no token, so every request would be refused. Fix: add a line")
    return tokens
