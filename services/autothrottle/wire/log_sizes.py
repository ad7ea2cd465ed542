"""Sizes of logs and the settings of fetching, to messages and back; log sizes as columns, a message for each broker."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from autothrottle.core.errors import Incomplete, Invalid
from autothrottle.core.fetching import ClusterSettings, FetchSettings
from autothrottle.core.progress import BrokerLogSizes, LogSizes
from autothrottle.core.topology import MAX_BROKER_ID
from autothrottle.v1 import discovery_pb2
from autothrottle.wire.times import time_from_message, time_to_message

_MOST_BROKERS = 10_000
_MOST_TOPICS = 100_000


def wanted_to_message(wanted: Mapping[int, Mapping[str, Collection[int]]]) -> discovery_pb2.GetLogSizesRequest:
    """Return which logs are asked for: broker id -> topic -> partitions."""
    return discovery_pb2.GetLogSizesRequest(
        brokers=[
            discovery_pb2.BrokerPartitions(
                broker_id=broker_id,
                partitions=[
                    discovery_pb2.TopicPartitions(topic=topic, partitions=sorted(rows))
                    for topic, rows in topics.items()
                ],
            )
            for broker_id, topics in wanted.items()
        ]
    )


def wanted_from_message(request: discovery_pb2.GetLogSizesRequest) -> dict[int, dict[str, tuple[int, ...]]]:
    """Return which logs a request asks for.

    Raises:
        Invalid: when a number is out of range.
    """
    validate_brokers([one.broker_id for one in request.brokers])
    return {one.broker_id: {rows.topic: tuple(rows.partitions) for rows in one.partitions} for one in request.brokers}


def validate_brokers(broker_ids: Collection[int]) -> tuple[int, ...]:
    """Return the ids of brokers that are asked.

    Raises:
        Invalid: when one is out of range, or there are too many.
    """
    if len(broker_ids) > _MOST_BROKERS:
        raise Invalid(f"{len(broker_ids)} brokers are named; name at most {_MOST_BROKERS}")
    for broker_id in broker_ids:
        if not 0 <= broker_id <= MAX_BROKER_ID:
            raise Invalid(f"broker id {broker_id} is outside of 0..{MAX_BROKER_ID}; give a broker's id")
    return tuple(broker_ids)


def validate_topics(topics: Collection[str]) -> tuple[str, ...]:
    """Return the names of topics that are asked for.

    Raises:
        Invalid: when there are too many.
    """
    if len(topics) > _MOST_TOPICS:
        raise Invalid(f"{len(topics)} topics are named; name at most {_MOST_TOPICS}")
    return tuple(topics)


def log_sizes_to_messages(sizes: LogSizes) -> Iterator[discovery_pb2.GetLogSizesResponse]:
    """Yield a message for each broker, those that did not answer included."""
    for broker_id, logs in sizes.brokers.items():
        topics: dict[str, dict[int, int]] = {}
        for (topic, partition), size in logs.sizes.items():
            topics.setdefault(topic, {})[partition] = size
        yield discovery_pb2.GetLogSizesResponse(
            broker_id=broker_id,
            time=time_to_message(logs.at),
            topics=[
                discovery_pb2.TopicLogSizes(topic=topic, partitions=rows.keys(), sizes=rows.values())
                for topic, rows in topics.items()
            ],
        )
    for broker_id, problem in sizes.problems.items():
        yield discovery_pb2.GetLogSizesResponse(broker_id=broker_id, problem=problem)


def log_sizes_from_messages(messages: Iterable[discovery_pb2.GetLogSizesResponse]) -> LogSizes:
    """Return the sizes that messages hold.

    Raises:
        Incomplete: when a column is too short or too long.
    """
    brokers, problems = {}, {}
    for message in messages:
        if not message.HasField("time"):
            problems[message.broker_id] = message.problem
            continue
        sizes = {}
        for one in message.topics:
            if len(one.partitions) != len(one.sizes):
                raise Incomplete(
                    f"broker {message.broker_id} has {len(one.sizes)} sizes for {len(one.partitions)} logs; ask again"
                )
            sizes.update({(one.topic, p): size for p, size in zip(one.partitions, one.sizes, strict=True)})
        brokers[message.broker_id] = BrokerLogSizes(time_from_message(message.time), sizes)
    return LogSizes(brokers, problems)


def settings_to_message(settings: ClusterSettings) -> discovery_pb2.GetFetchSettingsResponse:
    """Return settings as a message."""
    return discovery_pb2.GetFetchSettingsResponse(
        brokers=[
            discovery_pb2.BrokerFetchSettings(
                broker_id=b, response_max_bytes=one.response_max_bytes, window_seconds=one.window_seconds
            )
            for b, one in settings.brokers.items()
        ],
        min_in_sync_replicas=settings.min_in_sync_replicas,
    )


def settings_from_message(message: discovery_pb2.GetFetchSettingsResponse) -> ClusterSettings:
    """Return the settings that a message holds."""
    return ClusterSettings(
        brokers={one.broker_id: FetchSettings(one.response_max_bytes, one.window_seconds) for one in message.brokers},
        min_in_sync_replicas=dict(message.min_in_sync_replicas),
    )
