"""Files with the credentials that requests to a server carry. The type to know is `HttpLogin`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from urllib3 import make_headers

from autothrottle.adapters.credentials import CredentialFiles, pem_expiries
from autothrottle.adapters.http.client import HttpClient
from autothrottle.core.errors import Unavailable
from autothrottle_client.files import ReloadedFiles

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

    def headers(self) -> Mapping[str, str]:
        """Return the headers with the credentials, which are read now.

        Raises:
            Unavailable: a file cannot be read, or has another content.
        """
        headers: dict[str, str] = {}
        for option, path in self.options.items():
            text = _text(option, path)
            if option.endswith("-headers-file"):
                headers |= _headers(option, path, text)
            elif option.endswith("-token-file"):
                headers["authorization"] = f"Bearer {_secret(option, path, text)}"
            else:
                headers |= make_headers(basic_auth=_secret(option, path, text))
        return headers


class CurrentLogin:
    """The headers of a login, from files that are read again when they change. Thread-safe but for the first call."""

    def __init__(self, login: HttpLogin) -> None:
        """Prepare; `headers` reads the files."""
        self._login = login
        self._files: ReloadedFiles[Mapping[str, str]] | None = None

    def headers(self) -> Mapping[str, str]:
        """Return the current headers; those of the first call must be readable.

        Raises:
            Unavailable: a file cannot be read at the first call.
        """
        options = self._login.options
        if not options:
            return {}
        if self._files is None:
            self._files = ReloadedFiles([*options.values()], self._login.headers, Unavailable)
        return self._files.current()[0]

    def credentials(self, client: HttpClient) -> Sequence[CredentialFiles]:
        """Return the files that are read again when they change, those of the server's authorities among them."""
        option = next(iter(self._login.options), "")
        secrets = [CredentialFiles(option, self._files)] if self._files else []
        if client.authorities is None:
            return secrets
        ca = f"{self._login.prefix}-ca"
        return [*secrets, CredentialFiles(ca, client.authorities, lambda pem: pem_expiries(**{ca: pem.encode()}))]


def _text(option: str, path: str) -> str:
    try:
        return Path(path).read_text("utf-8").strip()
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
