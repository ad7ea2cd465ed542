"""The login of this process at Kafka, as one value that can be replaced while clients use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autothrottle.adapters.kafka_admin.client_properties import client_options


class KafkaLogin:
    """Kafka's client properties as options of kafka-python. Thread-safe.

    Each client looks at `options` before each request, and connects anew if they are another object.
    """

    def __init__(self, properties: Mapping[str, str] | None = None) -> None:
        """Read the files that the properties name; none: without SASL and TLS.

        Raises:
            Invalid: a property is unsupported or wrong.
        """
        self._client = client_options(properties or {})

    @property
    def options(self) -> Mapping[str, Any]:
        """Of kafka-python: security_protocol, sasl_*, ssl_*, client_id. They hold secrets."""
        return self._client.options

    @property
    def warnings(self) -> Sequence[str]:
        """What an operator should know about the properties: some are not used, or weaken the security."""
        return self._client.warnings

    def replace(self, properties: Mapping[str, str]) -> None:
        """Use other properties from now on. Running calls finish on their connections.

        Raises:
            Invalid: a property is unsupported or wrong; then nothing changes.
        """
        self._client = client_options(properties)
