"""The TLS context of the properties `ssl.*`: truststores and keystores in PEM or PKCS 12.

Private keys are in the memory of this process only. OpenSSL loads them from a file, which is an anonymous one in memory
(`memfd_create`). No message contains a password.
"""

from __future__ import annotations

import re
import ssl
import textwrap
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates, load_pkcs12

from autothrottle.adapters.credentials import first_expiry, pem_expiries
from autothrottle.core.errors import Invalid
from autothrottle_client.files import private_file
from autothrottle_client.tls import valid_certificates

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_PROTOCOLS = ("TLS", *_VERSIONS)
_TYPES = ("PEM", "PKCS12", "JKS")
_PEM = re.compile(rb"^-----BEGIN ", re.MULTILINE)
_PKCS12 = re.compile(rb"0[\x80-\x84]")
"""Its first bytes: a sequence of ASN.1 with more than 127 bytes."""
_JAVA_MAGICS = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
"""First bytes of the formats JKS and JCEKS."""


def tls_context(properties: Mapping[str, str]) -> ssl.SSLContext:
    """Return the context of a client with these properties. The files that they name are read now.

    Raises:
        Invalid: a property is wrong, or a store cannot be read; the message names it and the fix.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version, context.maximum_version = _versions(properties)
    algorithm = properties.get("ssl.endpoint.identification.algorithm", "https")
    if algorithm.lower() not in ("https", ""):
        raise Invalid(
            f"ssl.endpoint.identification.algorithm {algorithm[:40]!r} is not supported; it must be https, or empty "
            f"for no check of the host name. Fix: remove it"
        )
    context.check_hostname = bool(algorithm)
    _trust(context, properties)
    _identify(context, properties)
    return context


def truststore_fault(properties: Mapping[str, str]) -> str:
    """Return what is wrong with certificates of a truststore whose others are valid; "": nothing.

    Raises:
        Invalid: as `tls_context`.
    """
    store = _store(properties, "ssl.truststore", "ssl.truststore.certificates")
    if store is None or _PKCS12.match(store[1]):
        return ""
    origin, content = store
    fault = valid_certificates(content.decode("ascii", "replace"))[1]
    return f"{origin}: {fault}" if fault else ""


def certificate_expiries(properties: Mapping[str, str]) -> Mapping[str, datetime]:
    """Return `ssl.keystore` and `ssl.truststore` -> when the first certificate expires; absent: it has none.

    Raises:
        Invalid: as `tls_context`.
    """
    chain = _wrapped(properties.get("ssl.keystore.certificate.chain", "")).encode()
    stores = {
        "ssl.keystore": _store(properties, "ssl.keystore", "ssl.keystore.key"),
        "ssl.truststore": _store(properties, "ssl.truststore", "ssl.truststore.certificates"),
    }
    expiries: dict[str, datetime] = {}
    for name, store in stores.items():
        if store is None:
            continue
        origin, content = store
        if _PKCS12.match(content):
            loaded = _load_pkcs12(properties, name, origin, content)
            entries = [entry for entry in (loaded.cert, *loaded.additional_certs) if entry is not None]
            times = [entry.certificate.not_valid_after_utc for entry in entries]
        else:
            pem = content + (b"\n" + chain if name == "ssl.keystore" else b"")
            times = list(pem_expiries(store=pem).values())
        if times:
            expiries[name] = first_expiry(times)
    return expiries


def _versions(properties: Mapping[str, str]) -> tuple[ssl.TLSVersion, ssl.TLSVersion]:
    names = [name.strip() for name in properties.get("ssl.enabled.protocols", "TLSv1.2,TLSv1.3").split(",")]
    if not all(name in _VERSIONS for name in names):
        raise Invalid(
            f"ssl.enabled.protocols {','.join(names)[:100]!r} is not supported; "
            f"it must be a comma list of {', '.join(_VERSIONS)}. Fix: remove the others"
        )
    protocol = properties.get("ssl.protocol", "TLS")
    if protocol not in _PROTOCOLS:
        raise Invalid(
            f"ssl.protocol {protocol[:40]!r} is not supported; it must be one of {', '.join(_PROTOCOLS)}. "
            f"Fix: remove it"
        )
    highest = _VERSIONS.get(protocol, ssl.TLSVersion.TLSv1_3)
    versions = [_VERSIONS[name] for name in names if _VERSIONS[name] <= highest]
    if not versions:
        raise Invalid(
            f"ssl.protocol {protocol} allows none of ssl.enabled.protocols {','.join(names)}. Fix: remove ssl.protocol"
        )
    return min(versions), max(versions)


def _trust(context: ssl.SSLContext, properties: Mapping[str, str]) -> None:
    """Trust the certificates in the truststore; without one, those of the operating system."""
    store = _store(properties, "ssl.truststore", "ssl.truststore.certificates")
    if store is None:
        context.load_default_certs()
        return
    origin, content = store
    authorities: str | bytes
    if not _PKCS12.match(content):
        authorities = "\n".join(valid_certificates(content.decode("ascii", "replace"))[0])
    else:
        loaded = _load_pkcs12(properties, "ssl.truststore", origin, content)
        certificates = [entry.certificate for entry in loaded.additional_certs]
        certificates += [loaded.cert.certificate] if loaded.cert else []
        authorities = b"".join(certificate.public_bytes(Encoding.DER) for certificate in certificates)
    try:
        context.load_verify_locations(cadata=authorities)
    except (ssl.SSLError, ValueError):
        raise Invalid(f"{origin} contains no valid certificate. Fix: add the authority's certificate to it") from None
    # As in Java: each certificate of a truststore is trusted, also that of an intermediate authority.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def _identify(context: ssl.SSLContext, properties: Mapping[str, str]) -> None:
    """Load the client's certificate, if one is given."""
    store = _store(properties, "ssl.keystore", "ssl.keystore.key")
    chain = properties.get("ssl.keystore.certificate.chain")
    if (chain is None) != ("ssl.keystore.key" not in properties):
        raise Invalid(
            "only one of ssl.keystore.key and ssl.keystore.certificate.chain is given. Fix: give both or neither"
        )
    if store is None:
        return
    origin, content = store
    if not _PKCS12.match(content):
        password = properties.get("ssl.key.password")
        _load_chain(context, origin, content + f"\n{_wrapped(chain or '')}\n".encode(), password)
        return
    loaded = _load_pkcs12(properties, "ssl.keystore", origin, content)
    if loaded.key is None or loaded.cert is None:
        raise Invalid(f"{origin} has no private key with its certificate. Fix: name a keystore, not a truststore")
    certificates = [entry.certificate for entry in (loaded.cert, *loaded.additional_certs)]
    pems = [certificate.public_bytes(Encoding.PEM) for certificate in certificates]
    key = loaded.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    _load_chain(context, origin, b"".join([key, *pems]), None)


def _load_chain(context: ssl.SSLContext, origin: str, pem: bytes, password: str | None) -> None:
    with private_file(pem) as path:
        try:
            # Without a password OpenSSL would ask for one on the terminal.
            context.load_cert_chain(path, password=password if password is not None else _no_password)
        except (ssl.SSLError, ValueError, OSError):
            raise Invalid(
                f"{origin} has no private key with its certificate, or ssl.key.password does not decrypt it. "
                f"Fix: give a key (PKCS 8) and its certificate chain in PEM"
            ) from None


def _no_password() -> str:
    raise ValueError("the key has a password")


def _store(properties: Mapping[str, str], store: str, inline: str) -> tuple[str, bytes] | None:
    """Return the origin of a store (for messages) and its content; None: the store is not configured."""
    kind = properties.get(f"{store}.type", "").upper()
    if kind and kind not in _TYPES:
        raise Invalid(
            f"{store}.type {kind[:40]!r} is not supported; it must be PEM or PKCS12. Fix: convert it with "
            f"`keytool -importkeystore -srcstoretype {kind[:40]} -deststoretype PKCS12`, see keytool's help"
        )
    path = properties.get(f"{store}.location")
    if path is None:
        return (inline, _wrapped(properties[inline]).encode()) if inline in properties else None
    if inline in properties:
        raise Invalid(f"{store}.location and {inline} are both given. Fix: give one")
    origin = f"{store}.location {path!r}"
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise Invalid(f"{origin} cannot be read: {error.strerror}. Fix: name a readable file") from None
    _check_content(properties, store, kind, path, content)
    return origin, content


def _wrapped(pem: str) -> str:
    """Return a PEM text with line ends, which a property on one line does not have and OpenSSL needs."""
    return re.sub(
        r"(-----BEGIN [A-Z0-9 ]+-----)([A-Za-z0-9+/=\s]+)(-----END [A-Z0-9 ]+-----)",
        lambda block: "\n".join(["", block[1], *textwrap.wrap("".join(block[2].split()), 64), block[3], ""]),
        pem,
    )


def _check_content(properties: Mapping[str, str], store: str, kind: str, path: str, content: bytes) -> None:
    """Refuse a store in JKS, and one that is not what its type says."""
    origin = f"{store}.location {path!r}"
    if content.startswith(_JAVA_MAGICS):
        converted = f"{path.removesuffix('.jks')}.p12"
        raise Invalid(
            f"{origin} is in Java's own format JKS, which only Java reads. Fix: `keytool -importkeystore "
            f"-srckeystore {path} -destkeystore {converted} -deststoretype PKCS12`, "
            f"then {store}.location={converted} and {store}.type=PKCS12"
        )
    is_pem = bool(_PEM.search(content))
    if is_pem and f"{store}.password" in properties:
        raise Invalid(
            f"{store}.password is given, but {origin} is PEM, where only ssl.key.password counts. Fix: remove it"
        )
    if is_pem and kind in ("", "PEM"):
        return
    # Java reads PKCS 12 as JKS, too, which is the default of the type.
    if not is_pem and _PKCS12.match(content) and kind != "PEM":
        return
    actual = "a PEM file" if is_pem else "not a PEM file" if kind == "PEM" else "neither a PEM nor a PKCS 12 file"
    fix = f"{store}.type=PEM" if is_pem else "name another file, or set the type to what it is (PKCS12)"
    raise Invalid(f"{origin} is {actual}{f', but {store}.type is {kind}' if kind else ''}. Fix: {fix}")


def _load_pkcs12(properties: Mapping[str, str], store: str, origin: str, content: bytes) -> PKCS12KeyAndCertificates:
    if store == "ssl.keystore" and len({properties.get(f"ssl.{x}.password") for x in ("keystore", "key")} - {None}) > 1:
        raise Invalid(
            f"ssl.key.password is not ssl.keystore.password, but a key in PKCS 12 has the store's password. "
            f"Fix: remove ssl.key.password, or store {origin} anew with one password"
        )
    password = properties.get(f"{store}.password")
    try:
        return load_pkcs12(content, password.encode() if password else None)
    except (ValueError, UnsupportedAlgorithm):
        problem = "does not open it" if password else "is not given"
        raise Invalid(
            f"{origin} cannot be opened as PKCS 12: it is damaged, or {store}.password {problem}. "
            f"Fix: try `keytool -list -keystore` with that password"
        ) from None
