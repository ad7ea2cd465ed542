"""A real cluster with a listener for each kind of login: TLS, passwords, and tokens of an emulated token endpoint."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.connections import CLIENT, kafka
from autothrottle.adapters.kafka_admin.login import KafkaLogin
from autothrottle.adapters.kafka_admin.values import KafkaSettings
from autothrottle_lab.emulators.tokens import AUDIENCE, ISSUER, TokenEndpointEmulator
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from autothrottle_lab.servers.processes import free_ports
from tests.builders import eventually
from tests.paths import CERTIFICATES

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer"
CLIENT_ID, CLIENT_SECRET = "throttle", "t0ken-secret"
LISTENERS = {
    "USERS": "SASL_PLAINTEXT",
    "TLS": "SSL",
    "BOTH": "SASL_SSL",
    "TOKENS": "SASL_PLAINTEXT",
}
"""Name -> protocol, besides the listener PLAINTEXT."""
LONG = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class SecuredCluster:
    """Brokers with a listener for each kind of login, and the endpoint whose tokens they accept."""

    cluster: KraftCluster
    endpoint: TokenEndpointEmulator
    sasl: tuple[str, ...]
    """Addresses of the listeners with PLAIN and SCRAM."""
    tls: tuple[str, ...]
    """Those of TLS with a client certificate."""
    sasl_over_tls: tuple[str, ...]
    tokens: tuple[str, ...]
    """Those of OAUTHBEARER."""

    def admin(self, timeout: timedelta = LONG) -> KafkaAdmin:
        """Return a client without a login."""
        brokers, controllers = self.cluster.bootstrap_servers, self.cluster.bootstrap_controllers
        return KafkaAdmin(
            KafkaSettings(tuple(brokers.split(",")), tuple(controllers.split(",")), request_timeout=timeout)
        )


def connected(servers: tuple[str, ...], properties: Mapping[str, str]) -> KafkaAdmin:
    """Return a client with these properties."""
    return KafkaAdmin(KafkaSettings(servers, (), KafkaLogin(properties), LONG))


def token_login(endpoint: TokenEndpointEmulator, secret: str = CLIENT_SECRET) -> dict[str, str]:
    """Return the properties of a login by client credentials."""
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": endpoint.token_url,
        "sasl.oauthbearer.client.credentials.client.id": CLIENT_ID,
        "sasl.oauthbearer.client.credentials.client.secret": secret,
    }


@contextmanager
def secured_cluster(directory: Path, broker_ids: tuple[int, ...]) -> Iterator[SecuredCluster]:
    """Start the brokers and the token endpoint. User bob has a password for SCRAM, and alice one for PLAIN."""
    with TokenEndpointEmulator({CLIENT_ID: CLIENT_SECRET}) as endpoint:
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={endpoint.keys_url}"
        cluster = KraftCluster(directory, broker_ids, java_options=[allowed])
        ports = {broker_id: free_ports(len(LISTENERS)) for broker_id in broker_ids}
        for broker_id, broker in cluster.brokers.items():
            listeners = {"PLAINTEXT": broker.port, **dict(zip(LISTENERS, ports[broker_id], strict=True))}
            broker.configure(_properties(listeners, endpoint))
        with cluster:
            _add_scram_users(cluster)
            addresses = zip(*ports.values(), strict=True)
            yield SecuredCluster(
                cluster, endpoint, *(tuple(f"127.0.0.1:{port}" for port in listener) for listener in addresses)
            )


def _properties(listeners: Mapping[str, int], endpoint: TokenEndpointEmulator) -> Mapping[str, object]:
    protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **LISTENERS}
    properties: dict[str, object] = {
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in listeners.items()),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        "listener.name.tls.ssl.client.auth": "required",
        "sasl.oauthbearer.jwks.endpoint.url": endpoint.keys_url,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
    }
    for name in ("users", "both"):
        prefix = f"listener.name.{name}."
        properties |= {
            f"{prefix}sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            f"{prefix}plain.sasl.jaas.config": f'{PLAIN} required user_alice="s3cret";',
            f"{prefix}scram-sha-256.sasl.jaas.config": f"{SCRAM} required;",
            f"{prefix}scram-sha-512.sasl.jaas.config": f"{SCRAM} required;",
        }
    for name in ("tls", "both"):
        prefix = f"listener.name.{name}.ssl."
        properties |= {f"{prefix}keystore.type": "PEM", f"{prefix}truststore.type": "PEM"}
        properties |= {
            f"{prefix}keystore.location": CERTIFICATES / "server.pem",
            f"{prefix}truststore.location": CERTIFICATES / "ca.pem",
        }
    prefix = "listener.name.tokens."
    return properties | {
        f"{prefix}sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{prefix}oauthbearer.sasl.jaas.config": f"{OAUTH}.OAuthBearerLoginModule required;",
        f"{prefix}oauthbearer.sasl.server.callback.handler.class": f"{OAUTH}.OAuthBearerValidatorCallbackHandler",
        f"{prefix}oauthbearer.connections.max.reauth.ms": 3_600_000,
    }


def _add_scram_users(cluster: KraftCluster) -> None:
    users = [
        kafka.admin.UserScramCredentialUpsertion("bob", mechanism, "t0psecret", iterations=4096)
        for mechanism in (kafka.admin.ScramMechanism.SCRAM_SHA_256, kafka.admin.ScramMechanism.SCRAM_SHA_512)
    ]

    def added() -> bool:
        try:
            with closing(kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers, **CLIENT)) as admin:
                for user in users:
                    admin.alter_user_scram_credentials([user])
        except kafka.errors.KafkaError:
            time.sleep(0.5)
            return False
        return True

    eventually(added, 60)
