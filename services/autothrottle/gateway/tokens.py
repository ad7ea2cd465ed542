"""Users of the HTTP API: names and bearer tokens in a file that may change at run time."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from pathlib import Path

from autothrottle.core.errors import Invalid
from autothrottle_client.reloaded_files import ReloadedFiles

SHORTEST_TOKEN = 16
"""Minimum length of a token, in characters."""


class Tokens:
    """The current tokens of a file. Thread-safe.

    Raises:
        Invalid: the file cannot be read, or a line is not a name and a token.
    """

    def __init__(self, path: str) -> None:
        """Read the file."""
        self._tokens = ReloadedFiles((path,), lambda: _read(path), Invalid)

    def name_of(self, authorization: str) -> str | None:
        """Return the user of the token in an `Authorization` header; None: unknown or absent token."""
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return None
        tokens, _ = self._tokens.current()
        # Compare with all tokens in constant time: the duration reveals nothing about a token.
        found = [name for token, name in tokens.items() if hmac.compare_digest(token.encode(), given.strip().encode())]
        return found[0] if found else None


def _read(path: str) -> Mapping[str, str]:
    """Return token -> name."""
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except OSError as error:
        raise Invalid(
            f"api-tokens-file {path!r} cannot be read: {error.strerror}. Fix: name a readable file"
        ) from error
    except ValueError as error:
        raise Invalid(f"api-tokens-file {path!r} is not UTF-8 text ({error})") from error
    tokens: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        # Headers are bytes, and clients encode non-ASCII letters differently.
        is_token = len(words) == 2 and words[1].isascii() and len(words[1]) >= SHORTEST_TOKEN
        if not is_token or not line.isprintable() or words[1] in tokens:
            # The message omits the line, because it may contain a token.
            raise Invalid(
                f"api-tokens-file {path!r}: line {number} must be a name, a space and a unique token of at least "
                f"{SHORTEST_TOKEN} ASCII characters. "
                f"Fix: for example `anna $(openssl rand -hex 32)`"
            )
        tokens[words[1]] = words[0]
    if not tokens:
        raise Invalid(f"api-tokens-file {path!r} contains no token, so every request would be refused. Fix: add a line")
    return tokens
