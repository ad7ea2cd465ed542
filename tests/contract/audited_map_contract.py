"""Contract of every `AuditedMap`, for each kind of map.

Inherit from it and define the fixtures `store`, `fence` and `newest`. The fixture `case` names the kind of map.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from autothrottle.adapters.state_store.operator_stores import MapCodec
from autothrottle.adapters.zookeeper.map_codecs import (
    CATCH_UPS,
    REQUEST_QUOTAS,
    TEMPORARY_QUOTAS,
    YIELD_RULES,
)
from autothrottle.core.errors import Conflict, NotLeader
from autothrottle.core.operators.audit import StoredAuditRecord
from autothrottle.core.quotas.keys import DEFAULT, ClientQuotaEntity, QuotaKey, TemporaryQuota
from autothrottle.core.quotas.yielding import BYTE_RATES, MAX_RULES, YieldRule, rule_sentence
from autothrottle.core.records import AuditAction, CatchUp
from autothrottle.core.request_quotas import RequestQuotaEntity
from autothrottle.ports.state_store import AuditedMap
from tests.builders import eventually

TIME = datetime(2026, 11, 2, 12, 0, 0, 123456, tzinfo=UTC)
AUTHOR = "10.0.0.9:5000"


@dataclass(frozen=True)
class MapCase:
    """One kind of map with two entries."""

    codec: MapCodec[Any, Any]
    entries: Mapping[Any, Any]
    later: Any
    """Another value of the first key."""
    put: Sequence[tuple[AuditAction, str, str, int | None]]
    """(action, who, result, broker id) in the audit record of each entry."""
    removed: Sequence[tuple[AuditAction, str, int | None]]
    """(action, result, broker id) in the audit record of each removal; one entry: a purge is not recorded."""

    @property
    def keys(self) -> tuple[Any, Any]:
        first, second = self.entries
        return first, second


CATCH_UP = CatchUp(1001, AUTHOR, TIME)
CATCH_UP_CASE = MapCase(
    CATCH_UPS,
    {1001: CATCH_UP, 1002: CatchUp(1002, "anna")},
    replace(CATCH_UP, time=TIME + timedelta(seconds=5)),
    [(AuditAction.START_CATCH_UP, AUTHOR, "", 1001), (AuditAction.START_CATCH_UP, "anna", "", 1002)],
    [(AuditAction.STOP_CATCH_UP, "", 1001)],
)

QUOTA = TemporaryQuota(
    ClientQuotaEntity("a/b ☃", DEFAULT),
    {QuotaKey.PRODUCER_BYTE_RATE: 20_000_000, QuotaKey.REQUEST_PERCENTAGE: 12.5},
    AUTHOR,
    TIME,
    TIME + timedelta(hours=1),
)
IP = ClientQuotaEntity(ip="10.0.0.7")
TEMPORARY_QUOTA_CASE = MapCase(
    TEMPORARY_QUOTAS,
    {
        QUOTA.entity: QUOTA,
        IP: TemporaryQuota(IP, {QuotaKey.CONNECTION_CREATION_RATE: 5}, "anna", TIME, until_recovered=True),
    },
    replace(QUOTA, values={QuotaKey.CONSUMER_BYTE_RATE: 7}, until_recovered=True),
    [
        (
            AuditAction.SET_QUOTA,
            AUTHOR,
            'Quota of user "a/b ☃", default client-id: producer_byte_rate 20000000, request_percentage 12.5, '
            "ends at 2026-11-02T13:00:00+00:00",
            None,
        ),
        (
            AuditAction.SET_QUOTA,
            "anna",
            'Quota of ip "10.0.0.7": connection_creation_rate 5, ends with the recovery',
            None,
        ),
    ],
    [
        (AuditAction.REMOVE_QUOTA, 'Temporary quota of user "a/b ☃", default client-id ended', None),
        (AuditAction.REMOVE_QUOTA, 'Temporary quota of ip "10.0.0.7" ended', None),
    ],
)

RULE = YieldRule(
    name="etl",
    user="etl/*",
    client_id=None,
    at_most_bytes_per_second=None,
    at_most_share=0.1,
    floor_bytes_per_second=1_000_000,
    keys=frozenset({QuotaKey.PRODUCER_BYTE_RATE}),
    author=AUTHOR,
    time=TIME,
)
RATE_RULE = replace(
    RULE,
    name="backfills",
    user=None,
    client_id="backfill-* ☃",
    at_most_bytes_per_second=2**53,
    at_most_share=None,
    floor_bytes_per_second=1,
    keys=BYTE_RATES,
    author="anna",
)
YIELD_RULE_CASE = MapCase(
    YIELD_RULES,
    {"etl": RULE, "backfills": RATE_RULE},
    replace(RULE, user="*", floor_bytes_per_second=7),
    [
        (AuditAction.SET_QUOTA, AUTHOR, f"Yield rule etl: {rule_sentence(RULE)}", None),
        (AuditAction.SET_QUOTA, "anna", f"Yield rule backfills: {rule_sentence(RATE_RULE)}", None),
    ],
    [
        (AuditAction.REMOVE_QUOTA, "Yield rule etl removed", None),
        (AuditAction.REMOVE_QUOTA, "Yield rule backfills removed", None),
    ],
)

JUERGEN, DEFAULTS = RequestQuotaEntity("Jürgen Ö", 'a "client", 1'), RequestQuotaEntity("", "")
REQUEST_QUOTA_CASE = MapCase(
    REQUEST_QUOTAS,
    {JUERGEN: 1, DEFAULTS: 1_000_000},
    100,
    [
        (AuditAction.SET_REQUEST_QUOTA, "bernd", 'user Jürgen Ö, client id a "client", 1: 1 requests/s', None),
        (AuditAction.SET_REQUEST_QUOTA, "bernd", "default user, default client id: 1000000 requests/s", None),
    ],
    [
        (AuditAction.REMOVE_REQUEST_QUOTA, 'user Jürgen Ö, client id a "client", 1', None),
        (AuditAction.REMOVE_REQUEST_QUOTA, "default user, default client id", None),
    ],
)

CASES = (CATCH_UP_CASE, TEMPORARY_QUOTA_CASE, YIELD_RULE_CASE, REQUEST_QUOTA_CASE)


def only(*cases: MapCase) -> pytest.MarkDecorator:
    """Run a test for these kinds of map."""
    return pytest.mark.parametrize("case", cases, ids=[case.codec.node for case in cases])


each_kind = only(*CASES)


class AuditedMapContract:
    @pytest.fixture(params=CASES, ids=lambda case: case.codec.node)
    def case(self, request: pytest.FixtureRequest) -> MapCase:
        case: MapCase = request.param
        return case

    def test_an_empty_map_has_no_entries(self, case: MapCase, store: AuditedMap[Any, Any]) -> None:
        assert store.read() == {}
        assert store.remove(case.keys[0]) is False

    def test_entries_are_read_as_put_and_replaced_by_key(self, case: MapCase, store: AuditedMap[Any, Any]) -> None:
        first, second = case.keys
        for key, entry in case.entries.items():
            store.put(key, entry)
        assert store.read() == case.entries
        store.put(first, case.later)
        assert store.read() == {**case.entries, first: case.later}
        assert store.remove(second) is True
        assert store.read() == {first: case.later}

    def test_changes_are_audited_and_repetitions_are_not(
        self, case: MapCase, store: AuditedMap[Any, Any], fence: int, newest: Callable[[], Sequence[StoredAuditRecord]]
    ) -> None:
        first, second = case.keys
        for key, entry in case.entries.items():
            store.put(key, entry, "bernd")
            store.put(key, entry, "a repetition")
        assert store.remove(first, "carla") is True
        assert store.remove(first, "a repetition") is False
        assert store.purge(fence, second, case.entries[second], "it has expired") is True
        authors = [("carla", ""), (f"planner, term {fence}", "it has expired")]
        assert [(r.action, r.who, r.result, r.broker_id, r.reason) for r in reversed(newest())] == [
            *((*record, "") for record in case.put),
            *(
                (action, who, result, broker_id, reason)
                for (action, result, broker_id), (who, reason) in zip(case.removed, authors, strict=False)
            ),
        ]

    def test_purge_only_removes_the_given_entry(self, case: MapCase, store: AuditedMap[Any, Any], fence: int) -> None:
        first, second = case.keys
        store.put(first, case.later)
        store.put(second, case.entries[second])
        assert store.purge(fence, first, case.entries[first]) is False
        assert store.read()[first] == case.later
        assert store.purge(fence, first, case.later) is True
        assert store.read() == {second: case.entries[second]}

    def test_purge_with_a_wrong_fence_raises_not_leader(
        self, case: MapCase, store: AuditedMap[Any, Any], fence: int
    ) -> None:
        first = case.keys[0]
        store.put(first, case.later)
        with pytest.raises(NotLeader):
            store.purge(fence + 1, first, case.later)
        assert store.read() == {first: case.later}

    def test_only_open_watches_report_changes(self, case: MapCase, store: AuditedMap[Any, Any]) -> None:
        notified, closed = threading.Event(), threading.Event()
        # The watch compares later changes with the first read.
        store.read()
        store.watch(closed.set).close()
        watch = store.watch(notified.set)
        try:
            store.put(case.keys[0], case.later)
            assert notified.wait(30)
            eventually(lambda: store.read() == {case.keys[0]: case.later})
            notified.clear()
            store.remove(case.keys[0])
            assert notified.wait(30)
        finally:
            watch.close()
        assert not closed.is_set()

    def test_a_follower_has_the_stored_entries_and_every_change(
        self, case: MapCase, store: AuditedMap[Any, Any]
    ) -> None:
        first, second = case.keys
        maps: list[Mapping[Any, Any]] = []
        closed = threading.Event()
        store.put(first, case.later)
        store.follow(lambda _: closed.set()).close()
        closed.clear()
        watch = store.follow(maps.append)
        try:
            eventually(lambda: maps and maps[-1] == {first: case.later})
            store.put(second, case.entries[second])
            eventually(lambda: maps[-1] == {first: case.later, second: case.entries[second]})
            store.remove(first)
            eventually(lambda: maps[-1] == {second: case.entries[second]})
        finally:
            watch.close()
        assert not closed.is_set()

    @only(YIELD_RULE_CASE)
    def test_a_rule_above_the_limit_is_refused(
        self, store: AuditedMap[Any, Any], newest: Callable[[], Sequence[StoredAuditRecord]]
    ) -> None:
        for number in range(MAX_RULES):
            store.put(f"r{number}", replace(RULE, name=f"r{number}"))
        rules, record = store.read(), newest()[0]
        with pytest.raises(Conflict, match="remove one"):
            store.put("more", replace(RULE, name="more"))
        assert store.read() == rules and newest()[0] == record
        store.put("r0", replace(RULE, name="r0", floor_bytes_per_second=5))
        assert store.read()["r0"].floor_bytes_per_second == 5
