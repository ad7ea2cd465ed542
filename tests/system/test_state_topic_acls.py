"""The ACLs of docs/security.md suffice for the state in Kafka, and keep others out, with Kafka's own authorizer."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from autothrottle.adapters.kafka_admin.connections import CLIENT, kafka
from autothrottle.adapters.kafka_admin.topic_log import TopicLog
from autothrottle.composition.admin_cluster import kafka_settings
from autothrottle.runtime.configuration_reader import parse
from autothrottle_lab.servers.kafka import PROPERTIES, KafkaServer, format_broker, java_command, new_kafka_uuid
from autothrottle_lab.servers.processes import Process, free_ports, run_command
from tests.builders import eventually
from tests.pages import commands

pytestmark = [pytest.mark.repeat, pytest.mark.timeout(600)]

STATE_TOPIC = "__autothrottle_state"
LOGIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
CLIENT_PROPERTIES = (
    "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
    f'sasl.jaas.config={LOGIN_MODULE} username="autothrottle" password="secret";\n'
)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[tuple[KafkaServer, str]]:
    """A broker whose callers may do everything, and the address of its listener for a user without permissions."""
    port, controller, client = free_ports(3)
    properties: Mapping[str, object] = {
        **PROPERTIES,
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},CLIENT://127.0.0.1:{client}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,CLIENT:SASL_PLAINTEXT",
        "listener.name.client.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.client.plain.sasl.jaas.config": (
            f'{LOGIN_MODULE} user_autothrottle="secret" user_eve="secret";'
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    server = KafkaServer("kafka", tmp_path / "kafka", port, java_command("4.3.1", 256), properties)
    format_broker(server.logs, 1, new_kafka_uuid())
    with server:
        server.wait_until(lambda: "Kafka Server started" in server.log_end(), 120)
        yield server, f"127.0.0.1:{client}"


def run_acls(broker: KafkaServer, words: list[str]) -> str:
    """Run a command of the page, and return its output."""
    arguments = [broker.address if word == "kafka1:9092" else word for word in words[1:]]
    status, output = run_command([*broker.command, "org.apache.kafka.tools.AclCommand", *arguments], 120)
    assert status == 0, output
    return output


def append_as_eve(address: str) -> str:
    """Append a record as a user without permissions of its own; return the name of the error, "": none."""
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_plain_username": "eve"}
    with closing(
        kafka.KafkaProducer(bootstrap_servers=address, sasl_plain_password="secret", **login, **CLIENT)
    ) as producer:
        try:
            producer.send(STATE_TOPIC, b"{}", partition=0).get(30)
        except kafka.errors.KafkaError as error:
            return type(error).__name__
    return ""


def test_the_acls_of_the_page_are_enough_and_needed(broker: tuple[KafkaServer, str], tmp_path: Path) -> None:
    server, address = broker
    client = tmp_path / "client.properties"
    client.write_text(CLIENT_PROPERTIES)
    flags = [f"--bootstrap-servers={address}", f"--kafka-client-config={client}", "--state-store=kafka"]
    listeners = [f"--{name}-listen=127.0.0.1:{port}" for name, port in zip(("api", "grpc"), free_ports(2), strict=True)]
    command = [str(Path(sys.executable).parent / "autothrottle"), "run", *flags, "--capacity=100", *listeners]
    *acls, of_state_topic, list_acls = commands("kafka-acls.sh", page="docs/security.md")
    for words in acls:
        run_acls(server, words)
    status, output = run_command(command, 60)
    assert status == 2 and STATE_TOPIC in output, output
    run_acls(server, of_state_topic)
    with Process("run", command, tmp_path / "run.log") as process:
        process.wait_until(lambda: "Leading in term" in process.log_end(), 60)
        topic = TopicLog(kafka_settings(parse(flags, {})), STATE_TOPIC)
        topic.delete_before(1, time.monotonic() + 10)
        eventually(lambda: topic.locate(time.monotonic() + 10)[1] >= 1, 10)
        topic.close()
        assert append_as_eve(address) == "TopicAuthorizationFailedError"
        pattern = ["--allow-principal", "User:*", "--topic", "__auto", "--resource-pattern-type", "prefixed"]
        run_acls(server, [*of_state_topic[:3], "--add", *pattern, "--operation", "Write"])
        eventually(lambda: append_as_eve(address) == "", 30)
        assert "name=__auto, patternType=PREFIXED" in run_acls(server, list_acls)
        process.terminate()
        assert process.wait(10) == 0
