"""Files with the credentials that requests to a server carry. The type to know is `HttpLogin`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from urllib3 import make_headers

from autothrottle.adapters.credentials import CredentialFiles, pem_expiries
from autothrottle.adapters.http.client import HttpClient
from autothrottle.core.errors import Unavailable
from autothrottle_client.files import ReloadedFiles, read_text

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_RESERVED = frozenset({"authorization", "connection", "content-length", "host", "transfer-encoding"})
"""Headers that HTTP or another option sets."""


@dataclass(frozen=True, slots=True)
class HttpLogin:
    """The files of one server's credentials, named by options that begin with `prefix`."""

    prefix: str
    """`prometheus` or `scrape`."""
    token_file: str = ""
    """File with a bearer token; "": none."""
    user_file: str = ""
    """File with `user:password` for basic authentication; "": none. Not with a token."""
    headers_file: str = ""
    """File with further headers, `Name: value` in each line, such as the tenant of Mimir; "": none."""

    @property
    def advice(self) -> Mapping[int, str]:
        """HTTP status -> what an operator can do about it."""
        return dict.fromkeys((401, 403), f"; check {self.prefix}-token-file or {self.prefix}-user-file")

    @property
    def options(self) -> Mapping[str, str]:
        """Option -> path of its file, for those that are given."""
        files = {"token": self.token_file, "user": self.user_file, "headers": self.headers_file}
        return {f"{self.prefix}-{name}-file": path for name, path in files.items() if path}

    def headers(self, option: str) -> Mapping[str, str]:
        """Return the headers of one of the options, whose file is read now.

        Raises:
            Unavailable: the file cannot be read, or has another content.
        """
        path = self.options[option]
        text = _text(option, path)
        if option.endswith("-headers-file"):
            return _headers(option, path, text)
        secret = _secret(option, path, text)
        if option.endswith("-token-file"):
            return {"authorization": f"Bearer {secret}"}
        return make_headers(basic_auth=secret)


class CurrentLogin:
    """The headers of a login, from files that are read again when they change. Thread-safe but for the first call.

    Each file is read apart: while one of them is faulty, a change of another counts.
    """

    def __init__(self, login: HttpLogin) -> None:
        """Prepare; `headers` reads the files."""
        self._login = login
        self._files: Mapping[str, ReloadedFiles[Mapping[str, str]]] = {}

    def headers(self) -> Mapping[str, str]:
        """Return the current headers; those of the first call must be readable.

        Raises:
            Unavailable: a file cannot be read at the first call.
        """
        login = self._login
        if not self._files:
            self._files = {
                option: ReloadedFiles((path,), partial(login.headers, option), Unavailable)
                for option, path in login.options.items()
            }
        return {name: value for files in self._files.values() for name, value in files.current()[0].items()}

    def credentials(self, client: HttpClient) -> Sequence[CredentialFiles]:
        """Return the files that are read again when they change, those of the server's authorities among them."""
        secrets = [CredentialFiles(option, files) for option, files in self._files.items()]
        if client.authorities is None:
            return secrets
        ca = f"{self._login.prefix}-ca"
        return [*secrets, CredentialFiles(ca, client.authorities, lambda pem: pem_expiries(**{ca: pem.encode()}))]


def _text(option: str, path: str) -> str:
    try:
        return read_text(path).strip()
    except (OSError, ValueError) as error:
        raise Unavailable(f"{option}: {path!r} cannot be read ({type(error).__name__}); give a readable file") from None


def _secret(option: str, path: str, text: str) -> str:
    if not _is_line(text):
        raise Unavailable(f"{option}: {path!r} does not contain one line of printable ASCII; put only the secret there")
    return text


def _headers(option: str, path: str, text: str) -> dict[str, str]:
    """Return the headers of a file; an error names a line and does not show it."""
    headers: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        name, colon, value = line.partition(":")
        name, value = name.strip(), value.strip()
        if not line.strip():
            continue
        if not colon or not _NAME.fullmatch(name) or not _is_line(value):
            raise Unavailable(f"{option}: line {number} of {path!r} is not a header; write Name: value")
        if name.lower() in _RESERVED or name.lower() in headers:
            raise Unavailable(
                f"{option}: line {number} of {path!r} sets {name}, which has an option or a line of its own; remove it"
            )
        headers[name.lower()] = value
    if not headers:
        raise Unavailable(f"{option}: {path!r} has no header; write Name: value, for example X-Scope-OrgID: tenant-1")
    return headers


def _is_line(text: str) -> bool:
    return bool(text) and all(" " <= character <= "~" for character in text)
