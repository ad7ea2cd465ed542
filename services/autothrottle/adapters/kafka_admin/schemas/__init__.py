"""Requests of Kafka that kafka-python lacks, in Kafka's own format, which kafka-python reads: KIP-848's groups."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    # kafka-python reads its schemas with a deprecated function of importlib.resources.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.api_message import ApiMessage

    class ConsumerGroupDescribeRequest(ApiMessage, load_json=__package__):  # type: ignore[misc, call-arg]
        """Asks the coordinator for groups of the consumer protocol; Kafka 3.7 and newer."""

    class ConsumerGroupDescribeResponse(ApiMessage, load_json=__package__):  # type: ignore[misc, call-arg]
        """The groups with their members."""


__all__ = ["ConsumerGroupDescribeRequest", "ConsumerGroupDescribeResponse"]
