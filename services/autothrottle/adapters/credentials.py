"""The certificates of this process and the tokens of its callers, reloaded when their files change.

Mutual TLS between services uses the client package's certificates. `Tokens` has the callers with a bearer token: names,
tokens and roles. Every credential that a process reads from files is a `CredentialFiles`: it says which changed file is
faulty, and when certificates expire. A thread of its own reads each of them, see `ReloadedFiles.follow`.
"""

from __future__ import annotations

import codecs
import hmac
import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc

from autothrottle.core.access import ROLES, Caller, Role
from autothrottle.core.errors import Invalid
from autothrottle.core.exported_metrics import CERTIFICATE_EXPIRY, CREDENTIALS_OK, MetricSample
from autothrottle.core.texts import excerpt
from autothrottle_client import tls
from autothrottle_client.files import OLD_SECONDS, ReloadedFiles
from autothrottle_client.tls import Certificates, Pems, use_pair

TlsFiles = tls.Tls
"""Paths of the PEM files."""


log = logging.getLogger(__name__)

_WATCH_SECONDS = 1.0

MOST_UNREADABLE_SECONDS = 60.0
"""Tokens of a file that cannot be read count for this long. Then no token does, since one may have been removed."""

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
    longest_unreadable_seconds: float | None = None
    """For how long the contents count while the files cannot be read; None: until they can."""

    @property
    def problem(self) -> str:
        """What is wrong with the files, and which content is in use; "": the current one."""
        files, age = self.files, self.files.age_seconds
        limit = self.longest_unreadable_seconds
        # A fixed time rather than an age, because a finding that changes would be a new one in each cycle.
        unread = f"the file of {self.option} could not be read since {files.last_reading:%Y-%m-%dT%H:%M:%SZ}"
        cause = files.problem or "the disk or the mount does not answer, or the file changes all the time"
        if limit is not None and age > limit:
            return f"{unread}, so nothing in it counts any more: {cause}"
        until = "" if limit is None else f", for {limit:.0f} s in all"
        if age > OLD_SECONDS and not files.problem:
            return f"{unread}, so the last content is in use{until}: {cause}"
        if text := files.problem or self.refusal():
            content = "only its valid part is in use" if files.is_partial else f"the previous content is in use{until}"
            return f"the changed file of {self.option} is faulty, so {content}: {text}"
        return ""


class CredentialWatch:
    """Lets threads read the credentials, and collects their problems: no cycle, call or scrape waits for a disk."""

    def __init__(self, credentials: Callable[[], Iterable[CredentialFiles]], stop: threading.Event) -> None:
        """Prepare; `start` begins.

        Args:
            credentials: returns those of the process, of which some appear when they are first used.
            stop: ends the thread when it is set.
        """
        self._credentials, self._stop = credentials, stop
        self._followed: Sequence[CredentialFiles] = ()
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
        return tuple(filter(None, self._problems.values()))

    def samples(self) -> Iterator[MetricSample]:
        """Return the exported metrics."""
        for option, problem in self._problems.items():
            yield CREDENTIALS_OK.sample(not problem, option)
        for option, expiry in self._expiries.items():
            yield CERTIFICATE_EXPIRY.sample(expiry.timestamp() - time.time(), option)

    def read_again(self) -> None:
        """Let the threads read all files now."""
        for credential in self._followed:
            credential.files.request_check()

    def check(self) -> None:
        """Collect the problems and the expiries of the contents that are in use now."""
        problems: dict[str, str] = {}
        expiries: dict[str, datetime] = {}
        for credential in self._credentials():
            contents, generation = credential.files.current()
            problems[credential.option] = problems.get(credential.option) or credential.problem
            version = (generation, int(time.time() // _HOUR_SECONDS))
            if self._parsed.get(credential.files, ((0, 0), {}))[0] != version:
                self._parsed[credential.files] = version, credential.expiries(contents)
            expiries |= self._parsed[credential.files][1]
        self._problems, self._expiries = problems, expiries

    def _run(self) -> None:
        while True:
            try:
                self._followed = list(self._credentials())
                for credential in self._followed:
                    credential.files.follow(self._stop)
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
    def credentials(self) -> Sequence[CredentialFiles]:
        """The files."""
        return (
            CredentialFiles("tls-cert", self.pair, lambda pair: pem_expiries(tls_cert=pair[0])),
            CredentialFiles("tls-ca", self.authorities, lambda pem: pem_expiries(tls_ca=pem.encode())),
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
        """Return the context of an HTTPS server for its next connection, made of the current contents.

        It accepts client certificates of the authorities. It reads no disk.
        """
        pems, generation = self.current()
        context, loaded = self._http or (None, 0)
        if context is None or loaded != generation:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.verify_mode = ssl.CERT_OPTIONAL
            use_pair(context, pems.certificate, pems.key)
            context.load_verify_locations(cadata=pems.authorities.decode())
            self._http = context, generation
        return context


def _server_certificates(pems: Pems) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pems.key, pems.certificate)], pems.authorities)


_MOST_LINES = 5
"""Number of faulty lines that a message names."""

SHORTEST_TOKEN = 16
"""Minimum length of a token, in characters."""


class Tokens:
    """The current tokens of a file. Thread-safe.

    A token that stands in no valid line is refused, whatever the other lines are. If the file cannot be read for
    `MOST_UNREADABLE_SECONDS`, every token is refused.

    Raises:
        Invalid: the file cannot be read, or a line is not a name, a token and an optional role.
    """

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the file; `clock` returns monotonic seconds."""
        changed = lambda previous: _read_lines(path)  # noqa: E731
        self._tokens = ReloadedFiles((path,), lambda: _read_tokens(path), Invalid, changed=changed, clock=clock)

    @property
    def credentials(self) -> Sequence[CredentialFiles]:
        """The file."""
        limit = MOST_UNREADABLE_SECONDS
        return (CredentialFiles("api-tokens-file", self._tokens, longest_unreadable_seconds=limit),)

    @property
    def problem(self) -> str:
        """Why every token is refused; "": those of the file are accepted."""
        (credentials,) = self.credentials
        return credentials.problem if self._tokens.age_seconds > MOST_UNREADABLE_SECONDS else ""

    def of_services(self) -> str:
        """Return the first token with the role service, by which services call one another; "": none."""
        return next((token for token, caller in self.current().items() if caller.role is Role.SERVICE), "")

    def current(self) -> Mapping[str, Caller]:
        """Return token -> its caller, as the file has them now."""
        tokens, _ = self._tokens.current()
        return _NO_TOKENS if self._tokens.age_seconds > MOST_UNREADABLE_SECONDS else tokens

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


_NO_TOKENS: Mapping[str, Caller] = {}


def _read_tokens(path: str) -> Mapping[str, Caller]:
    """Return token -> its caller, if all lines are valid."""
    tokens, problem = _read_lines(path)
    if problem:
        raise Invalid(problem)
    return tokens


def _read_lines(path: str) -> tuple[Mapping[str, Caller], str]:
    """Return token -> its caller of the valid lines, and what is wrong with the others; "": nothing.

    A token in several lines has the least of their roles.
    """
    subject = f"api-tokens-file {path!r}"
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise Invalid(f"{subject} cannot be read: {error.strerror}. Fix: name a readable file") from error
    tokens: dict[str, Caller] = {}
    faults: dict[int, str] = {}
    for number, line in enumerate(content.removeprefix(codecs.BOM_UTF8).splitlines(), start=1):
        text = line.decode("utf-8", "replace")
        words = text.split()
        if not words or words[0].startswith("#"):
            continue
        is_repeated = len(words) > 1 and words[1] in tokens
        # Headers are bytes, and clients encode non-ASCII letters differently.
        is_token = len(words) in (2, 3) and words[1].isascii() and len(words[1]) >= SHORTEST_TOKEN
        is_text = text.isprintable() and "\N{REPLACEMENT CHARACTER}" not in text
        role = ROLES.get(words[2] if len(words) == 3 else str(Role.OPERATOR))
        # The messages omit the line, because it may contain a token: with a blank in the name, as the third word.
        if not is_token or not is_text or is_repeated:
            faults[number] = (
                f"line {number} must be a name, a space and a unique token of at least {SHORTEST_TOKEN} ASCII "
                "characters, then optionally a role. Fix: for example `anna $(openssl rand -hex 32) viewer`"
            )
        elif role is None:
            faults[number] = f"the third word of line {number} must be a role: {', '.join(ROLES)}"
        if is_token and is_text and role is not None:
            caller = tokens.get(words[1], Caller(words[0], role))
            tokens[words[1]] = replace(caller, role=min(role, caller.role or role))
    if not tokens and not faults:
        return tokens, f"{subject} contains no token, so every request is refused. Fix: add a line"
    if not faults:
        return tokens, ""
    others = excerpt([*faults][1:], _MOST_LINES)
    return tokens, f"{subject}: {next(iter(faults.values()))}{f'. Also faulty: lines {others}' if others else ''}"
