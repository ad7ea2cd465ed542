"""Translates Kafka's client properties (a file in Java's format) into kafka-python's options.

Used are the properties that affect connections. Each other one is named: properties of producers, consumers and tools
are ignored with a warning. One that may protect something, or that names a class of Java, is refused, because the
operator would believe in its effect. No message of this package contains the value of a property that can be a secret.

`java_properties` reads the file, `key_stores` makes the TLS context, `sasl` the login, and `login` holds the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from autothrottle.adapters.kafka_admin.backoff import Backoff
from autothrottle.adapters.kafka_admin.connections import CollectedTlsSocket
from autothrottle.adapters.kafka_admin.java_properties import parse_properties, shown_name
from autothrottle.adapters.kafka_admin.key_stores import certificate_expiries, tls_context, truststore_fault
from autothrottle.adapters.kafka_admin.sasl import CLASSES, sasl_options
from autothrottle.core.errors import Invalid
from autothrottle_client.files import read_text

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

SUPPORTED = (
    "client.id",
    "connections.max.idle.ms",
    *CLASSES,
    "sasl.jaas.config",
    "sasl.mechanism",
    "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.header.urlencode",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.token.endpoint.url",
    "security.protocol",
    "ssl.enabled.protocols",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.type",
    "ssl.protocol",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.type",
)
"""Kafka's names of the properties that are used."""

_OPTIONS = {
    "bootstrap.servers": "bootstrap-servers",
    "bootstrap.controllers": "kafka-bootstrap-controllers",
    "request.timeout.ms": "kafka-api-request-timeout",
    "default.api.timeout.ms": "kafka-api-request-timeout",
}
"""Kafka's names of properties that autothrottle has options for -> the option."""

_HARMLESS = re.compile(
    r"sasl\.(?:"
    r"kerberos\..+"
    r"|login\.(?:connect\.timeout\.ms|read\.timeout\.ms|retry\.backoff(?:\.max)?\.ms|refresh\..+)"
    r"|oauthbearer\.(?:clock\.skew\.seconds|expected\.(?:audience|issuer)|jwks\.endpoint\..+|(?:scope|sub)\.claim\.name)"
    r")|ssl\.(?:secure\.random\.implementation)"
)
"""Properties of security that may be left out: periods, parts of Kerberos, and what only brokers verify."""
_DEFAULTS = {"ssl.keymanager.algorithm": ("SunX509", "PKIX"), "ssl.trustmanager.algorithm": ("PKIX",)}
"""Properties of security -> the values that mean what autothrottle does, too."""
_SECURITY = re.compile(r"(?:sasl|ssl|security|oauth)\.|config\.providers", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Kafka's client properties as options of kafka-python."""

    options: Mapping[str, Any]
    warnings: tuple[str, ...]
    """What an operator should know about the properties."""
    files: tuple[str, ...] = ()
    """Paths of the stores that were read."""
    expiries: Mapping[str, datetime] = field(default_factory=dict)
    """`ssl.keystore` or `ssl.truststore` -> when its first certificate expires."""
    fault: str = ""
    """What is wrong with certificates of the truststore, of which the valid ones are in use; "": nothing."""
    backoff: Backoff = field(default_factory=Backoff, compare=False)
    """The addresses that cannot be reached with these options."""

    def __repr__(self) -> str:
        return f"ClientOptions({', '.join(self.options)})"  # the values hold secrets


def read_client_properties(path: str) -> Mapping[str, str]:
    """Read a properties file: name -> value.

    Raises:
        Invalid: it cannot be read, or is not a properties file.
    """
    try:
        return parse_properties(read_text(path, "latin-1"))  # as Java reads it
    except OSError as error:
        problem, fix = f"cannot be read: {error.strerror}", "name a readable file"
    except ValueError as error:
        problem, fix = f"is not a file of Java properties: {error}", r"write \\ for a backslash"
    raise Invalid(f"kafka-client-config {path!r} {problem}. Fix: {fix}")


def client_options(properties: Mapping[str, str]) -> ClientOptions:
    """Return kafka-python's options for these properties. The files that they name are read now.

    Raises:
        Invalid: a property is unsupported, wrong, or requires another one; the message names it and the fix.
    """
    given = {name: value.strip() for name, value in properties.items()}  # as Kafka does
    warnings = list(_unused(given))
    protocol = given.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise Invalid(
            f"security.protocol {protocol[:100]!r} is not supported; it must be one of {', '.join(PROTOCOLS)}. "
            f"Fix: give one"
        )
    options: dict[str, Any] = {"security_protocol": protocol}
    if "client.id" in given:
        options["client_id"] = given["client.id"]
    if "connections.max.idle.ms" in given:
        options["connections_max_idle_ms"] = _milliseconds(given, "connections.max.idle.ms")
    _check_use(given, protocol)
    if protocol.startswith("SASL_"):
        options |= sasl_options(given, protocol, warnings)
    if protocol.endswith("SSL"):
        options["ssl_context"] = context = tls_context(given)
        context.sslsocket_class = CollectedTlsSocket
        if not context.check_hostname:
            warnings.append(
                "ssl.endpoint.identification.algorithm is empty: the host name in the brokers' certificates is not "
                "checked, so any holder of a trusted certificate can pose as a broker. Fix: remove it"
            )
    files = tuple(given[name] for name in ("ssl.keystore.location", "ssl.truststore.location") if name in given)
    expiries = certificate_expiries(given) if protocol.endswith("SSL") else {}
    fault = truststore_fault(given) if protocol.endswith("SSL") else ""
    return ClientOptions(options, tuple(warnings), files, expiries, fault)


def _unused(properties: Mapping[str, str]) -> Iterator[str]:
    """Yield warnings of the properties that are not used; refuse those that may protect something."""
    ignored = []
    for name, value in properties.items():
        if name in SUPPORTED or value in _DEFAULTS.get(name, ()):
            continue
        if option := _OPTIONS.get(name):
            yield f"{name} is ignored, because autothrottle has the option {option} for it"
        elif _SECURITY.match(name) and not _HARMLESS.fullmatch(name):
            raise Invalid(
                f"{shown_name(name)!r} is not supported, and without it the connections may be less secure than "
                f"intended. Supported are {', '.join(SUPPORTED)}. Fix: {_FIXES.get(name, 'remove it')}"
            )
        else:
            ignored.append(shown_name(name) if name else "(no name)")
    if ignored:
        hint = (
            ". *** hides a name that Kafka does not have, since it may be a secret. "
            "Fix: end lines that continue with a backslash"
        )
        names = ", ".join(dict.fromkeys(ignored))
        yield f"{names}: ignored, because autothrottle does not use it{hint if '***' in ignored else ''}"


_FIXES = {
    "config.providers": "write the values themselves into the file, and let only autothrottle's user read it",
    "ssl.cipher.suites": "remove it, or allow only TLS 1.3 by ssl.enabled.protocols=TLSv1.3",
}
"""Unsupported property -> what to do instead."""


def _check_use(properties: Mapping[str, str], protocol: str) -> None:
    """Refuse properties that the protocol does not use: the operator believes that they protect something."""
    for prefix, used in (("sasl.", protocol.startswith("SASL_")), ("ssl.", protocol.endswith("SSL"))):
        for name in properties:
            if name.startswith(prefix) and not used:
                raise Invalid(
                    f"{shown_name(name)} is given, but security.protocol {protocol} does not use it. "
                    f"Fix: give another security.protocol of {', '.join(PROTOCOLS)}, or remove it"
                )


def _milliseconds(properties: Mapping[str, str], name: str) -> int:
    text = properties[name]
    if not re.fullmatch(r"[0-9]{1,12}", text) or int(text) == 0:
        raise Invalid(f"{name} {text[:40]!r} must be an integer of milliseconds, > 0. Fix: give 540000, for example")
    return int(text)
