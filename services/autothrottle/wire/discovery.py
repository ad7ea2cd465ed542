"""Conversion of snapshots, progress, log sizes, settings and quotas to and from messages of discovery.

Partitions, flows and logs are packed as columns. A snapshot is a stream of chunks, whole or as the difference from one
that the receiver has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate, chain, islice, pairwise
from typing import Any, NamedTuple

from autothrottle.core.cluster.configs import (
    ClusterSettings,
    ConfigResource,
    FetchSettings,
    LedgerEntry,
    ResourceType,
    validate_broker_id,
    validate_topic,
)
from autothrottle.core.cluster.flows import (
    CopiedMark,
    Flow,
    FlowProgress,
    GrowthMark,
    LogGrowth,
    Progress,
    TopicProgress,
)
from autothrottle.core.cluster.snapshot import (
    Assignment,
    BrokerLogSizes,
    LogSizes,
    Problem,
    SharedValues,
    Snapshot,
    TopicPartition,
    TopicReassignment,
)
from autothrottle.core.errors import Incomplete, Invalid
from autothrottle.core.quotas.keys import ClientReading, QuotaState, entity_of_path
from autothrottle.messages import Conversion
from autothrottle.v1 import discovery_pb2
from autothrottle.v1.discovery_pb2 import GetSnapshotResponse
from autothrottle.wire.applier import ledger_from_message, ledger_to_message, resource_from_path
from autothrottle.wire.common import SAME_NAMES, validate_count

_BYTES_PER_PARTITION = 16
"""Size of a partition in a chunk; converts the size of configs and problems to partitions."""

_PARTITIONS_PER_FLOW = 4
"""Size of a flow's progress, in partitions."""

_Piece = tuple[int, GetSnapshotResponse]
"""(size in partitions, > 0; a part of a chunk)."""


class NamedSnapshot(NamedTuple):
    """A snapshot and the name by which one replica of discovery and one client refer to it."""

    name: str = ""
    """Unique for each snapshot; "": no name."""
    snapshot: Snapshot = Snapshot.empty()


NO_SNAPSHOT = NamedSnapshot()
"""An empty base: the difference from it is a whole snapshot."""


# Sending a snapshot.


def snapshot_to_chunks(
    snapshot: Snapshot, partitions_per_chunk: int = 20_000, name: str = "", base: NamedSnapshot = NO_SNAPSHOT
) -> Iterator[GetSnapshotResponse]:
    """Yield the chunks that together form one snapshot; the first has the header.

    Topics and configs that are as in `base` are absent: if one of 100,000 partitions finishes in each cycle, the
    difference is 10 kB, and the whole snapshot would be 9 MB.

    Args:
        snapshot: a snapshot of version >= 1; the receiver refuses the empty snapshot.
        partitions_per_chunk: maximum size of a chunk in partitions, > 0; other data counts by its size in bytes.
        name: name of the snapshot, for the receiver's next request.
        base: the snapshot that the receiver has; only the difference from it is sent.
    """
    size, chunk = (
        0,
        GetSnapshotResponse(
            version=snapshot.version,
            broker_ids=sorted(snapshot.brokers),
            default_throttles=snapshot.default_throttles,
            name=name,
            base_name=base.name,
            ended_topics=sorted(set(base.snapshot.topics) - set(snapshot.topics)),
            unread_partitions=snapshot.unread_partitions,
        ),
    )
    for piece_size, piece in _pieces(snapshot, base.snapshot, partitions_per_chunk):
        if size and size + piece_size > partitions_per_chunk:
            yield chunk
            chunk, size = GetSnapshotResponse(), 0
        chunk.MergeFrom(piece)
        size += piece_size
    yield chunk


def _pieces(snapshot: Snapshot, base: Snapshot, limit: int) -> Iterator[_Piece]:
    # Comparing is fast: what did not change is usually the same object.
    base_reassignments = {reassignment.topic: reassignment for reassignment in base.reassignments}
    for reassignment in snapshot.reassignments:
        if reassignment != base_reassignments.get(reassignment.topic):
            for part in slices(len(reassignment.partitions), limit):
                message = reassignment_to_message(reassignment, part)
                yield max(1, len(message.partitions)), GetSnapshotResponse(reassignments=[message])
    for resource in sorted(_configured(snapshot) | _configured(base)):
        if (config := _config(snapshot, resource)) != _config(base, resource):
            named_config = _config_to_message(resource, *config)
            yield _size(named_config), GetSnapshotResponse(throttles=[named_config])
    for broker_id, topics in snapshot.replicas.items():
        for listed in _replicas_to_messages(broker_id, topics, limit):
            yield max(1, len(listed.partitions)), GetSnapshotResponse(replicas=[listed])
    for placed in assignments_to_messages(snapshot.assignments, limit):
        yield len(placed.partitions), GetSnapshotResponse(assignments=[placed])
    for problem in snapshot.problems:
        named = SAME_NAMES.to_message(discovery_pb2.Problem, problem)
        yield _size(named), GetSnapshotResponse(problems=[named])
    if snapshot.progress is not None:
        for columns in progress_to_messages(snapshot.progress, max(1, limit // _PARTITIONS_PER_FLOW)):
            yield _size(columns), GetSnapshotResponse(progress=columns)


_Config = tuple[Mapping[str, str], LedgerEntry | None, Problem | None]
"""(throttles, ledger entry, why they cannot be read) of one resource."""


def _configured(snapshot: Snapshot) -> set[ConfigResource]:
    return {*snapshot.throttles, *snapshot.ledger, *snapshot.unreadable_configs}


def _config(snapshot: Snapshot, resource: ConfigResource) -> _Config:
    throttles, ledger = snapshot.throttles.get(resource, {}), snapshot.ledger.get(resource)
    return throttles, ledger, snapshot.unreadable_configs.get(resource)


def _size(message: discovery_pb2.ResourceThrottles | discovery_pb2.Problem | discovery_pb2.Progress) -> int:
    return 1 + message.ByteSize() // _BYTES_PER_PARTITION


def _replicas_to_messages(
    broker_id: int, topics: Mapping[str, tuple[int, ...]], limit: int
) -> Iterator[discovery_pb2.BrokerReplicas]:
    """A broker without replicas gets one message without a topic, so that it differs from an unknown broker."""
    for topic, partitions in topics.items() or [("", ())]:
        for part in slices(len(partitions), limit):
            yield discovery_pb2.BrokerReplicas(broker_id=broker_id, topic=topic, partitions=partitions[part])


def _config_to_message(
    resource: ConfigResource, throttles: Mapping[str, str], ledger: LedgerEntry | None, unreadable: Problem | None
) -> discovery_pb2.ResourceThrottles:
    return discovery_pb2.ResourceThrottles(
        resource=resource.path,
        values=throttles,
        ledger=None if ledger is None else ledger_to_message(ledger),
        unreadable_path=unreadable.path if unreadable else "",
        unreadable_reason=unreadable.reason if unreadable else "",
    )


# Receiving a snapshot.


def named_snapshot_from_chunks(
    chunks: Iterable[GetSnapshotResponse], last: NamedSnapshot = NO_SNAPSHOT
) -> NamedSnapshot:
    """Convert a stream of chunks to a snapshot; the chunks are whole or the difference from `last`.

    Raises:
        Incomplete: the chunks do not form one snapshot, or they are the difference from another one.
    """
    stream = iter(chunks)
    header = next(stream, None)
    if header is None:
        raise Incomplete("the stream of a snapshot ended before its first chunk; request the snapshot again")
    base = last if header.base_name else NO_SNAPSHOT
    if header.base_name != base.name:
        raise Incomplete(
            f"the stream is the difference from snapshot {header.base_name!r}, but {last.name!r} is known; "
            "request the whole snapshot"
        )
    received = _ReceivedParts(base.snapshot)
    for number, chunk in enumerate(chain([header], stream), start=1):
        if bool(chunk.version > 0) is not (number == 1):
            raise Incomplete(
                f"chunk {number} of a snapshot has version {chunk.version}; only the first chunk has a version, which "
                "is > 0. Request the snapshot again"
            )
        received.absorb(chunk)
    received.end_topic()
    reassignments = base.snapshot.reassignments
    if header.ended_topics or received.reassignments:
        ended = set(header.ended_topics)
        topics = {r.topic: r for r in reassignments if r.topic not in ended} | received.reassignments
        reassignments = tuple(topics[topic] for topic in sorted(topics))
    snapshot = Snapshot(
        version=header.version,
        brokers=frozenset(header.broker_ids),
        reassignments=reassignments,
        throttles=received.throttles,
        default_throttles=dict(header.default_throttles),
        ledger=received.ledger,
        replicas=received.replicas,
        assignments=received.assignments,
        unreadable_configs=received.unreadable,
        problems=tuple(received.problems),
        progress=None if received.progress is None else progress_from_message(received.progress),
        unread_partitions=header.unread_partitions,
    )
    return NamedSnapshot(header.name, snapshot)


class _ReceivedParts:
    """The parts of a snapshot as far as they are received. Each chunk is converted at once, so that it can be freed."""

    def __init__(self, base: Snapshot) -> None:
        """Start from the configs of the snapshot that the stream is a difference from."""
        self.throttles, self.ledger = dict(base.throttles), dict(base.ledger)
        self.unreadable = dict(base.unreadable_configs)
        self.reassignments: dict[str, TopicReassignment] = {}
        self._topic: list[discovery_pb2.TopicReassignment] = []
        """The parts of the topic whose last part may not have come yet."""
        self._shared = SharedValues()
        self.replicas: dict[int, dict[str, tuple[int, ...]]] = {}
        self.assignments: dict[TopicPartition, Assignment] = {}
        self.problems: list[Problem] = []
        self.progress: discovery_pb2.Progress | None = None

    def end_topic(self) -> None:
        """Convert the last topic, while the sender encodes the next ones."""
        if not self._topic:
            return
        topic, parts = self._topic[0].topic, self._topic
        if topic in self.reassignments:
            raise Incomplete(f"the parts of topic {topic} are not together; request the snapshot again")
        self.reassignments[topic], self._topic = reassignment_from_parts(topic, parts, self._shared), []

    def absorb(self, chunk: GetSnapshotResponse) -> None:
        for part in chunk.reassignments:
            if self._topic and part.topic != self._topic[0].topic:
                self.end_topic()
            self._topic.append(part)
        for config in chunk.throttles:
            self._absorb_config(config)
        for listed in chunk.replicas:
            topics = self.replicas.setdefault(listed.broker_id, {})
            if listed.topic:
                topics[listed.topic] = topics.get(listed.topic, ()) + tuple(listed.partitions)
        for placed in chunk.assignments:
            self.assignments.update(assignments_from_message(placed))
        self.problems += [SAME_NAMES.from_message(Problem, problem) for problem in chunk.problems]
        if chunk.HasField("progress"):
            self.progress = self.progress or discovery_pb2.Progress()
            self.progress.MergeFrom(chunk.progress)

    def _absorb_config(self, message: discovery_pb2.ResourceThrottles) -> None:
        resource = ConfigResource(message.resource)
        for entries in (self.throttles, self.ledger, self.unreadable):
            entries.pop(resource, None)
        if message.values:
            self.throttles[resource] = dict(message.values)
        if message.HasField("ledger"):
            self.ledger[resource] = ledger_from_message(message.ledger, self.throttles.get(resource, {}))
        if message.unreadable_path or message.unreadable_reason:
            self.unreadable[resource] = Problem(message.unreadable_path, message.unreadable_reason)


# Reassignments and assignments as columns.


_LISTS = ("isr", "adding_replicas", "removing_replicas")
"""Columns of a reassignment with a list for each partition; an assignment has its replicas, too."""


def reassignment_to_message(reassignment: TopicReassignment, part: slice) -> discovery_pb2.TopicReassignment:
    """Convert some partitions of a topic's reassignment."""
    return discovery_pb2.TopicReassignment(
        topic=reassignment.topic,
        partitions=reassignment.partitions[part],
        leaders=reassignment.leaders[part],
        **_packed({name: getattr(reassignment, name)[part] for name in _LISTS}),
    )


def reassignment_from_parts(
    topic: str, parts: Sequence[discovery_pb2.TopicReassignment], pool: SharedValues
) -> TopicReassignment:
    """Join the messages of one topic, at least one, in partition order.

    Args:
        topic: the topic.
        parts: its messages.
        pool: values that topics share.

    Raises:
        Incomplete: the columns differ in length.
    """
    whole = parts[0] if len(parts) == 1 else _joined(parts)
    leaders, *lists = _columns(whole, _LISTS, pool)
    return TopicReassignment(topic, pool[tuple(whole.partitions)], tuple(map(pool.__getitem__, leaders)), *lists)


def assignments_to_messages(
    assignments: Mapping[TopicPartition, Assignment], limit: int
) -> Iterator[discovery_pb2.TopicAssignment]:
    """Yield one or more messages for each topic, of at most `limit` partitions."""
    topics: dict[str, list[tuple[int, Assignment]]] = {}
    for (topic, partition), placed in assignments.items():
        topics.setdefault(topic, []).append((partition, placed))
    for topic, rows in topics.items():
        for part in slices(len(rows), limit):
            yield discovery_pb2.TopicAssignment(
                topic=topic,
                partitions=[partition for partition, _ in rows[part]],
                leaders=[placed.leader for _, placed in rows[part]],
                **_packed(
                    {name: [getattr(placed, name) for _, placed in rows[part]] for name in ("replicas", *_LISTS)}
                ),
            )


def assignments_from_message(message: discovery_pb2.TopicAssignment) -> Iterator[tuple[TopicPartition, Assignment]]:
    """Yield each partition of a message with its assignment.

    Raises:
        Incomplete: the columns differ in length.
    """
    columns = _columns(message, ("replicas", *_LISTS), SharedValues())
    for partition, leader, replicas, *lists in zip(message.partitions, *columns, strict=True):
        yield (message.topic, partition), Assignment(replicas, leader, *lists)


def _joined(parts: Sequence[discovery_pb2.TopicReassignment]) -> discovery_pb2.TopicReassignment:
    whole = discovery_pb2.TopicReassignment()
    for part in parts:
        whole.MergeFrom(part)
    return whole


def _short(column: str) -> str:
    """Return the name of a column of lists in the name of its counts: `adding` for `adding_replicas`."""
    return column.removesuffix("_replicas")


def _packed(lists: Mapping[str, Sequence[Sequence[int]]]) -> dict[str, Any]:
    """Return two columns for each column of lists: their values one after the other, and the length of each list."""
    values = {column: chain.from_iterable(rows) for column, rows in lists.items()}
    return values | {f"{_short(column)}_counts": map(len, rows) for column, rows in lists.items()}


def _columns(
    message: discovery_pb2.TopicReassignment | discovery_pb2.TopicAssignment, lists: Iterable[str], pool: SharedValues
) -> Iterator[Any]:
    """Yield the column of leaders and the columns of lists, each with a value for every partition."""
    topic = f"topic {message.topic}"
    _check_length(topic, "leaders", len(message.leaders), len(message.partitions))
    yield message.leaders
    for column in lists:
        short = _short(column)
        counts, values = getattr(message, f"{short}_counts"), getattr(message, column)
        _check_length(topic, f"{short}_counts", len(counts), len(message.partitions))
        _check_length(topic, short, len(values), sum(counts), min(counts, default=0) >= 0)
        yield _unpacked(counts, tuple(map(pool.__getitem__, values)), pool)


def _unpacked(counts: Sequence[int], values: tuple[int, ...], pool: SharedValues) -> tuple[tuple[int, ...], ...]:
    if len(set(counts)) == 1 and (count := counts[0]):
        rows = zip(*[iter(values)] * count, strict=True)  # the usual case: all partitions have the same count
        return tuple(map(pool.__getitem__, rows)) if count == 1 else tuple(rows)
    return tuple([pool[values[start:end]] for start, end in pairwise(accumulate(counts, initial=0))])


def _check_length(whole: str, column: str, length: int, expected: int, is_valid: bool = True) -> None:
    if length != expected or not is_valid:
        raise Incomplete(
            f"the column {column} of {whole} has {length} values instead of {expected}; request the snapshot again"
        )


def slices(length: int, limit: int) -> Iterator[slice]:
    """Slices of at most `limit` items; one empty slice for length 0, since an empty list has a meaning too."""
    yield from (slice(start, start + limit) for start in range(0, max(1, length), limit))


# Progress as columns.

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_FLOWS = (
    "leaders",
    "followers",
    "bytes_copied",
    "bytes_produced",
    "bytes_left",
    "times_us",
    "since_us",
    "recent_counts",
)
_FLOW_MARKS = ("recent_ages_us", "recent_bytes_before")
_TOPICS = (
    "topics",
    "topic_bytes_copied",
    "topic_bytes_left",
    "topic_etas_us",
    "topic_eta_lows_us",
    "topic_eta_highs_us",
)
_GROWTH = (
    "growth_brokers",
    "growth_led",
    "growth_received",
    "growth_times_us",
    "growth_since_us",
    "growth_recent_counts",
)
_GROWTH_MARKS = ("growth_recent_ages_us", "growth_recent_led_before", "growth_recent_received_before")


_TIMES = Conversion(names={Progress: {"at": "read_time"}, BrokerLogSizes: {"at": "time"}})
"""Converts the times of a progress and of log sizes."""


def progress_to_messages(progress: Progress, rows_per_message: int) -> Iterator[discovery_pb2.Progress]:
    """Yield the messages that together form one progress; the first has the read time and the ETA.

    Args:
        progress: the progress to send.
        rows_per_message: maximum number of flows, topics, brokers or earlier counts in a message, > 0.
    """
    yield _TIMES.to_message(discovery_pb2.Progress, progress, topics=())
    flows, growth = progress.flows.items(), progress.growth.items()
    tables: dict[tuple[str, ...], Iterator[tuple[object, ...]]] = {
        _FLOWS: (
            (*flow, c.bytes_copied, c.bytes_produced, c.bytes_left, _us(c.at), _us(c.since), len(c.recent))
            for flow, c in flows
        ),
        _FLOW_MARKS: (
            ((c.at - mark.at) // _MICROSECOND, c.bytes_copied - mark.bytes_copied)
            for _, c in flows
            for mark in c.recent
        ),
        _TOPICS: (
            (topic, c.bytes_copied, c.bytes_left, _us(c.eta), _us(c.eta_low), _us(c.eta_high))
            for topic, c in progress.topics.items()
        ),
        _GROWTH: ((broker_id, g.led, g.received, _us(g.at), _us(g.since), len(g.recent)) for broker_id, g in growth),
        _GROWTH_MARKS: (
            ((g.at - mark.at) // _MICROSECOND, g.led - mark.led, g.received - mark.received)
            for _, g in growth
            for mark in g.recent
        ),
    }
    for names, rows in tables.items():
        while part := list(islice(rows, rows_per_message)):
            columns: Any = dict(zip(names, zip(*part, strict=True), strict=True))
            yield discovery_pb2.Progress(**columns)


def progress_from_message(whole: discovery_pb2.Progress) -> Progress:
    """Convert the merged messages of one progress.

    Raises:
        Incomplete: a column is too short or too long.
    """
    return _TIMES.from_message(
        Progress,
        whole,
        flows=dict(_flows(whole)),
        topics={
            topic: TopicProgress(copied, bytes_left, *map(_time, etas))
            for topic, copied, bytes_left, *etas in _rows(whole, _TOPICS)
        },
        growth=dict(_growth(whole)),
    )


def _flows(whole: discovery_pb2.Progress) -> Iterator[tuple[Flow, FlowProgress]]:
    rows, times = _rows(whole, _FLOWS), _Times()
    marks = _marks(whole, whole.recent_counts, _FLOW_MARKS)
    for leader, follower, copied, produced, bytes_left, at, since, count in rows:
        recent = tuple(
            [CopiedMark(times[at - age], copied - copied_since) for age, copied_since in islice(marks, count)]
        )
        yield Flow(leader, follower), FlowProgress(copied, produced, bytes_left, times[at], times[since], recent)


def _growth(whole: discovery_pb2.Progress) -> Iterator[tuple[int, LogGrowth]]:
    rows, times = _rows(whole, _GROWTH), _Times()
    marks = _marks(whole, whole.growth_recent_counts, _GROWTH_MARKS)
    for broker_id, led, received, at, since, count in rows:
        recent = tuple(
            GrowthMark(times[at - age], led - led_before, received - received_before)
            for age, led_before, received_before in islice(marks, count)
        )
        yield broker_id, LogGrowth(led, received, times[at], times[since], recent)


def _marks(whole: discovery_pb2.Progress, counts: Sequence[int], names: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    """Rows of the earlier counts of all flows or brokers, of which there are `counts` each."""
    if min(counts, default=0) < 0:
        column = names[0].removesuffix("ages_us") + "counts"
        raise Incomplete(f"the column {column} of the progress has a number < 0; request the snapshot again")
    return _rows(whole, names, sum(counts))


def _rows(
    whole: discovery_pb2.Progress, names: tuple[str, ...], length: int | None = None
) -> Iterator[tuple[Any, ...]]:
    """Rows of the columns with these names, which all have this length; None: the length of the first."""
    columns = [getattr(whole, name) for name in names]
    expected = len(columns[0]) if length is None else length
    for name, column in zip(names, columns, strict=True):
        _check_length("the progress", name, len(column), expected)
    return zip(*columns, strict=True)


class _Times(dict[int, datetime]):
    """Cache: microseconds since 1970 -> time. Flows to one follower share their times."""

    def __missing__(self, microseconds: int) -> datetime:
        time = self[microseconds] = _EPOCH + timedelta(microseconds=microseconds)
        return time


def _us(time: datetime | None) -> int:
    """Microseconds since 1970; 0: unknown."""
    return 0 if time is None else (time - _EPOCH) // _MICROSECOND


def _time(microseconds: int) -> datetime | None:
    return _EPOCH + timedelta(microseconds=microseconds) if microseconds else None


# Log sizes and settings.

_LOG_SIZES_REQUEST_BYTES = 4_000_000
"""Size of one of the requests for the log sizes of a large cluster, below gRPC's own limit of 4 MiB."""

_LENGTH_BYTES = 6
"""Most bytes that precede a broker in a request: its tag and its length."""

_MAX_BROKERS = 10_000
_MAX_TOPICS = 100_000


def log_sizes_request_to_messages(
    partitions_of_brokers: Mapping[int, Mapping[str, Collection[int]]], request_bytes: int = _LOG_SIZES_REQUEST_BYTES
) -> Iterator[discovery_pb2.GetLogSizesRequest]:
    """Convert the logs to read: broker id -> topic -> partitions. Each request has as many as fit."""
    request, request_size = discovery_pb2.GetLogSizesRequest(), 0
    for broker_id, topics in partitions_of_brokers.items():
        named = discovery_pb2.BrokerPartitions(
            broker_id=broker_id,
            partitions=[
                discovery_pb2.TopicPartitions(topic=topic, partitions=sorted(rows)) for topic, rows in topics.items()
            ],
        )
        size = named.ByteSize() + _LENGTH_BYTES
        if request_size and request_size + size > request_bytes:
            yield request
            request, request_size = discovery_pb2.GetLogSizesRequest(), 0
        request.brokers.append(named)
        request_size += size
    yield request


def log_sizes_request_from_message(request: discovery_pb2.GetLogSizesRequest) -> dict[int, dict[str, tuple[int, ...]]]:
    """Return the logs to read: broker id -> topic -> partitions.

    Raises:
        Invalid: a number is out of range, or a name is not that of a topic.
    """
    validate_brokers([broker.broker_id for broker in request.brokers])
    return {
        broker.broker_id: {validate_topic(rows.topic): tuple(rows.partitions) for rows in broker.partitions}
        for broker in request.brokers
    }


def validate_brokers(broker_ids: Collection[int]) -> tuple[int, ...]:
    """Return the broker ids.

    Raises:
        Invalid: an id is out of range, or there are too many.
    """
    validate_count(len(broker_ids), _MAX_BROKERS, "brokers")
    for broker_id in broker_ids:
        validate_broker_id(broker_id)
    return tuple(broker_ids)


def validate_topics(topics: Collection[str]) -> tuple[str, ...]:
    """Return the names of topics.

    Raises:
        Invalid: there are too many, or a name is not that of a topic.
    """
    validate_count(len(topics), _MAX_TOPICS, "topics")
    return tuple(validate_topic(topic) for topic in topics)


def log_sizes_to_messages(sizes: LogSizes) -> Iterator[discovery_pb2.GetLogSizesResponse]:
    """Yield a message for each broker, including those that did not answer."""
    for broker_id, logs in sizes.brokers.items():
        topics: dict[str, dict[int, int]] = {}
        for (topic, partition), size in logs.sizes.items():
            topics.setdefault(topic, {})[partition] = size
        yield _TIMES.to_message(
            discovery_pb2.GetLogSizesResponse,
            logs,
            broker_id=broker_id,
            topics=[
                discovery_pb2.TopicLogSizes(topic=topic, partitions=rows.keys(), sizes=rows.values())
                for topic, rows in topics.items()
            ],
        )
    for broker_id, problem in sizes.problems.items():
        yield discovery_pb2.GetLogSizesResponse(broker_id=broker_id, problem=problem)


def log_sizes_from_messages(messages: Iterable[discovery_pb2.GetLogSizesResponse]) -> LogSizes:
    """Convert messages to log sizes.

    Raises:
        Incomplete: a column is too short or too long.
    """
    brokers, problems = {}, {}
    for message in messages:
        if not message.HasField("time"):
            problems[message.broker_id] = message.problem
            continue
        sizes = {}
        for topic in message.topics:
            if len(topic.partitions) != len(topic.sizes):
                raise Incomplete(
                    f"broker {message.broker_id} has {len(topic.sizes)} sizes for {len(topic.partitions)} logs; retry"
                )
            sizes.update({(topic.topic, p): size for p, size in zip(topic.partitions, topic.sizes, strict=True)})
        brokers[message.broker_id] = _TIMES.from_message(BrokerLogSizes, message, sizes=sizes)
    return LogSizes(brokers, problems)


def settings_to_message(settings: ClusterSettings) -> discovery_pb2.GetFetchSettingsResponse:
    kind = discovery_pb2.BrokerFetchSettings
    brokers = [SAME_NAMES.to_message(kind, broker, broker_id=b) for b, broker in settings.brokers.items()]
    return SAME_NAMES.to_message(discovery_pb2.GetFetchSettingsResponse, settings, brokers=brokers)


def settings_from_message(message: discovery_pb2.GetFetchSettingsResponse) -> ClusterSettings:
    brokers = {broker.broker_id: SAME_NAMES.from_message(FetchSettings, broker) for broker in message.brokers}
    return SAME_NAMES.from_message(ClusterSettings, message, brokers=brokers)


# Quotas and clients.

MAX_RESOURCES = 10_000
"""Largest number of entities in a request for their state."""


def resources_from_paths(paths: Collection[str]) -> frozenset[ConfigResource]:
    """Convert the paths of quota entities.

    Raises:
        Invalid: there are too many, or a path is not that of a quota entity.
    """
    validate_count(len(paths), MAX_RESOURCES, "quota entities")
    resources = frozenset(map(resource_from_path, paths))
    for resource in resources:
        if resource.type is not ResourceType.QUOTA:
            raise Invalid(f"{resource} has no client quotas; give a user, a client id, both, or an IP address")
    return resources


def quota_state_to_message(state: QuotaState) -> discovery_pb2.GetQuotaStateResponse:
    resources = state.configs.keys() | state.ledger.keys() | state.unreadable.keys()
    return discovery_pb2.GetQuotaStateResponse(
        configs=[
            discovery_pb2.QuotaConfig(
                resource=resource.path,
                values=state.configs.get(resource, {}),
                ledger=ledger_to_message(state.ledger[resource]) if resource in state.ledger else None,
                problem=state.unreadable.get(resource, ""),
            )
            for resource in sorted(resources)
        ]
    )


def quota_state_from_message(message: discovery_pb2.GetQuotaStateResponse) -> QuotaState:
    configs = {ConfigResource(config.resource): config for config in message.configs}
    return QuotaState(
        {resource: dict(config.values) for resource, config in configs.items()},
        {name: ledger_from_message(config.ledger) for name, config in configs.items() if config.HasField("ledger")},
        {resource: config.problem for resource, config in configs.items() if config.problem},
    )


def clients_to_message(reading: ClientReading) -> discovery_pb2.GetClientsResponse:
    entities = sorted(entity.path for entity in reading.entities)
    return SAME_NAMES.to_message(discovery_pb2.GetClientsResponse, reading, entities=entities)


def clients_from_message(message: discovery_pb2.GetClientsResponse) -> ClientReading:
    """Convert a response; entities of kinds that this version does not know are absent."""
    entities = frozenset(filter(None, map(entity_of_path, message.entities)))
    return SAME_NAMES.from_message(ClientReading, message, entities=entities)
