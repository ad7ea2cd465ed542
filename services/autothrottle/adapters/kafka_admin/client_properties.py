"""Translates Kafka's client properties (a file in Java's format) into kafka-python's options.

Supported are the properties that affect connections: the protocol, SASL with PLAIN or SCRAM, and TLS with PEM. All
others are refused by name, because a silently ignored property may be one that protects something. No message of this
module contains the value of a property that can be a secret.
"""

from __future__ import annotations

import re
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autothrottle.adapters.kafka_admin.connections import CollectedTlsSocket
from autothrottle.core.errors import Invalid

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

SUPPORTED = (
    "client.id",
    "connections.max.idle.ms",
    "sasl.jaas.config",
    "sasl.mechanism",
    "security.protocol",
    "ssl.enabled.protocols",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.type",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.type",
)
"""Kafka's names of the supported properties; all others are refused."""

_OPTIONS = {
    "bootstrap.servers": "bootstrap-servers",
    "bootstrap.controllers": "kafka-bootstrap-controllers",
    "request.timeout.ms": "kafka-api-request-timeout",
    "default.api.timeout.ms": "kafka-api-request-timeout",
}
"""Kafka's names of properties that autothrottle has options for -> the option."""

_TLS_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_JAAS = re.compile(
    r"\s*(?P<module>[\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(?P<options>.*);\s*", re.DOTALL
)
_JAAS_OPTION = re.compile(r"""\s*(\w+)\s*=\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s;"'=]+)(?=\s|$)""", re.DOTALL)
_JAAS_FORM = 'required username="..." password="...";'
_PEM = re.compile(r"^-----BEGIN ", re.MULTILINE)


def read_client_properties(path: str) -> Mapping[str, str]:
    """Read a properties file: name -> value.

    Raises:
        Invalid: it cannot be read, is not a properties file, or names an unsupported property.
    """
    try:
        content = Path(path).read_text("latin-1")  # as Java reads it
    except OSError as error:
        raise Invalid(
            f"kafka-client-config {path!r} cannot be read: {error.strerror}. Fix: name a readable file"
        ) from None
    properties = dict(_properties(content))
    for name in properties:
        _refuse_unsupported(name)
    return properties


def client_options(properties: Mapping[str, str]) -> Mapping[str, Any]:
    """Return kafka-python's options for these properties. The files that they name are read now.

    Raises:
        Invalid: a property is unsupported, wrong, or requires another one; the message names it and the fix.
    """
    for name in properties:
        _refuse_unsupported(name)
    protocol = _choice(properties, "security.protocol", "PLAINTEXT", PROTOCOLS)
    options: dict[str, Any] = {"security_protocol": protocol}
    if "client.id" in properties:
        options["client_id"] = properties["client.id"]
    if "connections.max.idle.ms" in properties:
        options["connections_max_idle_ms"] = _milliseconds(properties, "connections.max.idle.ms")
    _check_use(properties, protocol)
    if protocol.startswith("SASL_"):
        options |= _sasl(properties)
    if protocol.endswith("SSL"):
        options["ssl_context"] = _ssl_context(properties)
    return options


def _refuse_unsupported(name: str) -> None:
    if option := _OPTIONS.get(name):
        raise Invalid(f"{name} is not read from Kafka's client properties. Fix: give the option {option} instead")
    if name not in SUPPORTED:
        raise Invalid(
            f"{name[:100]!r} is not a supported property of Kafka's client; supported are {', '.join(SUPPORTED)}. "
            f"Fix: remove it"
        )


def _check_use(properties: Mapping[str, str], protocol: str) -> None:
    """Refuse properties that the protocol does not use: the operator believes that they protect something."""
    for prefix, used in (("sasl.", protocol.startswith("SASL_")), ("ssl.", protocol.endswith("SSL"))):
        for name in properties:
            if name.startswith(prefix) and not used:
                raise Invalid(
                    f"{name} is given, but security.protocol {protocol} does not use it. "
                    f"Fix: give another security.protocol of {', '.join(PROTOCOLS)}, or remove it"
                )


def _choice(properties: Mapping[str, str], name: str, default: str, choices: tuple[str, ...]) -> str:
    value = properties.get(name, default).strip().upper()
    if value not in choices:
        raise Invalid(f"{name} {value[:100]!r} is not supported; it must be one of {', '.join(choices)}. Fix: give one")
    return value


def _milliseconds(properties: Mapping[str, str], name: str) -> int:
    text = properties[name].strip()
    if not re.fullmatch(r"[0-9]{1,12}", text) or int(text) == 0:
        raise Invalid(f"{name} {text[:40]!r} must be an integer of milliseconds, > 0. Fix: give 540000, for example")
    return int(text)


# SASL


def _sasl(properties: Mapping[str, str]) -> Mapping[str, Any]:
    if "sasl.mechanism" not in properties:
        raise Invalid(f"sasl.mechanism is not given; it must be one of {', '.join(MECHANISMS)}. Fix: give one")
    mechanism = _choice(properties, "sasl.mechanism", "", MECHANISMS)
    if "sasl.jaas.config" not in properties:
        raise Invalid(f"sasl.jaas.config is not given; it must be ...LoginModule {_JAAS_FORM} Fix: give it")
    username, password = _credentials(properties["sasl.jaas.config"], mechanism)
    return {"sasl_mechanism": mechanism, "sasl_plain_username": username, "sasl_plain_password": password}


def _credentials(jaas: str, mechanism: str) -> tuple[str, str]:
    kind = "Plain" if mechanism == "PLAIN" else "Scram"
    module = f"{kind}LoginModule"
    form = f"sasl.jaas.config is not `...{module} required username=... password=...;`"
    fix = f"Fix: give org.apache.kafka.common.security.{kind.lower()}.{module} {_JAAS_FORM}"
    matched = _JAAS.fullmatch(jaas)
    if not matched or matched["module"].rpartition(".")[2] != module:
        raise Invalid(f"{form}, which sasl.mechanism {mechanism} requires. {fix}")
    given = _jaas_options(matched["options"])
    if given is None or not given.get("username") or not given.get("password"):
        raise Invalid(f"{form}: it has no username or no password, or is badly quoted. {fix}")
    return given["username"], given["password"]


def _jaas_options(text: str) -> Mapping[str, str] | None:
    """Parse JAAS options: name -> value; None: the text is malformed."""
    options: dict[str, str] = {}
    at = 0
    while text[at:].strip():
        matched = _JAAS_OPTION.match(text, at)
        if not matched:
            return None
        options[matched[1]] = _unquoted(matched[2])
        at = matched.end()
    return options


def _unquoted(text: str) -> str:
    if text[0] not in "\"'":
        return text
    return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), text[1:-1], flags=re.DOTALL)


# TLS


def _ssl_context(properties: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.sslsocket_class = CollectedTlsSocket
    context.minimum_version, context.maximum_version = _versions(properties)
    algorithm = properties.get("ssl.endpoint.identification.algorithm", "https").strip()
    if algorithm.lower() not in ("https", ""):
        raise Invalid(
            f"ssl.endpoint.identification.algorithm {algorithm[:40]!r} is not supported; it must be https, or empty "
            f"for no check of the host name. Fix: remove it"
        )
    context.check_hostname = bool(algorithm)
    _trust(context, properties)
    _identify(context, properties)
    return context


def _versions(properties: Mapping[str, str]) -> tuple[ssl.TLSVersion, ssl.TLSVersion]:
    names = [name.strip() for name in properties.get("ssl.enabled.protocols", "TLSv1.2,TLSv1.3").split(",")]
    if not all(name in _TLS_VERSIONS for name in names):
        raise Invalid(
            f"ssl.enabled.protocols {','.join(names)[:100]!r} is not supported; "
            f"it must be a comma list of {', '.join(_TLS_VERSIONS)}. Fix: remove the others"
        )
    versions = [_TLS_VERSIONS[name] for name in names]
    return min(versions), max(versions)


def _trust(context: ssl.SSLContext, properties: Mapping[str, str]) -> None:
    """Trust the CAs in the truststore; without one, those of the operating system."""
    location, pem = _pem(properties, "ssl.truststore", "ssl.truststore.certificates")
    if pem is None:
        context.load_default_certs()
        return
    try:
        context.load_verify_locations(cadata=pem)
    except (ssl.SSLError, ValueError):
        raise Invalid(f"{location} contains no valid certificate. Fix: give certificates in PEM") from None


def _identify(context: ssl.SSLContext, properties: Mapping[str, str]) -> None:
    """Load the client's certificate, if one is given."""
    location, pem = _pem(properties, "ssl.keystore", "ssl.keystore.key")
    chain = properties.get("ssl.keystore.certificate.chain")
    if (chain is None) != ("ssl.keystore.key" not in properties):
        raise Invalid(
            "only one of ssl.keystore.key and ssl.keystore.certificate.chain is given. Fix: give both or neither"
        )
    if pem is None:
        return
    password = properties.get("ssl.key.password")
    with _private_file(f"{pem}\n{chain or ''}\n") as path:
        try:
            # Without a password OpenSSL would ask for one on the terminal.
            context.load_cert_chain(path, password=password if password is not None else _no_password)
        except (ssl.SSLError, ValueError, OSError):
            raise Invalid(
                f"{location} has no private key with its certificate, or ssl.key.password does not decrypt it. "
                f"Fix: give a key (PKCS 8) and its certificate chain in PEM"
            ) from None


def _no_password() -> str:
    raise ValueError("the key has a password")


def _pem(properties: Mapping[str, str], store: str, inline: str) -> tuple[str, str | None]:
    """Return the origin of a store's PEM (for messages) and its text; None: the store is not configured."""
    kind = properties.get(f"{store}.type", "PEM").strip().upper()
    if kind != "PEM":
        fix = "Fix: convert it with keytool and openssl, and give the PEM file"
        raise Invalid(f"{store}.type {kind[:40]!r} is not supported; it must be PEM. {fix}")
    path = properties.get(f"{store}.location")
    if path is None:
        return inline, properties.get(inline)
    if inline in properties:
        raise Invalid(f"{store}.location and {inline} are both given. Fix: give one")
    where = f"{store}.location {path!r}"
    try:
        pem = Path(path).read_bytes().decode("ascii", "replace")
    except OSError as error:
        raise Invalid(f"{where} cannot be read: {error.strerror}. Fix: name a readable file") from None
    if not _PEM.search(pem):
        raise Invalid(f"{where} is not a PEM file. Fix: convert it with keytool and openssl")
    return where, pem


@contextmanager
def _private_file(content: str) -> Iterator[str]:
    """A temporary file with mode 0600, because OpenSSL loads keys only from files."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="autothrottle-") as file:
        file.write(content)
        file.flush()
        yield file.name


# Java's format


def _properties(content: str) -> Iterator[tuple[str, str]]:
    for line in _logical_lines(content):
        name, value = _split(line)
        yield _unescaped(name), _unescaped(value)


def _logical_lines(content: str) -> Iterator[str]:
    """Yield lines without comments; a backslash at the end joins a line with the next one."""
    lines = iter(re.split(r"\r\n|\n|\r", content))
    for line in lines:
        line = line.lstrip(" \t\f")
        if not line or line[0] in "#!":
            continue
        while (len(line) - len(line.rstrip("\\"))) % 2:
            line = line[:-1] + next(lines, "").lstrip(" \t\f")
        yield line


def _split(line: str) -> tuple[str, str]:
    """Split at the first unescaped `=`, `:` or white space after the name."""
    matched = re.match(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", line, re.DOTALL)
    assert matched  # it matches everything
    return matched[1], matched[2]


def _unescaped(text: str) -> str:
    def character(matched: re.Match[str]) -> str:
        code, other = matched[1], matched[2]
        return chr(int(code, 16)) if code else _ESCAPES.get(other, other)

    return re.sub(r"\\(?:u([0-9A-Fa-f]{4})|(.))", character, text, flags=re.DOTALL)
