"""The login of this process at Kafka, as one value that can be replaced while clients use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autothrottle.adapters.credentials import CredentialFiles
from autothrottle.adapters.kafka_admin.client_properties import ClientOptions, client_options, read_client_properties
from autothrottle.core.errors import Invalid
from autothrottle_client.files import ReloadedFiles


class KafkaLogin:
    """Kafka's client properties as options of kafka-python. Thread-safe.

    Each client looks at `options` before each request, and connects anew if they are another object.
    """

    refusal = ""
    """Why no broker accepts the replaced login, so that clients use the previous one; "": one accepts it."""

    def __init__(self, properties: Mapping[str, str] | None = None) -> None:
        """Read the files that the properties name; none: without SASL and TLS.

        Raises:
            Invalid: a property is unsupported or wrong.
        """
        self._client = client_options(properties or {})

    @property
    def client(self) -> ClientOptions:
        """The current properties as options of kafka-python."""
        return self._client

    @property
    def options(self) -> Mapping[str, Any]:
        """Of kafka-python: security_protocol, sasl_*, ssl_*, client_id. They hold secrets."""
        return self.client.options

    @property
    def warnings(self) -> Sequence[str]:
        """What an operator should know about the properties: some are not used, or weaken the security."""
        return self.client.warnings

    @property
    def credentials(self) -> Sequence[CredentialFiles]:
        """The files that are read again when they change."""
        return ()


class KafkaLoginFile(KafkaLogin):
    """The login of a properties file, which changes with the file and with the stores that it names."""

    def __init__(self, path: str) -> None:
        """Read the files.

        Raises:
            Invalid: a file cannot be read, or a property is unsupported or wrong.
        """
        self._path, self._protocol = path, ""
        self._files = ReloadedFiles((path,), self._read, Invalid, lambda client: client.files, self._changed)

    def _changed(self, previous: ClientOptions) -> tuple[ClientOptions, str]:
        client = self._read_valid()
        return client, client.fault

    def _read(self) -> ClientOptions:
        client = self._read_valid()
        if client.fault:
            raise Invalid(client.fault)
        return client

    def _read_valid(self) -> ClientOptions:
        client = client_options(read_client_properties(self._path))
        protocol = str(client.options["security_protocol"])
        # A file that is only half written may lack it: then it would mean PLAINTEXT, without a login.
        if self._protocol not in ("", protocol):
            raise Invalid(
                f"kafka-client-config {self._path!r}: security.protocol was {self._protocol} at the start, and is "
                f"{protocol} now. Fix: give {self._protocol}, or restart to change it"
            )
        self._protocol = protocol
        return client

    @property
    def client(self) -> ClientOptions:
        return self._files.current()[0]

    @property
    def credentials(self) -> Sequence[CredentialFiles]:
        return (
            CredentialFiles("kafka-client-config", self._files, lambda client: client.expiries, lambda: self.refusal),
        )
