"""Every field of the messages that are converted by name and type is carried in both directions."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from autothrottle.core import records
from autothrottle.core.cluster.configs import ClusterSettings, ConfigResource, FetchSettings
from autothrottle.core.cluster.snapshot import Problem, SnapshotRequest
from autothrottle.core.members import Member
from autothrottle.core.operators.audit import StoredAuditRecord
from autothrottle.core.operators.cancellation import Cancellation
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.core.quotas.keys import ClientReading
from autothrottle.core.quotas.yielding import YieldRule
from autothrottle.core.request_quotas import RequestQuotaEntity
from autothrottle.messages import RENAMED_FIELDS, TopicPartition
from autothrottle.ports.kafka import SnapshotEvent
from autothrottle.ports.telemetry import Event
from autothrottle.v1 import admin_pb2, applier_pb2, discovery_pb2, metrics_pb2, planner_pb2, quotas_pb2, types_pb2
from autothrottle.wire.common import SAME_NAMES
from autothrottle_client import model, quotas, reassignments
from tests.examples import examples
from tests.unit.autothrottle.wire.strategies import resources, text, times, topic_names


class Pair(NamedTuple):
    """A dataclass and the message that it becomes."""

    kind: Any
    message: type[Message]
    others: frozenset[str] = frozenset()
    """Fields of the message that the caller of the conversion gives, or reads."""


def pair(kind: Any, message: type[Message], *others: str) -> Pair:
    return Pair(kind, message, frozenset(others))


PAIRS = [
    pair(records.Allowances, admin_pb2.EstimateReassignmentRequest, "max_ratio", "partitions", "within"),
    pair(
        records.Allowances,
        admin_pb2.SubmitReassignmentRequest,
        "partitions",
        "throttle_bytes_per_second",
        "validate_only",
    ),
    pair(records.CancelEffect, admin_pb2.CancelEffect),
    pair(records.CatchUp, admin_pb2.CatchUp),
    pair(records.Cycle, types_pb2.Cycle),
    pair(records.Decision, types_pb2.Decision),
    pair(records.Estimate, admin_pb2.EstimateReassignmentResponse),
    pair(records.Outcome, types_pb2.Outcome),
    pair(records.Pause, types_pb2.Pause),
    pair(records.PlannerState, planner_pb2.GetStateResponse),
    pair(records.RunningMove, admin_pb2.RunningMove),
    pair(records.Submission, planner_pb2.PlannerServiceSubmitReassignmentResponse),
    pair(records.Submission, admin_pb2.SubmitReassignmentResponse),
    pair(Cancellation, applier_pb2.CancelReassignmentsResponse),
    pair(ClientReading, discovery_pb2.GetClientsResponse, "entities"),
    pair(ClusterSettings, discovery_pb2.GetFetchSettingsResponse, "brokers"),
    pair(Event, metrics_pb2.PostEventRequest),
    pair(FetchSettings, discovery_pb2.BrokerFetchSettings, "broker_id"),
    pair(Member, admin_pb2.Member),
    pair(Problem, discovery_pb2.Problem),
    pair(RequestQuotaEntity, admin_pb2.RemoveRequestQuotaRequest),
    pair(RequestQuotaEntity, admin_pb2.RequestQuota, "request_rate"),
    pair(SnapshotEvent, discovery_pb2.WatchSnapshotsResponse),
    pair(SnapshotRequest, discovery_pb2.GetSnapshotRequest, "replicas_of", "partitions", "catching_up", "known_name"),
    pair(StoredAuditRecord, admin_pb2.AuditRecord, "before", "after"),
    pair(StoredOverride, admin_pb2.Override, "broker_id", "rate_bytes_per_second", "etag", "effect"),
    pair(YieldRule, quotas_pb2.YieldRule, "keys", "sentence"),
    pair(model.AuditRecord, admin_pb2.AuditRecord),
    pair(model.ClusterState, admin_pb2.GetClusterStateResponse),
    pair(model.Override, admin_pb2.Override),
    pair(model.RequestQuota, admin_pb2.RequestQuota),
    pair(quotas.EffectiveQuota, quotas_pb2.EffectiveQuota),
    pair(quotas.Quota, quotas_pb2.Quota),
    pair(quotas.QuotaChange, quotas_pb2.SetQuotaResponse),
    pair(quotas.YieldRuleChange, quotas_pb2.SetYieldRuleResponse),
    pair(reassignments.Reassignments, admin_pb2.ListReassignmentsResponse),
]

TESTED_ELSEWHERE = {
    *("BrokerLoad", "Utilization"),  # test_metrics.py
    *("Change", "LedgerKey"),  # test_applier.py
    *("BrokerLogSizes", "Progress"),  # test_discovery.py
    *("RebalanceOptions", "RebuildOptions", "ProposedPlacement"),  # placement
    *("CapacityAnswer", "ForecastAnswer", "InstanceType", "PoolsDifference", "PoolsStatus", "TimedForecasts"),
}
"""Types whose converted fields are mixed with others, or which only one side has."""


def carried(kind: Any, message: Any, others: Collection[str] = ()) -> dict[str, str]:
    """Return name of a dataclass's field -> name in the message."""
    names = {name: RENAMED_FIELDS.get(kind, {}).get(name, name) for name in get_type_hints(kind)}
    return {name: sent for name, sent in names.items() if sent in message.fields_by_name and sent not in others}


def parts(kind: Any, message: Any, others: Collection[str] = ()) -> set[tuple[Any, Any]]:
    """Return a dataclass and a message, and those of the fields that are carried, at any depth."""
    pairs = {(kind, message)}
    hints = get_type_hints(kind)
    for name, sent in carried(kind, message, others).items():
        nested = message.fields_by_name[sent].message_type
        candidates = [hints[name], *get_args(hints[name])]
        pairs.update(*(parts(hint, nested) for hint in candidates if nested and is_dataclass(hint)))
    return pairs


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.kind.__name__} {pair.message.__name__}")
def test_every_field_of_a_message_is_a_field_of_its_dataclass(pair: Pair) -> None:
    """A new field of a message was ignored on one side, and its value was lost."""
    for kind, message in parts(pair.kind, pair.message.DESCRIPTOR, pair.others):
        others = pair.others if message is pair.message.DESCRIPTOR else frozenset()
        assert set(carried(kind, message).values()) | others == set(message.fields_by_name), kind


# Without shrinking: an error of the conversion fails every pair, and the values are small anyway.
@settings(max_examples=examples(4, 100), phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.kind.__name__} {pair.message.__name__}")
@given(data=st.data())
def test_every_field_of_a_dataclass_survives_the_wire(data: st.DataObject, pair: Pair) -> None:
    value = data.draw(values(pair.kind, pair.message.DESCRIPTOR, pair.others))
    nothing = dict.fromkeys(pair.others)
    sent = SAME_NAMES.to_message(pair.message, value, **nothing)
    names = get_type_hints(pair.kind).keys() - carried(pair.kind, pair.message.DESCRIPTOR, pair.others).keys()
    left_out = {name: getattr(value, name) for name in names}
    received = SAME_NAMES.from_message(pair.kind, pair.message.FromString(sent.SerializeToString()), **left_out)
    assert received == value
    assert SAME_NAMES.to_message(pair.message, received, **nothing) == sent  # also what comparison ignores


def test_every_converted_type_is_tested() -> None:
    tested = {kind.__name__ for pair in PAIRS for kind, _ in parts(pair.kind, pair.message.DESCRIPTOR)}
    source = [path.read_text() for name in ("services", "clients") for path in Path(name).rglob("*.py")]
    converted = {name for text in source for name in re.findall(r"\bfrom_message\(\s*([A-Z]\w+)", text)}
    assert {"Cycle", "SnapshotRequest"} < converted
    assert converted <= tested | TESTED_ELSEWHERE


# Values of a dataclass that its message can hold.


def values(kind: Any, message: Any, others: Collection[str] = ()) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind)
    return st.builds(
        kind,
        **{
            name: field_values(hints[name], message.fields_by_name[sent])
            for name, sent in carried(kind, message, others).items()
        },
    )


def field_values(hint: Any, field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if get_origin(hint) in (Union, UnionType):
        present = field_values(get_args(hint)[0], field)
        return st.none() | (present if field.has_presence else present.filter(bool))
    if hint == TopicPartition:
        return st.tuples(topic_names, st.integers(0, 2**31 - 1))
    if get_origin(hint) in (tuple, frozenset):
        return st.lists(field_values(get_args(hint)[0], field), max_size=3).map(get_origin(hint))
    if get_origin(hint) is Mapping and get_args(hint)[0] == TopicPartition:  # partitions that were refused
        return st.dictionaries(field_values(TopicPartition, field), text, max_size=3)
    if get_origin(hint) is Mapping:
        assert field.message_type is not None
        entry = field.message_type.fields_by_name
        key, value = (
            field_values(part, entry[name]) for part, name in zip(get_args(hint), ("key", "value"), strict=True)
        )
        return st.dictionaries(key, value, max_size=3)
    return single_values(hint, field)


def single_values(hint: Any, field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if hint is int:
        largest = 2**31 - 1 if field.type == FieldDescriptor.TYPE_INT32 else 2**63 - 1
        return st.integers(-largest, largest)
    if hint is float and field.message_type is not None:  # seconds, as a duration
        return st.integers(0, 10**9).map(float)
    simple: Mapping[Any, st.SearchStrategy[Any]] = {
        bool: st.booleans(),
        str: text,
        float: st.floats(allow_nan=False),
        datetime: times,
        timedelta: st.timedeltas(timedelta(-(10**5)), timedelta(10**5)),
        ConfigResource: resources,
    }
    if hint in simple:
        return simple[hint]
    return st.sampled_from(list(hint)) if issubclass(hint, Enum) else values(hint, field.message_type)
