"""Kafka's admin API in core's words: what moves, what stands, and the writing of configs and reassignments.

`KafkaAdmin` is the type to know. Every call ends within its own `timeout`, may come from any thread, and asks many
brokers at once: a broker that is down costs only itself its deadline. A call raises only if there is no answer at
all; what single brokers, topics or partitions say against it is a value (`Answers`, or a mapping of failures).
Requests and responses are in `messages`, what they mean in `answers`; they travel by `routing`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from autothrottle.adapters.kafka_admin import messages
from autothrottle.adapters.kafka_admin.answers import (
    Answers,
    ConfigEdit,
    ConfigOperation,
    ConfigSource,
    ConfigValue,
    KafkaSettings,
    PartitionMetadata,
    PartitionReassignment,
)
from autothrottle.adapters.kafka_admin.controllers import alter_through_controller
from autothrottle.adapters.kafka_admin.properties import client_options
from autothrottle.adapters.kafka_admin.routing import Routing
from autothrottle.adapters.kafka_admin.translation import Unexplained, code_error
from autothrottle.core.configs import RATE_KEYS, REPLICAS_KEYS, parse_rate
from autothrottle.core.errors import AutothrottleError, Invalid, Unavailable
from autothrottle.core.topology import TopicPartition

__all__ = [
    "Answers",
    "ConfigEdit",
    "ConfigOperation",
    "ConfigSource",
    "ConfigValue",
    "KafkaAdmin",
    "KafkaSettings",
    "PartitionMetadata",
    "PartitionReassignment",
]

T = TypeVar("T")

_TOPICS_AT_ONCE = 1_000
"""Topics in one request that only reads."""


class KafkaAdmin:
    """Kafka's admin API; thread-safe. It connects at the first call, and again after whatever went wrong.

    All calls: `timeout` > 0, `request_timeout` of the settings when None. They raise:
        Unavailable: no answer in time; the message names the address and the fix.
        Invalid: Kafka refuses the request itself, or who we are (authentication, authorization).
    """

    def __init__(self, settings: KafkaSettings) -> None:
        """Prepare; nothing is sent.

        Raises:
            Invalid: a client property is unknown, unsupported or wrong.
        """
        self._settings = settings
        self._options = client_options(settings.client_properties)
        self._routing = Routing(settings.bootstrap_servers, self._options, settings.request_timeout)

    def close(self) -> None:
        """Close all connections; calls under way fail. Idempotent."""
        self._routing.close()

    # Reading

    def brokers(self, *, timeout: timedelta | None = None) -> frozenset[int]:
        """Return the ids of the brokers that are registered and not fenced."""
        metadata = self._routing.metadata(self._deadline(timeout))
        return frozenset(broker.node_id for broker in metadata.brokers)

    def reassignments(self, *, timeout: timedelta | None = None) -> Mapping[str, Mapping[int, PartitionReassignment]]:
        """Return topic -> partition -> reassignment, of all that are under way."""
        deadline = self._deadline(timeout)
        build = _bounded(messages.list_reassignments, deadline)
        response = self._routing.ask_controller(build, messages.top_code, deadline)
        _check(response, "the reassignments under way")
        return messages.reassignments(response)

    def partitions(
        self, topics: Collection[str] | None, *, timeout: timedelta | None = None
    ) -> Answers[str, Mapping[int, PartitionMetadata]]:
        """Return topic -> partition -> where it is; None: of all topics.

        Of the failures Missing says that there is no such topic.
        """
        deadline = self._deadline(timeout)
        chunks: Iterable[Sequence[str] | None] = [None] if topics is None else _chunks(topics)
        return _together(self._partitions(some, deadline) for some in chunks)

    def topic_configs(
        self,
        topics: Collection[str] | None,
        keys: Collection[str] | None = REPLICAS_KEYS,
        *,
        timeout: timedelta | None = None,
    ) -> Answers[str, Mapping[str, ConfigValue]]:
        """Return topic -> key -> value of these keys; None: of all topics, all keys.

        A key that nobody has set may be absent.
        """
        deadline = self._deadline(timeout)
        if topics is None:
            topics = self.partitions(None, timeout=timeout).values
        return _together(self._topic_configs(some, keys, deadline) for some in _chunks(topics))

    def broker_configs(
        self,
        broker_ids: Collection[int],
        keys: Collection[str] | None = RATE_KEYS,
        *,
        timeout: timedelta | None = None,
    ) -> Answers[int, Mapping[str, ConfigValue]]:
        """Return broker id -> key -> value, as each broker itself reports it, all asked at once; None: all keys.

        A broker that does not answer in time is a failure and costs the others nothing. A key that nobody has set
        may be absent.
        """
        builds = {b: partial(messages.describe_configs, messages.BROKER, [str(b)], keys) for b in broker_ids}
        answers = self._each(builds, timeout)
        described = {b: messages.configs(response)[str(b)] for b, response in answers.values.items()}
        return _split(described, answers.failures)

    def default_broker_configs(
        self, keys: Collection[str] | None = RATE_KEYS, *, timeout: timedelta | None = None
    ) -> Mapping[str, str]:
        """Return key -> value of what `<default>` sets for all brokers; absent: it sets nothing."""
        deadline = self._deadline(timeout)
        response = self._routing.ask_any(lambda: messages.describe_configs(messages.BROKER, [""], keys), deadline)
        described = messages.configs(response)[""]
        if isinstance(described, AutothrottleError):
            raise described
        return {key: value.default for key, value in described.items() if value.default is not None}

    def log_sizes(
        self,
        broker_ids: Collection[int],
        partitions: Mapping[str, Collection[int]] | None,
        *,
        timeout: timedelta | None = None,
    ) -> Answers[int, Mapping[TopicPartition, int]]:
        """Return broker id -> partition -> bytes of its log there; None: of all partitions.

        Args:
            broker_ids: who is asked, all at once.
            partitions: topic -> partition numbers; a partition without replica on a broker is absent in its answer.
            timeout: > 0.
        """
        answers = self._each(dict.fromkeys(broker_ids, partial(messages.describe_log_dirs, partitions)), timeout)
        return _split({b: messages.log_sizes(b, response) for b, response in answers.values.items()}, answers.failures)

    # Writing. Nothing is sent twice: after Unavailable it is unknown whether the write was carried out. With `until`,
    # a moment on the monotonic clock, nothing is sent after it, however long this process was stopped before.

    def alter_topic_configs(
        self,
        edits: Mapping[str, Sequence[ConfigEdit]],
        *,
        timeout: timedelta | None = None,
        until: float | None = None,
    ) -> Mapping[str, AutothrottleError]:
        """Edit configs of topics in one request; return topic -> why it was refused; absent: it is done.

        Each topic is all or nothing. Values over 32,767 bytes are refused before anything is sent.
        """
        sound, failures = messages.sendable(edits)
        if sound:
            deadline = self._deadline(timeout, until)
            response = self._routing.tell_any(lambda: messages.alter_configs(messages.TOPIC, sound), deadline)
            failures |= messages.refused_configs(response, sound)
        return failures

    def alter_broker_configs(
        self,
        broker_id: int,
        edits: Sequence[ConfigEdit],
        *,
        timeout: timedelta | None = None,
        until: float | None = None,
    ) -> None:
        """Edit configs of one broker, through that broker, all or nothing.

        Raises:
            Unavailable: the broker cannot be reached; whether it was done is unknown.
            Invalid: Kafka refuses the edits.
        """
        resources = {str(broker_id): edits}
        builds = {broker_id: lambda: messages.alter_configs(messages.BROKER, resources)}
        answer = self._routing.each(builds, self._deadline(timeout, until), again=False)[broker_id]
        if isinstance(answer, AutothrottleError):
            raise answer
        for problem in messages.refused_configs(answer, resources).values():
            raise problem

    def alter_broker_configs_through_controller(
        self,
        broker_id: int,
        edits: Sequence[ConfigEdit],
        *,
        timeout: timedelta | None = None,
        until: float | None = None,
    ) -> None:
        """Edit rates of one broker, which may be down, through the active KRaft controller (KIP-919).

        The controller takes any value, which would then stand on a broker that cannot read it: here none is sent
        that is not a rate.

        Raises:
            Unavailable: no controller can be reached, or `bootstrap_controllers` is empty.
            Invalid: a value is no rate, or Kafka refuses the edits.
        """
        for edit in edits:
            if edit.value is not None and parse_rate(edit.value) < 0:
                raise Invalid(f"{edit.key} {edit.value} of broker {broker_id} must be >= 0. Fix: delete it instead")
        if not self._settings.bootstrap_controllers:
            raise Unavailable(
                f"broker {broker_id} is down and bootstrap_controllers is empty. Fix: give kafka-bootstrap-controllers"
            )
        response = alter_through_controller(
            self._settings.bootstrap_controllers,
            self._options,
            lambda: messages.alter_configs(messages.BROKER, {str(broker_id): edits}),
            self._deadline(timeout, until),
        )
        for problem in messages.refused_configs(response, {str(broker_id): edits}).values():
            raise problem

    def alter_reassignments(
        self,
        replicas: Mapping[TopicPartition, Sequence[int] | None],
        *,
        timeout: timedelta | None = None,
        until: float | None = None,
    ) -> Mapping[TopicPartition, AutothrottleError]:
        """Start reassignments to these replicas, None cancels; return partition -> why it was refused.

        A partition that has nothing to cancel is refused with Missing.
        """
        if not replicas:
            return {}
        deadline = self._deadline(timeout, until)
        build = _bounded(lambda left: messages.alter_reassignments(replicas, left), deadline)
        response = self._routing.tell_controller(build, messages.top_code, deadline)
        _check(response, "these reassignments")
        return messages.refused_reassignments(response)

    # Behind it

    def _deadline(self, timeout: timedelta | None, until: float | None = None) -> float:
        if until is not None:
            return until
        return time.monotonic() + (timeout or self._settings.request_timeout).total_seconds()

    def _each(self, builds: Mapping[int, Callable[[], Any]], timeout: timedelta | None) -> Answers[int, Any]:
        if not builds:
            return Answers({}, {})
        return _split(self._routing.each(builds, self._deadline(timeout)), {})

    def _partitions(
        self, topics: Sequence[str] | None, deadline: float
    ) -> Answers[str, Mapping[int, PartitionMetadata]]:
        return messages.partitions(self._routing.ask_any(lambda: messages.describe_topics(topics), deadline))

    def _topic_configs(
        self, topics: Sequence[str], keys: Collection[str] | None, deadline: float
    ) -> Answers[str, Mapping[str, ConfigValue]]:
        """All topics in one request; halved when the broker fails at it.

        A value of more than 32,767 bytes, which only a write to ZooKeeper can bring about, makes it fail for all.
        """
        response = self._routing.ask_any(lambda: messages.describe_configs(messages.TOPIC, topics, keys), deadline)
        answers = _split(messages.configs(response), {})
        if len(topics) == 1 or answers.values or not _all_unexplained(answers.failures):
            return answers
        middle = len(topics) // 2
        return _together(self._topic_configs(half, keys, deadline) for half in (topics[:middle], topics[middle:]))


def _all_unexplained(failures: Mapping[str, AutothrottleError]) -> bool:
    return all(isinstance(failure, Unexplained) for failure in failures.values())


def _bounded(build: Callable[[int], Any], deadline: float) -> Callable[[], Any]:
    """A request that tells Kafka how many milliseconds are left."""
    return lambda: build(max(int((deadline - time.monotonic()) * 1000), 1))


def _chunks(topics: Collection[str]) -> Iterator[Sequence[str]]:
    names = list(topics)
    for start in range(0, len(names), _TOPICS_AT_ONCE):
        yield names[start : start + _TOPICS_AT_ONCE]


def _check(response: Any, what: str) -> None:
    if code := messages.top_code(response):
        raise code_error(code, response.error_message, what)


def _together(answers: Iterable[Answers[str, T]]) -> Answers[str, T]:
    values: dict[str, T] = {}
    failures: dict[str, AutothrottleError] = {}
    for some in answers:
        values.update(some.values)
        failures.update(some.failures)
    return Answers(values, failures)


def _split(answered: Mapping[Any, T | AutothrottleError], failures: Mapping[Any, AutothrottleError]) -> Answers[Any, T]:
    """Tell values from failures."""
    return Answers(
        {who: answer for who, answer in answered.items() if not isinstance(answer, AutothrottleError)},
        {who: answer for who, answer in answered.items() if isinstance(answer, AutothrottleError)} | dict(failures),
    )
