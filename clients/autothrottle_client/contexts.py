"""Named contexts of `throttlectl`: one Kafka cluster each, in a TOML file with a table for each.

A value has the name of its option, for example `[prod]` with `addr = "throttle1:8090"`. The type to know is `Contexts`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autothrottle_client.errors import Invalid, Missing
from autothrottle_client.replicas import parse_addresses

CONTEXTS_VARIABLE = "AUTOTHROTTLE_CONTEXTS"
"""Path of another file."""

KEYS = ("addr", "tls-cert", "tls-key", "tls-ca", "tls-server-name", "token-file")


@dataclass(frozen=True, slots=True)
class Contexts:
    """The contexts of one file."""

    path: Path
    values: Mapping[str, Mapping[str, str]]
    """Name of the context -> option -> value."""

    def of(self, name: str) -> Mapping[str, str]:
        """Return the options of a context.

        Raises:
            Missing: it has no such context.
        """
        if name not in self.values:
            names = f"it has {', '.join(sorted(self.values))}" if self.values else "it has none"
            raise Missing(f"{self.path} has no context {name[:60]!r}: {names}; add a table [{name[:60]}] with addr")
        return self.values[name]


def read_contexts() -> Contexts:
    """Return the contexts of $AUTOTHROTTLE_CONTEXTS or ~/.config/autothrottle/contexts.toml; no file: none.

    Raises:
        Invalid: the file is not TOML, a table has no addr, or a key is not one of `KEYS` with a text.
    """
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    given = os.environ.get(CONTEXTS_VARIABLE) or f"{base}/autothrottle/contexts.toml"
    path = Path(given).expanduser()
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return Contexts(path, {})
    except (OSError, ValueError) as error:
        raise Invalid(f"the contexts in {path} cannot be read: {error}; give a TOML file with tables") from None
    return Contexts(path, {name: _options(path, name, table) for name, table in tables.items()})


def _options(path: Path, name: str, table: object) -> Mapping[str, str]:
    if not isinstance(table, dict) or "addr" not in table:
        raise Invalid(f"context {name!r} in {path} has no addr; give a table with addr")
    for key, value in table.items():
        if key not in KEYS or not isinstance(value, str):
            raise Invalid(f"{key!r} of context {name!r} in {path} is not valid; give texts for {', '.join(KEYS)}")
    try:
        parse_addresses(table["addr"])
    except Invalid as error:
        raise Invalid(f"context {name!r} in {path}: {error}") from None
    return table
