"""Throttles written to a real ZooKeeper: atomic, fenced, in small batches, with correct outcomes."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState
from kazoo.security import make_acl

from autothrottle.adapters.kafka_zookeeper.config_writer import MAX_BATCH_BYTES, ZooKeeperConfigWriter
from autothrottle.adapters.zookeeper.codec import format_config, format_ledger_entry
from autothrottle.core.cluster.configs import (
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    ConfigResource,
    LedgerEntry,
    LedgerKey,
)
from autothrottle.core.errors import NotLeader, Unavailable
from autothrottle.core.records import Outcome, OutcomeStatus
from autothrottle.core.throttles.changes import Change
from autothrottle.ports.kafka import Term
from autothrottle_lab.servers.zookeeper import Operation, Transaction, ZooKeeperServer
from tests.builders import change, eventually, ledger_entry
from tests.contract.config_writer_contract import ConfigWriterContract
from tests.system.zookeeper_tree import Tree, freeze, session

TIMEOUT = timedelta(seconds=20)
BROKER = ConfigResource.broker(1001)
T1 = ConfigResource.topic("t1")
OURS = ledger_entry(leader_replication_throttled_rate="5")


class Subject:
    """A writer under test. Other parties write through another session."""

    def __init__(
        self,
        server: ZooKeeperServer,
        stack: contextlib.ExitStack,
        zk_prefix: str | None = None,
        session_seconds: float = 10.0,
    ) -> None:
        self.server, self.cluster = server, Tree(stack.enter_context(session(server)), zk_prefix)
        self.client: KazooClient = stack.enter_context(session(server, session_seconds))
        self.writer = ZooKeeperConfigWriter(self.client, self.cluster.kafka, self.cluster.own)
        self.begin_term = self.cluster.begin_term
        self.current = self.cluster.current
        self.ledger = self.cluster.ledger
        self.notifications = self.cluster.notifications
        self.set_config_as_user = self.cluster.set_config_as_user

    def applied(self, *changes: Change, timeout: timedelta = TIMEOUT) -> list[Outcome]:
        return list(self.writer.apply(Term(self.begin_term()), changes, timeout))

    def written(self, after_zxid: int) -> list[Transaction]:
        """The transactions of the writer's own session since `after_zxid`."""
        own_session = self.client.client_id[0]
        return [t for t in self.server.transactions(after_zxid) if t.session_id == own_session and t.operations]


@pytest.fixture(params=[None, ""], ids=["zk-prefix", "no-zk-prefix"])
def anywhere(own_zookeeper: ZooKeeperServer, request: pytest.FixtureRequest) -> Iterator[Subject]:
    with contextlib.ExitStack() as stack:
        subject = Subject(own_zookeeper, stack, request.param)
        yield subject
        if request.param == "":
            for path in ("brokers", "config", "admin"):
                subject.cluster.client.delete(f"/{path}", recursive=True)


@pytest.fixture
def subject(zookeeper: ZooKeeperServer) -> Iterator[Subject]:
    with contextlib.ExitStack() as stack:
        yield Subject(zookeeper, stack)


class TestZooKeeperConfigWriter(ConfigWriterContract):
    @pytest.fixture
    def subject(self, zookeeper: ZooKeeperServer) -> Iterator[Subject]:
        with contextlib.ExitStack() as stack:
            yield Subject(zookeeper, stack)


def rate(value: str | None, expected: str | None = None, ledger: LedgerEntry | None = OURS) -> Change:
    return change("brokers/1001", (LEADER_RATE, expected, value), ledger=ledger)


def lists(topic: str, value: str) -> Change:
    return change(f"topics/{topic}", (LEADER_REPLICAS, None, value))


def statuses(outcomes: Sequence[Outcome]) -> list[OutcomeStatus]:
    return [outcome.status for outcome in outcomes]


# One transaction.


def test_config_notification_and_ledger_are_one_transaction_that_checks_the_term(anywhere: Subject) -> None:
    anywhere.applied(lists("t0", "0:1"))  # creates the parent nodes of the ledger
    anywhere.applied(change("brokers/1009", ledger=OURS))
    fence, before = anywhere.begin_term(), anywhere.server.last_zxid()
    anywhere.writer.apply(Term(fence), [rate("5"), lists("t1", "0:1001")], TIMEOUT)
    (transaction,) = anywhere.written(before)
    kafka, own = anywhere.cluster.kafka, anywhere.cluster.own
    assert [
        (o.kind, o.path.rstrip("0123456789") if "config_change_" in o.path else o.path) for o in transaction.operations
    ] == [
        ("check", own.term),
        ("create", kafka.config(BROKER)),
        ("create", kafka.change_notification),
        ("create", own.ledger_entry(BROKER)),
        ("create", kafka.config(T1)),
        ("create", kafka.change_notification),
        ("create", own.ledger_entry(T1)),
    ]
    check, config, notification, ledger, *_ = transaction.operations
    assert check.version == fence
    assert config.data == format_config({LEADER_RATE: "5"})
    assert json.loads(notification.data or b"") == {"version": 2, "entity_path": "brokers/1001"}
    assert ledger.data == format_ledger_entry(OURS)


def test_config_is_written_at_the_version_that_was_read(subject: Subject) -> None:
    subject.set_config_as_user(BROKER, "log.cleaner.threads", "2")
    subject.set_config_as_user(BROKER, "log.cleaner.threads", "3")
    before = subject.server.last_zxid()
    subject.applied(rate("5"))
    wanted = format_config({"log.cleaner.threads": "3", LEADER_RATE: "5"})
    operations = [o for t in subject.written(before) for o in t.operations]
    assert Operation("set", subject.cluster.kafka.config(BROKER), wanted, version=2) in operations


def test_current_values_are_not_written_again(subject: Subject) -> None:
    subject.applied(rate("5"), lists("t1", "0:1001"))
    before = subject.server.last_zxid()
    again = subject.applied(rate("5"), lists("t1", "0:1001"))
    assert statuses(again) == [OutcomeStatus.UNCHANGED] * 2
    assert subject.written(before) == []


def test_change_of_a_deleted_topic_only_updates_the_ledger(subject: Subject) -> None:
    subject.applied(lists("t1", "0:1001"))
    subject.cluster.client.delete(subject.cluster.kafka.config(T1))
    before = subject.server.last_zxid()
    (outcome,) = subject.applied(
        change("topics/t1", (LEADER_REPLICAS, "0:1001", None), (FOLLOWER_REPLICAS, "0:2", None))
    )
    assert outcome.status is OutcomeStatus.APPLIED
    assert [o.path for t in subject.written(before) for o in t.operations if o.kind != "check"] == [
        subject.cluster.own.ledger_entry(T1)
    ]
    assert subject.ledger(T1) is None
    assert subject.cluster.read(subject.cluster.kafka.config(T1)) is None


# Refusals.


def test_no_part_of_a_refused_change_is_written(subject: Subject) -> None:
    subject.set_config_as_user(BROKER, LEADER_RATE, "7")
    before = subject.server.last_zxid()
    (outcome,) = subject.applied(rate("5", expected="6"))
    assert outcome.status is OutcomeStatus.REFUSED
    assert subject.cluster.kafka.config(BROKER) in outcome.reason
    assert "'7'" in outcome.reason and "'6'" in outcome.reason
    assert [o.path for t in subject.written(before) for o in t.operations if o.path.endswith("1001")] == []


@pytest.mark.parametrize(
    "garbage",
    [b'{"version":1,"config":null}', b'{"version":1,"config":{"leader.re', b"", b"[]", b'{"config":{"x":1}}', b"\xff"],
)
def test_an_unreadable_config_stays_byte_identical_and_others_are_written(subject: Subject, garbage: bytes) -> None:
    """D31: the original panics on such a node, or overwrites content that an operator could still repair."""
    path = subject.cluster.kafka.config(BROKER)
    subject.cluster.write(path, garbage)
    outcomes = subject.applied(rate("5"), lists("t1", "0:1001"))
    assert statuses(outcomes) == [OutcomeStatus.REFUSED, OutcomeStatus.APPLIED]
    assert path in outcomes[0].reason and "repair" in outcomes[0].reason
    assert subject.cluster.read(path) == garbage
    assert subject.ledger(BROKER) is None
    assert subject.current(T1) == {LEADER_REPLICAS: "0:1001"}


class Interrupted:
    """A kazoo client that calls a hook before its next transaction."""

    def __init__(self, client: KazooClient, hook: Callable[[], None]) -> None:
        self._client, self._hooks = client, [hook]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def transaction(self) -> Any:
        while self._hooks:
            self._hooks.pop()()
        return self._client.transaction()


def interrupted(subject: Subject, hook: Callable[[], None]) -> ZooKeeperConfigWriter:
    """Return a writer that calls a hook between read and write. The parent nodes of the ledger exist."""
    subject.applied(lists("t0", "0:1"), change("brokers/1009", ledger=OURS))
    client = Interrupted(subject.client, hook)
    return ZooKeeperConfigWriter(client, subject.cluster.kafka, subject.cluster.own)


def test_one_failing_resource_does_not_fail_the_others_of_its_batch(subject: Subject) -> None:
    """A transaction is all or nothing, so a resource changed by another client must be found and left out."""
    cluster = subject.cluster
    cluster.set_config(BROKER, {LEADER_RATE: "1"})

    def change_two_resources() -> None:
        cluster.set_config(BROKER, {LEADER_RATE: "2"})
        cluster.set_config(ConfigResource.topic("t9"), {})

    writer = interrupted(subject, change_two_resources)
    changes = [change(f"topics/t{n}", (LEADER_REPLICAS, None, f"{n}:1001")) for n in range(1, 6)]
    changes.insert(2, change("brokers/1001", (LEADER_RATE, "1", "5"), ledger=OURS))
    changes.insert(4, change("topics/t9", (LEADER_REPLICAS, None, "9:1")))
    outcomes = writer.apply(Term(subject.begin_term()), changes, TIMEOUT)
    assert [o.resource for o in outcomes] == [c.resource for c in changes]
    refused = {o.resource.path: o.reason for o in outcomes if o.status is OutcomeStatus.REFUSED}
    assert refused.keys() == {"brokers/1001", "topics/t9"}
    assert all("another client" in reason for reason in refused.values())
    for number in range(1, 6):
        assert subject.current(ConfigResource.topic(f"t{number}")) == {LEADER_REPLICAS: f"{number}:1001"}
    assert subject.current(BROKER) == {LEADER_RATE: "2"}
    assert subject.ledger(BROKER) is None
    assert subject.ledger(ConfigResource.topic("t9")) is None


def test_one_failing_resource_does_not_fail_concurrent_batches(subject: Subject) -> None:
    value = ",".join(f"{p}:1001" for p in range(3_300))[:32_000].rpartition(",")[0]
    changes = [change(f"topics/wide{n}", (LEADER_REPLICAS, None, value)) for n in range(60)]
    writer = interrupted(subject, lambda: subject.cluster.set_config(ConfigResource.topic("wide1"), {}))
    outcomes = writer.apply(Term(subject.begin_term()), changes, TIMEOUT)
    refused = {o.resource.name for o in outcomes if o.status is OutcomeStatus.REFUSED}
    assert refused == {"wide1"}
    for number in {*range(60)} - {1}:
        assert subject.current(ConfigResource.topic(f"wide{number}")) == {LEADER_REPLICAS: value}
    for number in range(60):
        subject.cluster.client.delete(subject.cluster.kafka.config(ConfigResource.topic(f"wide{number}")))


# The fence.


def test_an_earlier_term_creates_no_nodes(anywhere: Subject) -> None:
    """Not even the parent nodes of the ledger. A former leader would create them again after an uninstallation."""
    earlier = anywhere.begin_term()
    anywhere.begin_term()
    before = anywhere.server.last_zxid()
    with pytest.raises(NotLeader, match=f"term {earlier} is over"):
        anywhere.writer.apply(Term(earlier), [rate("5"), lists("t1", "0:1001")], TIMEOUT)
    assert anywhere.written(before) == []
    assert anywhere.cluster.nodes() == {"/term"}


def test_without_a_term_nothing_is_written(subject: Subject) -> None:
    before = subject.server.last_zxid()
    with pytest.raises(NotLeader):
        subject.writer.apply(Term(0), [rate("5")], TIMEOUT)
    assert subject.written(before) == []


def test_an_unreadable_term_node_is_not_a_success(subject: Subject) -> None:
    """The check fails, and all later operations fail without a reason of their own. This was taken for success."""
    term = subject.begin_term()
    subject.writer.apply(Term(term), [rate("5")], TIMEOUT)
    subject.cluster.client.set_acls(subject.cluster.own.term, [make_acl("world", "anyone", write=True)])
    (outcome,) = subject.writer.apply(Term(term), [rate("6", expected="5")], TIMEOUT)
    assert outcome.status is OutcomeStatus.REFUSED
    assert subject.current(BROKER) == {LEADER_RATE: "5"}


def test_term_that_ends_between_read_and_write_writes_nothing(subject: Subject) -> None:
    writer = interrupted(subject, lambda: discard(subject.begin_term()))
    fence, before = subject.begin_term(), subject.server.last_zxid()
    with pytest.raises(NotLeader):
        writer.apply(Term(fence), [rate("5"), lists("t1", "0:1001")], TIMEOUT)
    assert subject.written(before) == []
    assert subject.current(BROKER) == {}


def discard(_: object) -> None:
    """Discard a return value."""


# Size.


def test_changes_beyond_zookeepers_request_limit_do_not_suspend_the_session(subject: Subject) -> None:
    """A request of 1.05 MB drops the connection, and suspends the session with its ephemeral nodes."""
    states: list[str] = []
    subject.client.add_listener(states.append)
    value = ",".join(f"{p}:1001" for p in range(3_300))[:32_000].rpartition(",")[0]
    ledger = LedgerEntry({LEADER_REPLICAS: LedgerKey(None, value, frozenset(value.split(",")))}, 1)
    changes = [change(f"topics/big{n}", (LEADER_REPLICAS, None, value), ledger=ledger) for n in range(200)]
    fence, before = subject.begin_term(), subject.server.last_zxid()
    outcomes = subject.writer.apply(Term(fence), changes, timedelta(seconds=60))
    assert set(statuses(outcomes)) == {OutcomeStatus.APPLIED}
    written = subject.written(before)
    sizes = [sum(len(o.data or b"") for o in t.operations) for t in written]
    assert sum(sizes) > 12_000_000
    assert max(sizes) < MAX_BATCH_BYTES
    assert all(t.operations[0] == Operation("check", subject.cluster.own.term, version=fence) for t in written)
    assert subject.current(ConfigResource.topic("big199")) == {LEADER_REPLICAS: value}
    assert states == []
    for number in range(200):
        subject.cluster.client.delete(subject.cluster.kafka.config(ConfigResource.topic(f"big{number}")))


# Lost responses.


def frozen_while_committing(subject: Subject, seconds: float) -> tuple[ZooKeeperConfigWriter, threading.Timer]:
    thaw = threading.Timer(seconds, subject.server.thaw)

    def freeze_for_a_while() -> None:
        freeze(subject.server)
        thaw.start()

    return interrupted(subject, freeze_for_a_while), thaw


@pytest.mark.parametrize("change_", [rate("5"), change("brokers/1001", ledger=OURS)], ids=["a-rate", "only-the-ledger"])
def test_outcome_is_correct_after_an_outage_during_the_write(own_zookeeper: ZooKeeperServer, change_: Change) -> None:
    """The connection is lost during the transaction, so the writer must read back whether it was applied."""
    with contextlib.ExitStack() as stack:
        subject = Subject(own_zookeeper, stack, session_seconds=1.2)
        fence = subject.begin_term()
        fence += 1  # the preparation of the writer begins another term
        writer, thaw = frozen_while_committing(subject, 1.9)
        states: list[str] = []
        subject.client.add_listener(states.append)
        try:
            (outcome,) = writer.apply(Term(fence), [change_], TIMEOUT)
        finally:
            own_zookeeper.thaw()
            thaw.join()
        assert KazooState.SUSPENDED in states
        # Nothing may be applied later.
        eventually(lambda: subject.cluster.client.connected)
        time.sleep(0.3)
        is_written = subject.ledger(BROKER) == OURS
        assert outcome.status is (OutcomeStatus.APPLIED if is_written else OutcomeStatus.REFUSED)
        if not is_written:
            assert outcome.reason == "the connection was lost before it was written; the next cycle retries it"
            assert subject.current(BROKER) == {}


def test_a_short_outage_only_delays_the_write(own_zookeeper: ZooKeeperServer) -> None:
    with contextlib.ExitStack() as stack:
        subject = Subject(own_zookeeper, stack)
        fence = subject.begin_term() + 1
        writer, thaw = frozen_while_committing(subject, 0.5)
        (outcome,) = writer.apply(Term(fence), [rate("5")], TIMEOUT)
        thaw.join()
        assert outcome.status is OutcomeStatus.APPLIED
        assert subject.current(BROKER) == {LEADER_RATE: "5"}


def test_outcome_is_unknown_if_it_cannot_be_read_back_in_time(own_zookeeper: ZooKeeperServer) -> None:
    """The writer must not claim that nothing was written: the server applies the request when it continues."""
    with contextlib.ExitStack() as stack:
        subject = Subject(own_zookeeper, stack)
        fence = subject.begin_term() + 1
        writer, thaw = frozen_while_committing(subject, 1.0)
        (outcome,) = writer.apply(Term(fence), [rate("5")], timedelta(seconds=0.5))
        thaw.join()
        assert outcome.status is OutcomeStatus.REFUSED
        assert "unknown whether it was written" in outcome.reason
        eventually(lambda: subject.current(BROKER) == {LEADER_RATE: "5"})


def test_apply_fails_during_an_outage_before_any_write(own_zookeeper: ZooKeeperServer) -> None:
    with contextlib.ExitStack() as stack:
        subject = Subject(own_zookeeper, stack)
        fence = subject.begin_term()
        freeze(own_zookeeper)
        try:
            with pytest.raises(Unavailable):
                subject.writer.apply(Term(fence), [rate("5")], timedelta(seconds=0.3))
        finally:
            own_zookeeper.thaw()
        assert subject.current(BROKER) == {}


def test_change_beyond_zookeepers_limit_is_refused_alone(subject: Subject) -> None:
    """The server drops the connection at 1 MB, so that one topic with huge configs ended the writes of all others."""
    states: list[str] = []
    subject.client.add_listener(states.append)
    subject.set_config_as_user(T1, "huge", "x" * 1_010_000)
    rate_change = change("brokers/1001", (LEADER_RATE, None, "5"), ledger=OURS)
    refused, applied = subject.applied(change("topics/t1", (LEADER_REPLICAS, None, "0:1001")), rate_change)
    assert (refused.status, applied.status) == (OutcomeStatus.REFUSED, OutcomeStatus.APPLIED)
    assert "more than the 1000000 that fit into one transaction" in refused.reason
    assert states == []
