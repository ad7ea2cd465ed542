"""Kafka's admin API as Python values: reassignments, metadata, configs and log sizes.

The type to know is `KafkaAdmin`. Every call ends within its `timeout`, may come from any thread, and queries brokers in
parallel, so a broker that is down delays no other. A call raises only if it gets no answer at all. Errors of single
brokers, topics or partitions are values (`Answers`, or a mapping of failures).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from autothrottle.adapters.kafka_admin import messages
from autothrottle.adapters.kafka_admin.errors import Unexplained, code_error
from autothrottle.adapters.kafka_admin.routing import Build, Routing, alter_through_controller
from autothrottle.adapters.kafka_admin.values import (
    Answers,
    ConfigEdit,
    Configs,
    KafkaSettings,
    LogDirs,
    PartitionMetadata,
    PartitionReassignment,
)
from autothrottle.core.cluster.configs import RATE_KEYS, REPLICAS_KEYS, parse_rate
from autothrottle.core.cluster.snapshot import TopicPartition
from autothrottle.core.errors import AutothrottleError, Invalid, Missing, Unavailable
from autothrottle.core.quotas.keys import ClientQuotaEntity, ClientQuotas, QuotaEdits

T = TypeVar("T")

Keys = Collection[str] | None
"""Config keys to describe; None: all."""

_TOPICS_AT_ONCE = 1_000
"""Limit of topics in one read request."""

_NO_TIME = Unavailable("Kafka did not describe it in time")


class KafkaAdmin:
    """Kafka's admin API; thread-safe. It connects at the first call, and reconnects after any error.

    In all calls `timeout` > 0; None means the settings' `request_timeout`. All calls raise:
        Unavailable: no answer in time; the message names the address and the fix.
        Invalid: Kafka refuses the request itself or our credentials (authentication, authorization).
    """

    def __init__(self, settings: KafkaSettings) -> None:
        """Prepare; this sends nothing."""
        self._settings = settings
        self._routing = Routing(settings.bootstrap_servers, settings.login, settings.request_timeout)

    def close(self) -> None:
        """Close all connections; running calls fail. Idempotent."""
        self._routing.close()

    # Reading

    def brokers(self, *, timeout: timedelta | None = None) -> frozenset[int]:
        """Return the ids of the brokers that are registered and not fenced."""
        return frozenset(messages.hosts(self._routing.metadata(self._deadline(timeout))))

    def racks(self, *, timeout: timedelta | None = None) -> Mapping[int, str]:
        """Return broker id -> rack of the brokers that are registered and not fenced; "": it has none."""
        return messages.racks(self._routing.metadata(self._deadline(timeout)))

    @property
    def has_controllers(self) -> bool:
        """Whether controllers are configured, which write the configs of brokers that are down."""
        return bool(self._settings.bootstrap_controllers)

    def is_registered(self, broker_id: int, timeout: timedelta) -> bool:
        """Return whether the broker is registered and not fenced; this makes the class a `BrokerRegistry`."""
        return broker_id in self.brokers(timeout=timeout)

    def fetch_hosts(self, timeout: timedelta) -> Mapping[int, Sequence[str]]:
        """Return broker id -> its host at the listener that this client uses."""
        hosts = messages.hosts(self._routing.metadata(self._deadline(timeout)))
        return {broker_id: (host,) if host else () for broker_id, host in hosts.items()}

    def reassignments(
        self, partitions: Collection[TopicPartition] | None = None, *, timeout: timedelta | None = None
    ) -> Answers[str, Mapping[int, PartitionReassignment]]:
        """Return topic -> partition -> reassignment in progress, of these partitions; None: of all."""
        deadline = self._deadline(timeout)
        build = _bounded(partial(messages.list_reassignments, partitions), deadline)
        response = self._routing.ask_controller(build, deadline)
        _check(response, "the list of reassignments")
        return messages.reassignments(response)

    def partitions(
        self, topics: Collection[str] | None, *, timeout: timedelta | None = None
    ) -> Answers[str, Mapping[int, PartitionMetadata]]:
        """Return topic -> partition -> leader, replicas and ISR; `topics` None: all topics.

        A failure of type Missing means that the topic does not exist.
        """
        deadline = self._deadline(timeout)
        chunks: Iterable[Sequence[str] | None] = [None] if topics is None else _chunks(topics)
        requests = (partial(messages.describe_topics, some) for some in chunks)
        return _together(messages.partitions(self._routing.ask_any(request, deadline)) for request in requests)

    def partitions_by_broker(
        self, topics: Mapping[int, Collection[str]], *, timeout: timedelta | None = None
    ) -> Answers[int, Mapping[str, Mapping[int, PartitionMetadata]]]:
        """Return broker id -> topic -> partition -> leader, replicas and ISR, as each of these brokers knows them.

        An answer shows that the broker is alive, also before its session with the controller has expired.

        Args:
            topics: broker id -> the topics that it is asked for; empty: it is only asked whether it is alive.
            timeout: > 0. A broker that does not answer in time is a failure.
        """
        builds = {b: partial(messages.describe_topics, list(some)) for b, some in topics.items()}
        return self._each(builds, lambda _, response: _view(messages.partitions(response)), timeout)

    def topic_configs(
        self, topics: Collection[str] | None, keys: Keys = REPLICAS_KEYS, *, timeout: timedelta | None = None
    ) -> Answers[str, Configs]:
        """Return topic -> key -> value; `topics` None: all topics, `keys` None: all keys.

        Keys without an explicit value may be absent.
        """
        deadline = self._deadline(timeout)
        if topics is None:
            topics = self.partitions(None, timeout=timeout).values
        return _together(self._topic_configs(some, keys, deadline) for some in _chunks(topics))

    def broker_configs(
        self, broker_ids: Collection[int], keys: Keys = RATE_KEYS, *, timeout: timedelta | None = None
    ) -> Answers[int, Configs]:
        """Return broker id -> key -> value. Each broker reports its own values; `keys` None: all keys.

        All brokers are queried in parallel. One that does not answer in time is a failure and does not delay the
        others. Keys without an explicit value may be absent.
        """
        return self._each(
            {b: partial(messages.describe_configs, messages.BROKER, [str(b)], keys) for b in broker_ids},
            lambda broker_id, response: messages.configs_of(response, str(broker_id)),
            timeout,
        )

    def default_broker_configs(self, keys: Keys = RATE_KEYS, *, timeout: timedelta | None = None) -> Mapping[str, str]:
        """Return key -> value of the cluster-wide default broker config (`<default>`); absent: not set there."""
        deadline = self._deadline(timeout)
        response = self._routing.ask_any(lambda: messages.describe_configs(messages.BROKER, [""], keys), deadline)
        described = messages.configs_of(response, "")
        if isinstance(described, AutothrottleError):
            raise described
        return {key: value.default for key, value in described.items() if value.default is not None}

    def log_sizes(
        self, broker_id: int, partitions: Mapping[str, Collection[int]] | None, *, timeout: timedelta | None = None
    ) -> Mapping[TopicPartition, int]:
        """Return partition -> log size in bytes on this broker; a partition without a replica there is absent.

        Args:
            broker_id: the broker to query.
            partitions: topic -> partition numbers; None: all partitions.
            timeout: > 0.
        """
        build = partial(messages.describe_log_dirs, partitions)
        return messages.log_sizes(broker_id, self._ask_one(broker_id, build, self._deadline(timeout), again=True))

    def log_dirs(self, broker_ids: Collection[int], *, timeout: timedelta | None = None) -> Answers[int, LogDirs]:
        """Return broker id -> all log sizes and free storage, queried in parallel."""
        build = partial(messages.describe_log_dirs, None)
        return self._each(dict.fromkeys(broker_ids, build), messages.log_dirs, timeout)

    def permitted_operations(
        self, *, timeout: timedelta | None = None
    ) -> tuple[frozenset[str], Answers[str, frozenset[str]]]:
        """Return the ACL operations that this client may do on the cluster, and topic -> those on each visible topic.

        Without an authorizer, these are all operations.
        """
        return messages.permitted_operations(
            self._routing.ask_any(messages.describe_operations, self._deadline(timeout))
        )

    def client_quotas(self, *, timeout: timedelta | None = None) -> ClientQuotas:
        """Return entity -> its client quotas, for all entities."""
        response = self._routing.ask_any(messages.describe_client_quotas, self._deadline(timeout))
        _check(response, "the list of client quotas")
        return messages.client_quotas(response)

    def groups(
        self, broker_ids: Collection[int], *, timeout: timedelta | None = None
    ) -> Answers[int, Mapping[str, str]]:
        """Return broker id -> group -> type of the group, for the groups with members that the broker coordinates.

        Before Kafka 2.6, groups without members are included.
        """
        return self._each(dict.fromkeys(broker_ids, messages.list_groups), messages.groups, timeout)

    def group_clients(
        self, groups: Mapping[int, Mapping[str, str]], *, timeout: timedelta | None = None
    ) -> Answers[str, frozenset[str]]:
        """Return group -> the client ids of its members; all brokers are queried in parallel.

        Args:
            groups: broker id -> group -> type, as `groups` returns them.
            timeout: > 0. Groups that it leaves no time for are failures.
        """
        deadline = self._deadline(timeout)
        clients_of_groups: dict[str, frozenset[str] | AutothrottleError] = {}
        for types in groups.values():
            clients_of_groups |= {**dict.fromkeys(types, _NO_TIME), **messages.undescribable_groups(types)}
        pending = {b: list(messages.describe_groups(types)) for b, types in groups.items()}
        while (builds := {b: requests.pop(0) for b, requests in pending.items() if requests}) and (
            time.monotonic() < deadline
        ):
            for b, answer in self._routing.each(builds, deadline).items():
                clients = _read(answer, messages.group_clients)
                if isinstance(clients, AutothrottleError):
                    del pending[b]
                    unknown = [name for name in groups[b] if clients_of_groups[name] is _NO_TIME]
                    clients_of_groups |= dict.fromkeys(unknown, clients)
                else:
                    clients_of_groups |= clients
        return _split(clients_of_groups)

    # Writing. A write is sent at most once; after Unavailable it is unknown whether Kafka carried it out. `until` is a
    # time on the monotonic clock after which nothing is sent, however long this process was stopped before.

    def alter_topic_configs(
        self, edits: Mapping[str, Sequence[ConfigEdit]], *, until: float | None = None
    ) -> Mapping[str, AutothrottleError]:
        """Edit configs of topics in one request; return topic -> why it was refused; absent: it was done.

        All edits of a topic succeed or fail together. Values over 32,767 bytes are refused without sending them.
        """
        sound, failures = messages.sendable(edits)
        if sound:
            deadline = until or self._deadline()
            response = self._routing.ask_any(
                partial(messages.alter_configs, messages.TOPIC, sound), deadline, again=False
            )
            failures |= messages.refused_configs(response, sound)
        return failures

    def alter_broker_configs(self, broker_id: int, edits: Sequence[ConfigEdit], *, until: float | None = None) -> None:
        """Edit configs of one broker through that broker; all edits succeed or fail together.

        Raises:
            Unavailable: the broker is unreachable; it is unknown whether the edits were made.
            Invalid: Kafka refuses the edits.
        """
        resources = {str(broker_id): edits}
        build = partial(messages.alter_configs, messages.BROKER, resources)
        _raise_refusal(self._ask_one(broker_id, build, until or self._deadline(), again=False), resources)

    def alter_broker_configs_through_controller(
        self, broker_id: int, edits: Sequence[ConfigEdit], *, until: float | None = None
    ) -> None:
        """Edit rates of one broker, which may be down, through the active KRaft controller (KIP-919).

        A controller accepts any value, even one that the broker cannot parse later. So this method refuses values that
        are not rates.

        Raises:
            Unavailable: no controller is reachable, or `bootstrap_controllers` is empty.
            Invalid: a value is not a rate, or Kafka refuses the edits.
        """
        for edit in edits:
            if edit.value is not None and parse_rate(edit.value) < 0:
                raise Invalid(f"{edit.key} {edit.value} of broker {broker_id} must be >= 0. Fix: delete it instead")
        if not self.has_controllers:
            raise Unavailable(
                f"broker {broker_id} is down and bootstrap_controllers is empty. Fix: give kafka-bootstrap-controllers"
            )
        resources = {str(broker_id): edits}
        build = partial(messages.alter_configs, messages.BROKER, resources)
        servers, deadline = self._settings.bootstrap_controllers, until or self._deadline()
        _raise_refusal(alter_through_controller(servers, self._settings.login.options, build, deadline), resources)

    def alter_client_quotas(
        self, entity: ClientQuotaEntity, edits: QuotaEdits, *, validate_only: bool = False, until: float | None = None
    ) -> None:
        """Edit the client quotas of one entity; all edits succeed or fail together.

        Raises:
            Unavailable: no broker answers; it is unknown whether the edits were made.
            Invalid: Kafka refuses the edits.
        """
        build = partial(messages.alter_client_quotas, entity, edits, validate_only)
        response = self._routing.ask_any(build, until or self._deadline(), again=False)
        if (problem := messages.refused_client_quotas(response, entity)) is not None:
            raise problem

    def alter_reassignments(
        self, replicas: Mapping[TopicPartition, Sequence[int] | None], *, until: float | None = None
    ) -> Mapping[TopicPartition, AutothrottleError]:
        """Start reassignments to these replicas (None: cancel); return partition -> why it was refused.

        Cancelling a partition without a reassignment is refused with Missing.
        """
        if not replicas:
            return {}
        deadline = until or self._deadline()
        build = _bounded(lambda left: messages.alter_reassignments(replicas, left), deadline)
        response = self._routing.ask_controller(build, deadline, again=False)
        _check(response, "the request to alter reassignments")
        return messages.refused_reassignments(response)

    # Internals

    def _deadline(self, timeout: timedelta | None = None) -> float:
        return time.monotonic() + (timeout or self._settings.request_timeout).total_seconds()

    def _each(
        self, builds: Mapping[int, Build], parse: Callable[[int, Any], T | AutothrottleError], timeout: timedelta | None
    ) -> Answers[int, T]:
        """Query each broker in parallel; an error concerns that broker alone."""
        answers = self._routing.each(builds, self._deadline(timeout)) if builds else {}
        return _split({b: _read(answer, partial(parse, b)) for b, answer in answers.items()})

    def _ask_one(self, broker_id: int, build: Build, deadline: float, again: bool) -> Any:
        answer = self._routing.each({broker_id: build}, deadline, again=again)[broker_id]
        if isinstance(answer, AutothrottleError):
            raise answer
        return answer

    def _topic_configs(self, topics: Sequence[str], keys: Keys, deadline: float) -> Answers[str, Configs]:
        """Describe topics in one request. If the broker fails at it, split the topics in halves and retry.

        One value over 32,767 bytes makes the whole request fail; only a direct write to ZooKeeper can create one.
        """
        response = self._routing.ask_any(lambda: messages.describe_configs(messages.TOPIC, topics, keys), deadline)
        answers = _split(messages.configs(response))
        explained = any(not isinstance(failure, Unexplained) for failure in answers.failures.values())
        if len(topics) == 1 or answers.values or explained:
            return answers
        middle = len(topics) // 2
        return _together(self._topic_configs(half, keys, deadline) for half in (topics[:middle], topics[middle:]))


def _read(answer: Any, parse: Callable[[Any], T | AutothrottleError]) -> T | AutothrottleError:
    """Read the answer of one broker; an error concerns that broker alone."""
    try:
        return answer if isinstance(answer, AutothrottleError) else parse(answer)
    except AutothrottleError as error:
        return error


def _view(answers: Answers[str, T]) -> Mapping[str, T] | AutothrottleError:
    """Return what one broker knows of topics, or why it does not say so. It may not know a topic yet."""
    failures = (failure for failure in answers.failures.values() if not isinstance(failure, Missing))
    return next(failures, answers.values)


def _bounded(build: Callable[[int], Any], deadline: float) -> Build:
    """Make a request that carries the remaining milliseconds as its timeout."""
    return lambda: build(max(int((deadline - time.monotonic()) * 1000), 1))


def _chunks(topics: Collection[str]) -> Iterator[Sequence[str]]:
    names = list(topics)
    for start in range(0, len(names), _TOPICS_AT_ONCE):
        yield names[start : start + _TOPICS_AT_ONCE]


def _raise_refusal(response: Any, resources: Collection[str]) -> None:
    for problem in messages.refused_configs(response, resources).values():
        raise problem


def _check(response: Any, what: str) -> None:
    if response.error_code:
        raise code_error(response.error_code, response.error_message, what)


def _together(answers: Iterable[Answers[str, T]]) -> Answers[str, T]:
    values: dict[str, T] = {}
    failures: dict[str, AutothrottleError] = {}
    for some in answers:
        values.update(some.values)
        failures.update(some.failures)
    return Answers(values, failures)


def _split(answered: Mapping[Any, T | AutothrottleError]) -> Answers[Any, T]:
    """Separate values from failures."""
    return Answers(
        {key: answer for key, answer in answered.items() if not isinstance(answer, AutothrottleError)},
        {key: answer for key, answer in answered.items() if isinstance(answer, AutothrottleError)},
    )
