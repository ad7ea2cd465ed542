"""Named contexts: one Kafka cluster each, a table in a TOML file like `[prod]` with `admin-addr = "throttle1:8090"`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from autothrottle_client.admin import AdminClient
from autothrottle_client.errors import Invalid, Missing
from autothrottle_client.files import read_text, read_toml
from autothrottle_client.replicas import parse_addresses
from autothrottle_client.suggestions import hidden_key
from autothrottle_client.tls import Tls

CONTEXTS_VARIABLE = "AUTOTHROTTLE_CONTEXTS"
"""Path of another file."""

KEYS = ("admin-addr", "tls-cert", "tls-key", "tls-ca", "tls-server-name", "token-file")

_ALIASES = {"addr": "admin-addr"}
"""Spelling of earlier versions -> key."""


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
            raise Missing(
                f"{self.path} has no context {name[:60]!r}: {names}; add a table [{name[:60]}] with admin-addr"
            )
        return self.values[name]


def read_contexts() -> Contexts:
    """Return the contexts of $AUTOTHROTTLE_CONTEXTS or ~/.config/autothrottle/contexts.toml; no file: none.

    Raises:
        Invalid: the file is not TOML, a table has no admin-addr, or a key is not one of `KEYS` with a text.
    """
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    given = os.environ.get(CONTEXTS_VARIABLE) or f"{base}/autothrottle/contexts.toml"
    path = Path(given).expanduser()
    return read_contexts_file(path) if path.exists() else Contexts(path, {})


def read_contexts_file(path: Path) -> Contexts:
    """Return the contexts of a file.

    Raises:
        Invalid: it cannot be read, is not TOML, a table has no admin-addr, or a key is not one of `KEYS` with a text.
    """
    try:
        tables, _ = read_toml(path)
    except (OSError, ValueError) as error:
        raise Invalid(f"the contexts in {path} cannot be read: {error}; give a TOML file with tables") from None
    return Contexts(path, {name: _options(path, name, table) for name, table in tables.items()})


def _options(path: Path, name: str, table: object) -> Mapping[str, str]:
    if not isinstance(table, dict) or not {"admin-addr", "addr"} & table.keys():
        raise Invalid(f"context {name!r} in {path} has no admin-addr; give a table with admin-addr")
    if {"admin-addr", "addr"} <= table.keys():
        raise Invalid(f"context {name!r} in {path} has admin-addr and addr, which mean the same; give admin-addr only")
    for key, value in table.items():
        if _ALIASES.get(key, key) not in KEYS or not isinstance(value, str):
            raise Invalid(
                f"{hidden_key(str(key))!r} of context {name!r} in {path} is not valid; give texts for {', '.join(KEYS)}"
            )
    options = {_ALIASES.get(str(key), str(key)): str(value) for key, value in table.items()}
    try:
        parse_addresses(options["admin-addr"])
    except Invalid as error:
        raise Invalid(f"context {name!r} in {path}: {error}") from None
    return options


def admin_client(context: Mapping[str, str], timeout: timedelta, client_id: str) -> AdminClient:
    """Return a client of the admin services of a context; the caller closes it.

    Raises:
        Invalid: TLS is incomplete, or a file cannot be read.
    """
    path = context.get("token-file")
    token = "" if path is None else read_token_file(path)
    return AdminClient(context["admin-addr"], timeout, tls_of(context), token, client_id)


def tls_of(options: Mapping[str, str]) -> Tls | None:
    """Return the files of mutual TLS; None: no option of TLS is given.

    Args:
        options: name like `tls-cert` -> value; an absent or empty one is not given.

    Raises:
        Invalid: only a part is given.
    """
    values = [options.get(key) or "" for key in ("tls-cert", "tls-key", "tls-ca", "tls-server-name")]
    absent = [f"--{key}" for key in ("tls-cert", "tls-key", "tls-ca") if not options.get(key)]
    if not any(values):
        return None
    if absent:
        raise Invalid(f"TLS is mutual and needs --tls-cert, --tls-key and --tls-ca; also give {' and '.join(absent)}")
    return Tls(*values)


def read_token_file(path: str) -> str:
    """Return the token in a file.

    Raises:
        Invalid: the file cannot be read.
    """
    try:
        return read_text(path).strip()
    except (OSError, ValueError) as error:
        raise Invalid(
            f"token-file {path!r} cannot be read: {error}; give a file with a token and nothing else"
        ) from None
