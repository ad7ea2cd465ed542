"""Throttles written into a real ZooKeeper: whole, fenced, in small batches, and with a truthful outcome."""

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

from autothrottle.adapters.zookeeper.codec import format_config, format_ledger_entry
from autothrottle.adapters.zookeeper.config_writer import MAX_BATCH_BYTES, ZooKeeperConfigWriter
from autothrottle.core.changes import Change, Outcome, OutcomeStatus
from autothrottle.core.configs import FOLLOWER_REPLICAS, LEADER_RATE, LEADER_REPLICAS, ConfigResource
from autothrottle.core.errors import NotLeader, Unavailable
from autothrottle.core.ledger import LedgerEntry, LedgerKey
from autothrottle.lab.zookeeper import Operation, Transaction, ZooKeeperServer
from tests.adapters.contract_config_writer import ConfigWriterContract
from tests.builders import change, eventually, ledger_entry
from tests.system.zookeeper_tree import Tree, freeze, session

TIMEOUT = timedelta(seconds=20)
BROKER = ConfigResource.broker(1001)
T1 = ConfigResource.topic("t1")
OURS = ledger_entry(leader_replication_throttled_rate="5")


class Subject:
    """A writer under test; others write through another session, as in life."""

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
        self.standing = self.cluster.standing
        self.ledger = self.cluster.ledger
        self.notifications = self.cluster.notifications
        self.set_config_as_user = self.cluster.set_config_as_user

    def applied(self, *changes: Change, timeout: timedelta = TIMEOUT) -> list[Outcome]:
        return list(self.writer.apply(self.begin_term(), changes, timeout))

    def written(self, after_zxid: int) -> list[Transaction]:
        """What the writer's own session has changed since."""
        mine = self.client.client_id[0]
        return [t for t in self.server.transactions(after_zxid) if t.session_id == mine and t.operations]


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
    return change(f"topics/{topic}", (LEADER_REPLICAS, None, value), ledger=ledger_entry(x="1"))


def statuses(outcomes: Sequence[Outcome]) -> list[OutcomeStatus]:
    return [outcome.status for outcome in outcomes]


# One transaction.


def test_config_notification_and_ledger_are_one_transaction_that_checks_the_term(anywhere: Subject) -> None:
    anywhere.applied(lists("t0", "0:1"))  # makes the ledger's parents
    anywhere.applied(change("brokers/1009", ledger=OURS))
    fence, before = anywhere.begin_term(), anywhere.server.last_zxid()
    anywhere.writer.apply(fence, [rate("5"), lists("t1", "0:1001")], TIMEOUT)
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


def test_a_config_is_written_at_the_version_that_was_read(subject: Subject) -> None:
    subject.set_config_as_user(BROKER, "log.cleaner.threads", "2")
    subject.set_config_as_user(BROKER, "log.cleaner.threads", "3")
    before = subject.server.last_zxid()
    subject.applied(rate("5"))
    wanted = format_config({"log.cleaner.threads": "3", LEADER_RATE: "5"})
    operations = [o for t in subject.written(before) for o in t.operations]
    assert Operation("set", subject.cluster.kafka.config(BROKER), wanted, version=2) in operations


def test_what_stands_already_is_not_written_again(subject: Subject) -> None:
    subject.applied(rate("5"), lists("t1", "0:1001"))
    before = subject.server.last_zxid()
    again = subject.applied(rate("5"), lists("t1", "0:1001"))
    assert statuses(again) == [OutcomeStatus.UNCHANGED] * 2
    assert subject.written(before) == []


def test_keys_of_a_topic_that_is_gone_leave_only_the_ledger(subject: Subject) -> None:
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


def test_what_is_refused_is_not_written_in_any_part(subject: Subject) -> None:
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
def test_d31_a_config_that_cannot_be_read_is_left_byte_for_byte_and_the_others_go_on(
    subject: Subject, garbage: bytes
) -> None:
    """The original panics on such a node, or writes over what somebody may still repair."""
    path = subject.cluster.kafka.config(BROKER)
    subject.cluster.write(path, garbage)
    outcomes = subject.applied(rate("5"), lists("t1", "0:1001"))
    assert statuses(outcomes) == [OutcomeStatus.REFUSED, OutcomeStatus.APPLIED]
    assert path in outcomes[0].reason and "repair" in outcomes[0].reason
    assert subject.cluster.read(path) == garbage
    assert subject.ledger(BROKER) is None
    assert subject.standing(T1) == {LEADER_REPLICAS: "0:1001"}


class Interrupted:
    """kazoo's client, but before its next transaction something happens."""

    def __init__(self, client: KazooClient, happens: Callable[[], None]) -> None:
        self._client, self._happens = client, [happens]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def transaction(self) -> Any:
        while self._happens:
            self._happens.pop()()
        return self._client.transaction()


def interrupted(subject: Subject, happens: Callable[[], None]) -> ZooKeeperConfigWriter:
    """A writer for which something happens between its reading and its writing; the ledger's parents stand."""
    subject.applied(lists("t0", "0:1"), change("brokers/1009", ledger=OURS))
    client = Interrupted(subject.client, happens)
    return ZooKeeperConfigWriter(client, subject.cluster.kafka, subject.cluster.own)


def test_one_resource_that_fails_in_a_batch_does_not_take_the_others_along(subject: Subject) -> None:
    """A transaction is all or nothing, so the one that somebody wrote meanwhile has to be found and left out."""
    cluster = subject.cluster
    cluster.set_config(BROKER, {LEADER_RATE: "1"})

    def meddle() -> None:
        cluster.set_config(BROKER, {LEADER_RATE: "2"})
        cluster.set_config(ConfigResource.topic("t9"), {})

    writer = interrupted(subject, meddle)
    changes = [change(f"topics/t{n}", (LEADER_REPLICAS, None, f"{n}:1001"), ledger=OURS) for n in range(1, 6)]
    changes.insert(2, change("brokers/1001", (LEADER_RATE, "1", "5"), ledger=OURS))
    changes.insert(4, change("topics/t9", (LEADER_REPLICAS, None, "9:1"), ledger=OURS))
    outcomes = writer.apply(subject.begin_term(), changes, TIMEOUT)
    assert [o.resource for o in outcomes] == [c.resource for c in changes]
    refused = {o.resource.path: o.reason for o in outcomes if o.status is OutcomeStatus.REFUSED}
    assert refused.keys() == {"brokers/1001", "topics/t9"}
    assert all("somebody else" in reason for reason in refused.values())
    for number in range(1, 6):
        assert subject.standing(ConfigResource.topic(f"t{number}")) == {LEADER_REPLICAS: f"{number}:1001"}
    assert subject.standing(BROKER) == {LEADER_RATE: "2"}
    assert subject.ledger(BROKER) is None
    assert subject.ledger(ConfigResource.topic("t9")) is None


def test_one_resource_that_fails_does_not_take_along_the_batches_that_are_on_their_way(subject: Subject) -> None:
    value = ",".join(f"{p}:1001" for p in range(3_300))[:32_000].rpartition(",")[0]
    changes = [change(f"topics/wide{n}", (LEADER_REPLICAS, None, value), ledger=OURS) for n in range(60)]
    writer = interrupted(subject, lambda: subject.cluster.set_config(ConfigResource.topic("wide1"), {}))
    outcomes = writer.apply(subject.begin_term(), changes, TIMEOUT)
    refused = {o.resource.name for o in outcomes if o.status is OutcomeStatus.REFUSED}
    assert refused == {"wide1"}
    for number in {*range(60)} - {1}:
        assert subject.standing(ConfigResource.topic(f"wide{number}")) == {LEADER_REPLICAS: value}
    for number in range(60):
        subject.cluster.client.delete(subject.cluster.kafka.config(ConfigResource.topic(f"wide{number}")))


# The fence.


def test_a_term_that_is_over_writes_nothing_at_all(anywhere: Subject) -> None:
    """Not even the parents of the ledger: an old leader would plant them again in a tree that was uninstalled."""
    earlier = anywhere.begin_term()
    anywhere.begin_term()
    before = anywhere.server.last_zxid()
    with pytest.raises(NotLeader, match=f"term {earlier} is over"):
        anywhere.writer.apply(earlier, [rate("5"), lists("t1", "0:1001")], TIMEOUT)
    assert anywhere.written(before) == []
    assert anywhere.cluster.nodes() == {"/term"}


def test_without_any_term_nothing_is_written(subject: Subject) -> None:
    before = subject.server.last_zxid()
    with pytest.raises(NotLeader):
        subject.writer.apply(0, [rate("5")], TIMEOUT)
    assert subject.written(before) == []


def test_a_term_that_may_not_be_read_is_no_success(subject: Subject) -> None:
    """The check fails, everything behind it with it, and nothing says of itself why: it was taken for written."""
    term = subject.begin_term()
    subject.writer.apply(term, [rate("5")], TIMEOUT)
    subject.cluster.client.set_acls(subject.cluster.own.term, [make_acl("world", "anyone", write=True)])
    (outcome,) = subject.writer.apply(term, [rate("6", expected="5")], TIMEOUT)
    assert outcome.status is OutcomeStatus.REFUSED
    assert subject.standing(BROKER) == {LEADER_RATE: "5"}


def test_a_term_that_ends_between_reading_and_writing_writes_nothing(subject: Subject) -> None:
    writer = interrupted(subject, lambda: void(subject.begin_term()))
    fence, before = subject.begin_term(), subject.server.last_zxid()
    with pytest.raises(NotLeader):
        writer.apply(fence, [rate("5"), lists("t1", "0:1001")], TIMEOUT)
    assert subject.written(before) == []
    assert subject.standing(BROKER) == {}


def void(_: object) -> None:
    """For what returns something that nobody wants."""


# Size.


def test_a_batch_beyond_zookeepers_limit_never_suspends_the_session(subject: Subject) -> None:
    """One request of 1.05 MB drops the connection, and with it everything that the session holds."""
    states: list[str] = []
    subject.client.add_listener(states.append)
    value = ",".join(f"{p}:1001" for p in range(3_300))[:32_000].rpartition(",")[0]
    ledger = LedgerEntry({LEADER_REPLICAS: LedgerKey(None, value, frozenset(value.split(",")))}, 1)
    changes = [change(f"topics/big{n}", (LEADER_REPLICAS, None, value), ledger=ledger) for n in range(200)]
    fence, before = subject.begin_term(), subject.server.last_zxid()
    outcomes = subject.writer.apply(fence, changes, timedelta(seconds=60))
    assert set(statuses(outcomes)) == {OutcomeStatus.APPLIED}
    written = subject.written(before)
    sizes = [sum(len(o.data or b"") for o in t.operations) for t in written]
    assert sum(sizes) > 12_000_000
    assert max(sizes) < MAX_BATCH_BYTES
    assert all(t.operations[0] == Operation("check", subject.cluster.own.term, version=fence) for t in written)
    assert subject.standing(ConfigResource.topic("big199")) == {LEADER_REPLICAS: value}
    assert states == []
    for number in range(200):
        subject.cluster.client.delete(subject.cluster.kafka.config(ConfigResource.topic(f"big{number}")))


# Lost answers.


def frozen_while_committing(subject: Subject, seconds: float) -> tuple[ZooKeeperConfigWriter, threading.Timer]:
    thaw = threading.Timer(seconds, subject.server.thaw)

    def fall_silent() -> None:
        freeze(subject.server)
        thaw.start()

    return interrupted(subject, fall_silent), thaw


@pytest.mark.parametrize("change_", [rate("5"), change("brokers/1001", ledger=OURS)], ids=["a-rate", "only-the-ledger"])
def test_the_outcome_is_true_when_the_server_was_silent_while_it_was_written(
    own_zookeeper: ZooKeeperServer, change_: Change
) -> None:
    """The connection is lost with the transaction on its way: whether it was carried out has to be read back."""
    with contextlib.ExitStack() as stack:
        subject = Subject(own_zookeeper, stack, session_seconds=1.2)
        fence = subject.begin_term()
        fence += 1  # the writer's preparation begins another
        writer, thaw = frozen_while_committing(subject, 1.9)
        states: list[str] = []
        subject.client.add_listener(states.append)
        try:
            (outcome,) = writer.apply(fence, [change_], TIMEOUT)
        finally:
            own_zookeeper.thaw()
            thaw.join()
        assert KazooState.SUSPENDED in states
        # No more of it may come to pass later.
        eventually(lambda: subject.cluster.client.connected)
        time.sleep(0.3)
        stands = subject.ledger(BROKER) == OURS
        assert outcome.status is (OutcomeStatus.APPLIED if stands else OutcomeStatus.REFUSED)
        if not stands:
            assert outcome.reason == "the connection was lost before it was written; it is tried again next cycle"
            assert subject.standing(BROKER) == {}


def test_a_short_silence_costs_nothing_but_time(own_zookeeper: ZooKeeperServer) -> None:
    with contextlib.ExitStack() as stack:
        subject = Subject(own_zookeeper, stack)
        fence = subject.begin_term() + 1
        writer, thaw = frozen_while_committing(subject, 0.5)
        (outcome,) = writer.apply(fence, [rate("5")], TIMEOUT)
        thaw.join()
        assert outcome.status is OutcomeStatus.APPLIED
        assert subject.standing(BROKER) == {LEADER_RATE: "5"}


def test_an_outcome_that_cannot_be_read_back_in_time_is_said_to_be_unknown(own_zookeeper: ZooKeeperServer) -> None:
    """It is not said that nothing was written: what is on its way is carried out when the server goes on."""
    with contextlib.ExitStack() as stack:
        subject = Subject(own_zookeeper, stack)
        fence = subject.begin_term() + 1
        writer, thaw = frozen_while_committing(subject, 1.0)
        (outcome,) = writer.apply(fence, [rate("5")], timedelta(seconds=0.5))
        thaw.join()
        assert outcome.status is OutcomeStatus.REFUSED
        assert "unknown whether it was written" in outcome.reason
        eventually(lambda: subject.standing(BROKER) == {LEADER_RATE: "5"})


def test_nothing_is_tried_while_the_server_is_silent(own_zookeeper: ZooKeeperServer) -> None:
    with contextlib.ExitStack() as stack:
        subject = Subject(own_zookeeper, stack)
        fence = subject.begin_term()
        freeze(own_zookeeper)
        try:
            with pytest.raises(Unavailable):
                subject.writer.apply(fence, [rate("5")], timedelta(seconds=0.3))
        finally:
            own_zookeeper.thaw()
        assert subject.standing(BROKER) == {}
