"""Hypothesis strategies for core's values, including unusual but valid ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from autothrottle.core.cluster.configs import (
    RATE_KEYS,
    THROTTLE_KEYS,
    ConfigResource,
    LedgerEntry,
    LedgerKey,
    ReplicaRole,
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
from autothrottle.core.cluster.snapshot import Assignment, Problem, Snapshot, TopicReassignment
from autothrottle.core.records import (
    Pause,
    PauseMode,
)
from autothrottle.core.throttles.changes import Change, Edit
from autothrottle.core.traffic.loads import BrokerLoad, Capacity, Loads, Utilization

text = st.text(max_size=8)
sentences = st.text(min_size=1, max_size=12)
int32 = st.integers(0, 2**31 - 1)
int64 = st.integers(0, 2**63 - 1)
broker_ids = st.integers(0, 2**31 - 1)
times = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))
_times_with_history = st.datetimes(datetime(2, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))
"""Times from which any of `_ages_us` can be subtracted: year 1 would overflow."""
topic_names = st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-", min_size=1, max_size=12)
keys = st.sampled_from(sorted(THROTTLE_KEYS))
resources = st.one_of(st.builds(ConfigResource.broker, broker_ids), st.builds(ConfigResource.topic, topic_names))
ledger_keys = st.builds(
    LedgerKey, st.none() | text, st.none() | text, st.frozensets(text, max_size=3), *[st.none() | text] * 2
)
late_values = st.frozensets(st.text("0123456789:*", min_size=1, max_size=5), min_size=1, max_size=3)
late_keys = st.builds(LedgerKey, *[st.sampled_from((None, "1"))] * 2, st.none(), late=late_values, settles=times)
"""Records of keys with late writes; many of them are released."""
ledger_entries = st.builds(
    LedgerEntry, st.dictionaries(keys, ledger_keys | late_keys, min_size=1, max_size=3), int64, int64
)
edits = st.builds(Edit, keys, st.none() | text, st.none() | text)
changes = st.builds(Change, resources, st.lists(edits, max_size=4).map(tuple), st.none() | ledger_entries)
problems = st.builds(Problem, sentences, text)
_replica_sets = st.lists(broker_ids, max_size=4).map(tuple)


@st.composite
def reassignments(draw: st.DrawFn, topic: str) -> TopicReassignment:
    """Columns of equal length, including offline partitions and empty lists."""
    partitions = sorted(draw(st.sets(int32, max_size=9)))
    n = len(partitions)
    column = st.lists(_replica_sets, min_size=n, max_size=n).map(tuple)
    leaders = draw(st.lists(st.just(-1) | broker_ids, min_size=n, max_size=n))
    return TopicReassignment(topic, tuple(partitions), tuple(leaders), draw(column), draw(column), draw(column))


_bytes, _ages_us = st.integers(0, 2**50), st.integers(0, 2**40)


@st.composite
def flow_progresses(draw: st.DrawFn) -> FlowProgress:
    """Progress with earlier counts, none of them larger than the current one."""
    copied, at = draw(_bytes), draw(_times_with_history)
    marks = draw(st.lists(st.tuples(_ages_us, st.integers(0, copied)), max_size=3))
    recent = tuple(CopiedMark(at - timedelta(microseconds=age), count) for age, count in marks)
    return FlowProgress(copied, draw(_bytes), draw(_bytes), at, draw(times), recent)


@st.composite
def log_growths(draw: st.DrawFn) -> LogGrowth:
    """Growth with earlier counts, none of them larger than the current one."""
    led, received, at = draw(_bytes), draw(_bytes), draw(_times_with_history)
    marks = draw(st.lists(st.tuples(_ages_us, st.integers(0, led), st.integers(0, received)), max_size=3))
    recent = tuple(GrowthMark(at - timedelta(microseconds=age), *counts) for age, *counts in marks)
    return LogGrowth(led, received, at, draw(times), recent)


etas = st.none() | times.filter(lambda time: time != datetime(1970, 1, 1, tzinfo=UTC))
"""Columns encode an unknown ETA as 1970."""
progresses = st.builds(
    Progress,
    st.dictionaries(st.builds(Flow, broker_ids, broker_ids), flow_progresses(), max_size=5),
    st.dictionaries(topic_names, st.builds(TopicProgress, int64, int64, etas, etas, etas), max_size=5),
    st.none() | times,
    st.none() | times,
    st.none() | times,
    st.none() | times,
    st.dictionaries(broker_ids, log_growths(), max_size=5),
)


assignments = st.builds(
    Assignment, _replica_sets, st.just(-1) | broker_ids, _replica_sets, _replica_sets, _replica_sets
)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Snapshots of any size."""
    topics = sorted(draw(st.sets(topic_names, max_size=4)))
    partitions = st.lists(int32, max_size=5, unique=True).map(lambda p: tuple(sorted(p)))
    return Snapshot(
        version=draw(st.integers(1, 2**63 - 1)),
        brokers=draw(st.frozensets(broker_ids, max_size=5)),
        reassignments=tuple(draw(reassignments(topic)) for topic in topics),
        throttles=draw(st.dictionaries(resources, st.dictionaries(keys, text, min_size=1, max_size=3), max_size=3)),
        default_throttles=draw(st.dictionaries(st.sampled_from(sorted(RATE_KEYS)), text, max_size=2)),
        ledger=draw(st.dictionaries(resources, ledger_entries, max_size=3)),
        replicas=draw(st.dictionaries(broker_ids, st.dictionaries(topic_names, partitions, max_size=3), max_size=3)),
        assignments=draw(st.dictionaries(st.tuples(topic_names, int32), assignments, max_size=4)),
        unreadable_configs=draw(st.dictionaries(resources, problems, max_size=2)),
        problems=tuple(draw(st.lists(problems, max_size=3))),
        progress=draw(st.none() | progresses),
        unread_partitions=draw(st.integers(0, 2**63 - 1)),
    )


@st.composite
def utilizations(draw: st.DrawFn) -> Utilization:
    """A mean over an interval of up to an hour."""
    start = draw(times)
    length = timedelta(microseconds=draw(st.integers(0, 3_600_000_000)))
    return Utilization(draw(int64), start, start + min(length, datetime(9999, 12, 31, tzinfo=UTC) - start))


@st.composite
def loads(draw: st.DrawFn) -> Loads:
    """Loads with problems of some brokers."""
    capacities = st.builds(Capacity, st.integers(1, 2**63 - 1), st.integers(1, 2**63 - 1))
    brokers = {
        broker_id: BrokerLoad(
            broker_id, draw(capacities), draw(utilizations()), draw(utilizations()), draw(st.sampled_from(["", "d2"]))
        )
        for broker_id in draw(st.sets(broker_ids, max_size=4))
    }
    missing = draw(st.dictionaries(broker_ids, text, max_size=3))
    quota_rates = draw(st.dictionaries(st.tuples(broker_ids, st.sampled_from(ReplicaRole)), utilizations(), max_size=3))
    return Loads(brokers, missing, tuple(draw(st.lists(text, max_size=3))), quota_rates=quota_rates)


pauses = st.builds(Pause, st.sampled_from(PauseMode), text, st.none() | times, text)
