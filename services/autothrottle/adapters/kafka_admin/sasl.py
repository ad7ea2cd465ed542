"""The login of the properties `sasl.*`: PLAIN, SCRAM, OAUTHBEARER, and IAM of Amazon MSK.

No message contains the value of an option that can be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from autothrottle.adapters.kafka_admin.bearer_tokens import BearerTokens, TokenSource
from autothrottle.adapters.kafka_admin.java_properties import shown_name, unescape
from autothrottle.adapters.kafka_admin.key_stores import tls_context
from autothrottle.adapters.kafka_admin.token_sources import MskSigner, TokenEndpoint, TokenFile, has_signer
from autothrottle.core.errors import Invalid

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM")

_ENDPOINT_URL = "sasl.oauthbearer.token.endpoint.url"
_CLIENT_ID = "sasl.oauthbearer.client.credentials.client.id"
_CLIENT_SECRET = "sasl.oauthbearer.client.credentials.client.secret"
_SCOPE = "sasl.oauthbearer.scope"
_HEADER_ENCODING = "sasl.oauthbearer.header.urlencode"

_OAUTH = "org.apache.kafka.common.security.oauthbearer."
_STRIMZI_LOGIN = "io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler"
_MSK = "software.amazon.msk.auth.iam."
_MSK_LOGIN = f"{_MSK}IAMOAuthBearerLoginCallbackHandler"
_LOGIN_HANDLER, _CLIENT_HANDLER = "sasl.login.callback.handler.class", "sasl.client.callback.handler.class"

CLASSES: Mapping[str, tuple[str, ...]] = {
    _LOGIN_HANDLER: (
        f"{_OAUTH}OAuthBearerLoginCallbackHandler",
        f"{_OAUTH}secured.OAuthBearerLoginCallbackHandler",
        _STRIMZI_LOGIN,
        _MSK_LOGIN,
    ),
    _CLIENT_HANDLER: (f"{_MSK}IAMClientCallbackHandler", _MSK_LOGIN),
    "sasl.oauthbearer.jwt.retriever.class": (
        f"{_OAUTH}DefaultJwtRetriever",
        f"{_OAUTH}ClientCredentialsJwtRetriever",
        f"{_OAUTH}FileJwtRetriever",
    ),
    "sasl.oauthbearer.jwt.validator.class": (f"{_OAUTH}DefaultJwtValidator", f"{_OAUTH}ClientJwtValidator"),
}
"""Property -> the classes of Java whose work autothrottle does itself. Other classes are refused."""

_MECHANISMS_OF: Mapping[str, tuple[str, ...]] = {
    "sasl.oauthbearer.": ("OAUTHBEARER",),
    _LOGIN_HANDLER: ("OAUTHBEARER",),
    _CLIENT_HANDLER: ("OAUTHBEARER", "AWS_MSK_IAM"),
}
"""Prefix of properties -> the mechanisms that use them."""

_JAAS = re.compile(
    r"\s*(?P<module>[\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(?P<options>.*);\s*", re.DOTALL
)
_JAAS_OPTION = re.compile(
    r"""\s*([\w.$-]+)\s*=\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s;"'=]+)(?=\s|$)""", re.DOTALL
)
_JAAS_FORM = 'required username="..." password="...";'
_OAUTH_FORM = f"{_OAUTH}OAuthBearerLoginModule required;"

_STRIMZI_OPTIONS = {
    "oauth.token.endpoint.uri": "url",
    "oauth.client.id": "clientId",
    "oauth.client.secret": "clientSecret",
    "oauth.scope": "scope",
    "oauth.audience": "audience",
    "oauth.ssl.truststore.location": "ssl.truststore.location",
    "oauth.ssl.truststore.password": "ssl.truststore.password",
    "oauth.ssl.truststore.type": "ssl.truststore.type",
    "oauth.ssl.truststore.certificates": "ssl.truststore.certificates",
}
"""JAAS option of Strimzi's login handler -> the same one here."""

_UNUSED_OPTIONS = ("serviceName",)
"""JAAS options of other mechanisms, which Kafka's examples leave in place."""


def sasl_options(properties: Mapping[str, str], protocol: str, warnings: list[str]) -> Mapping[str, Any]:
    """Return kafka-python's options for these properties; add to the warnings.

    Raises:
        Invalid: a property is unsupported, wrong, or requires another one; the message names it and the fix.
    """
    mechanism = _mechanism(properties)
    _check_classes(properties)
    unused = [
        shown_name(name)
        for name in properties
        for prefix, mechanisms in _MECHANISMS_OF.items()
        if name.startswith(prefix) and mechanism not in mechanisms
    ]
    if unused:
        warnings.append(f"{', '.join(unused)}: ignored, because sasl.mechanism {mechanism} does not use it")
    if protocol == "SASL_PLAINTEXT":
        secret = {"PLAIN": "password", "OAUTHBEARER": "token", "AWS_MSK_IAM": "token"}.get(mechanism, "hashed password")
        warnings.append(
            f"security.protocol SASL_PLAINTEXT sends the {secret} without encryption, readable on the network. "
            f"Fix: SASL_SSL"
        )
    if mechanism == "AWS_MSK_IAM" or properties.get(_LOGIN_HANDLER) == _MSK_LOGIN:
        return _token_login(_msk_signer(properties, protocol, warnings), {})
    if mechanism == "OAUTHBEARER":
        return _oauth(properties, warnings)
    username, password = _credentials(properties, mechanism, warnings)
    return {"sasl_mechanism": mechanism, "sasl_plain_username": username, "sasl_plain_password": password}


def _mechanism(properties: Mapping[str, str]) -> str:
    mechanism = properties.get("sasl.mechanism", "GSSAPI").upper()
    if mechanism == "GSSAPI":
        named = "GSSAPI" if "sasl.mechanism" in properties else "is not given, and Kafka's default GSSAPI"
        raise Invalid(
            f"sasl.mechanism {named} (Kerberos) is not supported: it needs the Kerberos libraries of the operating "
            f"system and a ticket that another program renews. It must be one of {', '.join(MECHANISMS)}. "
            f"Fix: give autothrottle's user another mechanism, or a client certificate with security.protocol SSL"
        )
    if mechanism not in MECHANISMS:
        raise Invalid(
            f"sasl.mechanism {mechanism[:100]!r} is not supported; it must be one of {', '.join(MECHANISMS)}. "
            f"Fix: give one"
        )
    return mechanism


def _check_classes(properties: Mapping[str, str]) -> None:
    for name, classes in CLASSES.items():
        if (class_name := properties.get(name)) is not None and class_name not in classes:
            why = ": autothrottle cannot sign assertions with a key" if "JwtBearer" in class_name else ""
            raise Invalid(
                f"{name} {class_name[:200]!r} is not supported{why}. It must be one of {', '.join(classes)}. "
                f"Fix: use a user of one of these logins for autothrottle"
            )


# PLAIN and SCRAM


def _credentials(properties: Mapping[str, str], mechanism: str, warnings: list[str]) -> tuple[str, str]:
    kind = "Plain" if mechanism == "PLAIN" else "Scram"
    module = f"{kind}LoginModule"
    fix = f"Fix: give org.apache.kafka.common.security.{kind.lower()}.{module} {_JAAS_FORM}"
    if "sasl.jaas.config" not in properties:
        raise Invalid(f"sasl.jaas.config is not given; it must be ...{module} {_JAAS_FORM} {fix}")
    given = _jaas_options(properties["sasl.jaas.config"], module)
    if given is None:
        form = f"sasl.jaas.config is not `...{module} required username=... password=...;`"
        raise Invalid(f"{form}, which sasl.mechanism {mechanism} requires, or is badly quoted. {fix}")
    if given.get("tokenauth", "false").lower() != "false":
        raise Invalid(
            f"tokenauth in sasl.jaas.config is not supported: a delegation token ends, and only Java's clients send "
            f"it. {fix}"
        )
    if not given.get("username") or not given.get("password"):
        raise Invalid(f"sasl.jaas.config has no username or no password. {fix}")
    _warn_of_unused(given, ("username", "password", "tokenauth"), warnings)
    username = given["username"]
    if mechanism != "PLAIN":  # RFC 5802, section 5.1, which kafka-python leaves to its user
        username = username.replace("=", "=3D").replace(",", "=2C")
    return username, given["password"]


def _jaas_options(jaas: str, module: str) -> Mapping[str, str] | None:
    """Parse a JAAS line of this module: option -> value; None: it is malformed, or of another module."""
    matched = _JAAS.fullmatch(jaas)
    if not matched or matched["module"].rpartition(".")[2] != module:
        return None
    text, options, at = matched["options"], dict[str, str](), 0
    while text[at:].strip():
        option = _JAAS_OPTION.match(text, at)
        if not option:
            return None
        options[option[1]] = unescape(option[2][1:-1]) if option[2][0] in "\"'" else option[2]
        at = option.end()
    return options


def _warn_of_unused(given: Mapping[str, str], used: tuple[str, ...], warnings: list[str]) -> None:
    if unused := [shown_name(name) for name in given if name not in used and name not in _UNUSED_OPTIONS]:
        warnings.append(f"{', '.join(unused)}: ignored in sasl.jaas.config, because autothrottle does not use it")


# OAUTHBEARER


def _token_login(source: TokenSource, extensions: Mapping[str, str]) -> Mapping[str, Any]:
    return {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": BearerTokens(source, extensions)}


def _oauth(properties: Mapping[str, str], warnings: list[str]) -> Mapping[str, Any]:
    options = _oauth_options(properties)
    if any(name.startswith("unsecuredLogin") for name in options):
        raise Invalid(
            f"sasl.jaas.config has unsecuredLogin options: any client can make such a token. Fix: remove them, and "
            f"give {_ENDPOINT_URL}, {_CLIENT_ID} and {_CLIENT_SECRET}"
        )
    values = {"clientId": _CLIENT_ID, "clientSecret": _CLIENT_SECRET, "scope": _SCOPE, "url": _ENDPOINT_URL}
    for option, name in values.items():
        if option in options and name in properties:
            warnings.append(f"{option} in sasl.jaas.config is ignored, because {name} is given, as in Kafka")
        options[option] = properties.get(name, options.get(option, ""))
    extensions = {
        name.removeprefix("extension_"): options.pop(name) for name in list(options) if name.startswith("extension_")
    }
    tls = {name: options.pop(name) for name in list(options) if name.startswith("ssl.")}
    _warn_of_unused(options, (*values, "audience"), warnings)
    return _token_login(_token_source(options, properties, tls, warnings), extensions)


def _oauth_options(properties: Mapping[str, str]) -> dict[str, str]:
    jaas = properties.get("sasl.jaas.config", _OAUTH_FORM)
    given = _jaas_options(jaas, "OAuthBearerLoginModule")
    if given is None:
        raise Invalid(
            f"sasl.jaas.config is not `...OAuthBearerLoginModule required;`, which sasl.mechanism OAUTHBEARER "
            f"requires, or is badly quoted. Fix: give {_OAUTH_FORM}"
        )
    if properties.get(_LOGIN_HANDLER) != _STRIMZI_LOGIN:
        return dict(given)
    if unsupported := [
        shown_name(name) for name in given if name.startswith("oauth.") and name not in _STRIMZI_OPTIONS
    ]:
        raise Invalid(
            f"{', '.join(unsupported)} in sasl.jaas.config is not supported; supported are "
            f"{', '.join(_STRIMZI_OPTIONS)}. Fix: use the client id and secret of a user for autothrottle"
        )
    return {_STRIMZI_OPTIONS.get(name, name): value for name, value in given.items()}


def _token_source(
    options: Mapping[str, str], properties: Mapping[str, str], tls: Mapping[str, str], warnings: list[str]
) -> TokenSource:
    url = options["url"]
    try:
        parts = urlsplit(url)
        scheme, host, user, _ = parts.scheme, parts.hostname, parts.username, parts.port
    except ValueError:
        scheme, host, user = "", None, None
    if scheme == "file" and not host and unquote(parts.path):
        return TokenFile(unquote(parts.path))
    if scheme not in ("http", "https") or not host or user is not None:
        problem = "is not given" if not url else "has a user" if user is not None else "is not a URL"
        raise Invalid(
            f"{_ENDPOINT_URL} {problem}; it must be http://, https:// or file://. "
            f"Fix: give the URL of the token endpoint, without a user, for example https://idp.example/oauth2/token"
        )
    for option, name in (("clientId", _CLIENT_ID), ("clientSecret", _CLIENT_SECRET)):
        if not options[option]:
            raise Invalid(f"{name} is not given, and sasl.jaas.config has no {option}. Fix: give one of both")
    encodes = properties.get(_HEADER_ENCODING, "false").lower()
    if encodes not in ("true", "false"):
        raise Invalid(f"{_HEADER_ENCODING} {encodes[:40]!r} must be true or false. Fix: remove it")
    if scheme == "http" and host not in ("localhost", "127.0.0.1", "::1"):
        warnings.append(
            f"{_ENDPOINT_URL} is plain http to another host: the client secret and the tokens are readable on the "
            f"network. Fix: https"
        )
    if tls:
        if "ssl.endpoint.identification.algorithm" in tls:
            raise Invalid(
                "ssl.endpoint.identification.algorithm in sasl.jaas.config is not supported: the host name of the "
                "token endpoint is always checked. Fix: remove it"
            )
        tls_context(tls)
    audience, scope = options.get("audience", ""), options["scope"]
    return TokenEndpoint(
        url, options["clientId"], options["clientSecret"], scope, audience, encodes == "true", dict(tls)
    )


# MSK

_MSK_OPTIONS = ("awsProfileName", "awsRoleArn", "awsRoleSessionName")
_MSK_MODULES = ("IAMLoginModule", "OAuthBearerLoginModule")


def _msk_signer(properties: Mapping[str, str], protocol: str, warnings: list[str]) -> MskSigner:
    form = f"{_MSK}IAMLoginModule required;"
    jaas = properties.get("sasl.jaas.config", form)
    given = next((options for m in _MSK_MODULES if (options := _jaas_options(jaas, m)) is not None), None)
    if given is None:
        raise Invalid(
            f"sasl.jaas.config is not `...IAMLoginModule required;`, or is badly quoted. Fix: give {form}, perhaps "
            f"with awsProfileName or awsRoleArn"
        )
    if "awsProfileName" in given and "awsRoleArn" in given:
        raise Invalid("awsProfileName and awsRoleArn are both given in sasl.jaas.config. Fix: give one")
    if protocol != "SASL_SSL":
        raise Invalid("security.protocol must be SASL_SSL with IAM of MSK. Fix: SASL_SSL, and port 9098 of the brokers")
    if not has_signer():
        raise Invalid(
            "sasl.mechanism AWS_MSK_IAM needs AWS's library aws-msk-iam-sasl-signer-python, which is not installed. "
            "Fix: install autothrottle with the extra `msk`"
        )
    _warn_of_unused(given, _MSK_OPTIONS, warnings)
    return MskSigner(*(given.get(name, "") for name in _MSK_OPTIONS))
