"""Who may use the HTTP API: names and their bearer tokens, in a file that may be renewed while we run."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from pathlib import Path

from autothrottle.adapters.renewed import Renewed
from autothrottle.core.errors import Invalid

SHORTEST_TOKEN = 16
"""Characters."""


class Tokens:
    """The tokens of a file as it is now. Threads may share it.

    Raises:
        Invalid: when the file cannot be read, or a line is no name and token.
    """

    def __init__(self, path: str) -> None:
        """Read the file."""
        self._tokens = Renewed((path,), lambda: _read(path))

    def name_of(self, authorization: str) -> str | None:
        """Return whose token the text of an `Authorization` header bears; None: nobody's."""
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return None
        tokens, _ = self._tokens.current()
        # All are compared, each in the same time: how long it takes tells nothing of a token.
        found = [name for token, name in tokens.items() if hmac.compare_digest(token.encode(), given.strip().encode())]
        return found[0] if found else None


def _read(path: str) -> Mapping[str, str]:
    """Token -> name."""
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except OSError as error:
        raise Invalid(
            f"api-tokens-file {path!r} cannot be read: {error.strerror}. Fix: name a readable file"
        ) from error
    except ValueError as error:
        raise Invalid(f"api-tokens-file {path!r} is no UTF-8 text ({error})") from error
    tokens: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        # A header holds bytes, and clients do not agree on which ones a letter beyond ASCII is.
        is_token = len(words) == 2 and words[1].isascii() and len(words[1]) >= SHORTEST_TOKEN
        if not is_token or not line.isprintable() or words[1] in tokens:
            # The line itself is not shown: what is in it may be a token.
            raise Invalid(
                f"api-tokens-file {path!r}: line {number} must be a name, a space and a token of at least "
                f"{SHORTEST_TOKEN} characters, ASCII, that no other line has. "
                f"Fix: for example `anna $(openssl rand -hex 32)`"
            )
        tokens[words[1]] = words[0]
    if not tokens:
        raise Invalid(f"api-tokens-file {path!r} holds no token, so nobody could use the HTTP API. Fix: add a line")
    return tokens
