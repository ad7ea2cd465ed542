"""Throttles written through the Admin API of real brokers: fenced, announced in the ledger, no foreign losses."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta

import pytest

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.client_quotas import AdminClientQuotas
from autothrottle.adapters.kafka_admin.config_writer import AdminConfigWriter
from autothrottle.adapters.kafka_admin.values import ConfigEdit, ConfigOperation, KafkaSettings
from autothrottle.adapters.zookeeper.codec import format_ledger_entry
from autothrottle.adapters.zookeeper_state.ledger import ZooKeeperLedger
from autothrottle.core.cluster.configs import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LATE_WRITES,
    LEADER_RATE,
    LEADER_REPLICAS,
    MAX_VALUE_BYTES,
    ConfigResource,
    LedgerEntry,
    LedgerKey,
    ResourceType,
)
from autothrottle.core.errors import AutothrottleError, NotLeader, Unavailable
from autothrottle.core.quotas.keys import QuotaKey, entity_of_path
from autothrottle.core.records import Outcome, OutcomeStatus
from autothrottle.core.throttles.changes import Change, changes
from autothrottle.core.throttles.plan import Plan
from autothrottle.ports.kafka import ClientQuotaChange, Term
from autothrottle_lab.servers.kafka import KafkaCluster
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from autothrottle_lab.servers.kafka_zookeeper import ZooKeeperModeCluster
from autothrottle_lab.servers.processes import scratch_directory
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests import builders
from tests.builders import RECORDED, change, eventually, ledger_entry
from tests.contract.config_writer_contract import ConfigWriterContract, rate
from tests.system.zookeeper_tree import Tree, session

TIMEOUT = timedelta(seconds=120)
PATIENCE = timedelta(seconds=60)
SESSION_SECONDS = 90.0
"""Long, since a busy machine may be slow and the session timeout limits each write."""
OTHERS = ledger_entry(follower_replication_throttled_rate="5")
THROTTLE = change("brokers/1002", (FOLLOWER_RATE, None, "5"), ledger=OTHERS)
RELEASE = change("brokers/1002", (FOLLOWER_RATE, "5", None))
BROKER, OTHER = ConfigResource.broker(1001), ConfigResource.broker(1002)
TOPICS = tuple(f"t{number}" for number in range(8))
PASSWORD = "listener.name.plaintext.ssl.truststore.password"
_ENCRYPTION = re.compile("(initializationVector|salt|encryptedPassword):[^,]*")
T1 = ConfigResource.topic("t1")


class RecordingAdmin(KafkaAdmin):
    """An Admin API client that records all writes and calls hooks before or after them."""

    def __init__(self, settings: KafkaSettings) -> None:
        super().__init__(settings)
        self.writes: list[str] = []
        self.operations: list[ConfigEdit] = []
        self.before_topics: list[Callable[[], object]] = []
        self.after_broker: list[Callable[[], object]] = []

    def alter_broker_configs(
        self,
        broker_id: int,
        edits: Sequence[ConfigEdit],
        *,
        until: float | None = None,
    ) -> None:
        super().alter_broker_configs(broker_id, edits, until=until)
        self.writes.append(f"brokers/{broker_id}")
        self.operations += edits
        while self.after_broker:
            self.after_broker.pop()()

    def alter_topic_configs(
        self,
        edits: Mapping[str, Sequence[ConfigEdit]],
        *,
        until: float | None = None,
    ) -> Mapping[str, AutothrottleError]:
        while self.before_topics:
            self.before_topics.pop()()
        self.writes += [f"topics/{topic}" for topic in edits]
        self.operations += [edit for of_topic in edits.values() for edit in of_topic]
        return super().alter_topic_configs(edits, until=until)


class Subject:
    """A writer under test. Other parties write through their own client."""

    def __init__(
        self, cluster: KafkaCluster, zookeeper: ZooKeeperServer, stack: contextlib.ExitStack, controllers: bool = True
    ) -> None:
        self.cluster = cluster
        self.tree = Tree(stack.enter_context(session(zookeeper)))
        self.client = stack.enter_context(session(zookeeper, SESSION_SECONDS))
        known = (cluster.bootstrap_controllers,) if controllers and isinstance(cluster, KraftCluster) else ()
        self.kafka = RecordingAdmin(KafkaSettings(tuple(cluster.bootstrap_servers.split(",")), known))
        stack.callback(self.kafka.close)
        self.writer = self.writer_with(PATIENCE)
        self.begin_term = self.tree.begin_term
        self.ledger = self.tree.ledger

    def writer_with(self, patience: timedelta) -> AdminConfigWriter:
        return AdminConfigWriter(
            self.kafka,
            ZooKeeperLedger(self.client, self.tree.own),
            timedelta(seconds=SESSION_SECONDS),
            patience=patience,
        )

    def applied(self, *wanted: Change) -> list[Outcome]:
        return list(self.writer.apply(Term(self.begin_term()), wanted, TIMEOUT))

    def current(self, resource: ConfigResource) -> Mapping[str, str]:
        if resource.type is ResourceType.QUOTA:
            return AdminClientQuotas(self.kafka).fetch_texts([resource], TIMEOUT)[resource]
        return self.cluster.stored_configs().get(resource.path, {})

    def notifications(self) -> Sequence[str]:
        return self.kafka.writes

    def reported(self, resource: ConfigResource) -> Mapping[str, str]:
        if resource.type is ResourceType.BROKER:
            found = self.kafka.broker_configs([resource.broker_id], None).values[resource.broker_id]
        else:
            found = self.kafka.topic_configs([resource.name], None).values[resource.name]
        return {key: value.current for key, value in found.items() if value.current is not None}

    def set_config_as_user(self, resource: ConfigResource, key: str, value: str | None) -> None:
        if resource.type is ResourceType.QUOTA:
            entity = entity_of_path(resource.path)
            assert entity is not None
            edits = {QuotaKey(key): None if value is None else float(value)}
            AdminClientQuotas(self.kafka).alter_quota(ClientQuotaChange(entity, edits), TIMEOUT)
            return
        self.set_configs_as_user(resource, {key: value})

    def set_configs_as_user(self, resource: ConfigResource, configs: Mapping[str, str | None]) -> None:
        if resource.type is ResourceType.BROKER:
            self.cluster.set_configs_as_a_user(configs, broker_id=resource.broker_id)
        else:
            self.cluster.set_configs_as_a_user(configs, topic=resource.name)

        def is_reported() -> bool:
            reported = self.reported(resource)
            return all(reported.get(key) == value for key, value in configs.items())

        eventually(is_reported, 60)

    def write_ledger(self, resource: ConfigResource, entry: LedgerEntry) -> None:
        self.tree.write(self.tree.own.ledger_entry(resource), format_ledger_entry(entry))

    def clear(self) -> None:
        """Remove all configs of brokers and topics, except the `<default>` config that Kafka 4 sets itself."""
        for path, keys in self.cluster.stored_configs().items():
            if keys and path != "brokers/<default>" and ConfigResource(path).type is not ResourceType.QUOTA:
                self.set_configs_as_user(ConfigResource(path), dict.fromkeys(keys))


@pytest.fixture(scope="module", params=[pytest.param("3.9.2", marks=pytest.mark.repeat), "4.3.1"])
def cluster(zookeeper: ZooKeeperServer, request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """Two brokers: 1001, and 1002, which a test may kill or freeze."""
    with scratch_directory() as directory, contextlib.ExitStack() as stack:
        brokers = (1001, 1002)
        if request.param == "3.9.2":
            # Kafka stores sensitive configs in ZooKeeper only if it has a secret to encrypt them.
            secret = {"password.encoder.secret": "secret"}
            chroot = f"/{uuid.uuid4().hex}"
            kafka: KafkaCluster = ZooKeeperModeCluster(
                zookeeper.connect, directory, brokers, chroot, request.param, secret
            )
        else:
            kafka = KraftCluster(directory, brokers, request.param)
        stack.enter_context(kafka)
        for topic in TOPICS:
            kafka.create_topic(topic, {0: [1001]})
        yield kafka


@pytest.fixture
def subject(cluster: KafkaCluster, zookeeper: ZooKeeperServer) -> Iterator[Subject]:
    with contextlib.ExitStack() as stack:
        found = Subject(cluster, zookeeper, stack)
        yield found
        found.clear()


@pytest.fixture
def uncontrolled(subject: Subject, zookeeper: ZooKeeperServer) -> Iterator[Subject]:
    """The same cluster without controllers; `subject` removes the configs."""
    with contextlib.ExitStack() as stack:
        yield Subject(subject.cluster, zookeeper, stack, controllers=False)


@pytest.fixture
def stopped(subject: Subject) -> Iterator[Subject]:
    """The subject of a test that may kill broker 1002. It is started again afterwards."""
    yield subject
    subject.cluster.start_broker(1002)
    eventually(lambda: 1002 in subject.kafka.brokers(), 60)


def lists(topic: str, value: str | None, expected: str | None = None, ledger: LedgerEntry | None = RECORDED) -> Change:
    return change(f"topics/{topic}", (LEADER_REPLICAS, expected, value), ledger=ledger)


def statuses(outcomes: Sequence[Outcome]) -> list[OutcomeStatus]:
    return [outcome.status for outcome in outcomes]


class TestAdminConfigWriter(ConfigWriterContract):
    @pytest.fixture
    def subject(self, cluster: KafkaCluster, zookeeper: ZooKeeperServer) -> Iterator[Subject]:
        with contextlib.ExitStack() as stack:
            found = Subject(cluster, zookeeper, stack)
            yield found
            found.clear()

    def test_outcomes_have_the_order_of_the_changes(self, subject: Subject) -> None:  # type: ignore[override]
        """The lists are shorter than in the contract, since Kafka has a lower limit."""
        value = ",".join(f"{p}:1001" for p in range(3_000))
        wanted = [lists(topic, value) for topic in reversed(TOPICS)]
        outcomes = self.applied(subject, *wanted)
        assert [o.resource for o in outcomes] == [c.resource for c in wanted]
        assert {o.status for o in outcomes} == {OutcomeStatus.APPLIED}
        assert sorted(subject.notifications()) == sorted(f"topics/{topic}" for topic in TOPICS)


# Foreign configs.


def test_sensitive_and_other_user_configs_are_byte_identical_before_and_after(subject: Subject) -> None:
    """D13: the original reads all dynamic configs and writes them back. A password then becomes `null` or is lost."""
    subject.cluster.set_configs_as_a_user(
        {
            PASSWORD: "very secret",
            "log.cleaner.threads": "2",
            "max.connections": "1000",
        },
        broker_id=1001,
    )
    subject.cluster.set_configs_as_a_user({"retention.ms": "86400000"}, topic="t1")
    before = _comparable_configs(subject.cluster)
    assert set(before["brokers/1001"]) == {PASSWORD, "log.cleaner.threads", "max.connections"}
    throttled = subject.applied(rate("5000000"), lists("t1", "0:1001"))
    assert statuses(throttled) == [OutcomeStatus.APPLIED] * 2
    assert _comparable_configs(subject.cluster)["brokers/1001"] == {**before["brokers/1001"], LEADER_RATE: "5000000"}
    subject.applied(rate(None, "5000000", None), lists("t1", None, "0:1001", None))
    assert _comparable_configs(subject.cluster) == before
    assert subject.ledger(BROKER) is None and subject.ledger(T1) is None


def _comparable_configs(cluster: KafkaCluster) -> Mapping[str, Mapping[str, str]]:
    """Return all stored configs without the parts that Kafka rewrites at every edit of a broker config.

    In ZooKeeper mode Kafka encrypts passwords again with another salt; only the length of a password is kept here.
    """
    return {
        path: {key: _ENCRYPTION.sub("", value) for key, value in keys.items()}
        for path, keys in cluster.stored_configs().items()
    }


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ("0:1001,0:1002", "0:1001,0:1002,7:7"),
        ("0:1002", "0:1002,7:7"),
        ("0:1003", "7:7,0:1003"),
    ],
    ids=["appended", "subtracted", "both"],
)
def test_concurrently_added_foreign_list_entry_stays(subject: Subject, value: str, left: str) -> None:
    current = "0:1001" if value == "0:1001,0:1002" else "0:1001,0:1002"
    subject.set_config_as_user(T1, LEADER_REPLICAS, current)

    def add_entry() -> None:
        subject.cluster.set_configs_as_a_user({LEADER_REPLICAS: f"{current},7:7"}, topic="t1")

    subject.kafka.before_topics.append(add_entry)
    assert statuses(subject.applied(lists("t1", value, current))) == [OutcomeStatus.APPLIED]
    assert set(subject.current(T1)[LEADER_REPLICAS].split(",")) == set(left.split(","))


def test_restored_list_is_byte_identical_to_the_users_text(subject: Subject) -> None:
    """The original text has a space that Kafka does not report."""
    before, reported = "7:1002,0:1001, 3:1001", "7:1002,0:1001,3:1001"
    subject.cluster.set_configs_as_a_user({LEADER_REPLICAS: before}, topic="t1")
    eventually(lambda: subject.reported(T1) == {LEADER_REPLICAS: reported}, 60)
    wanted = "0:1001,1:1001,3:1001,7:1002"
    kept = LedgerEntry({LEADER_REPLICAS: LedgerKey(reported, wanted, frozenset({"1:1001"}))}, 1)
    assert statuses(subject.applied(lists("t1", wanted, reported, kept))) == [OutcomeStatus.APPLIED]
    written = subject.reported(T1)[LEADER_REPLICAS]
    assert set(written.split(",")) == set(wanted.split(","))
    assert statuses(subject.applied(lists("t1", reported, written, None))) == [OutcomeStatus.APPLIED]
    assert subject.current(T1) == {LEADER_REPLICAS: before}


def test_ledger_stores_a_list_in_the_order_that_kafka_gives_it(subject: Subject) -> None:
    subject.set_config_as_user(T1, LEADER_REPLICAS, "7:1002")
    kept = LedgerEntry({LEADER_REPLICAS: LedgerKey("7:1002", "0:1001,7:1002", frozenset({"0:1001"}))}, 1)
    subject.applied(lists("t1", "0:1001,7:1002", "7:1002", kept))
    entry = subject.ledger(T1)
    assert entry is not None
    assert entry.keys[LEADER_REPLICAS].written == subject.current(T1)[LEADER_REPLICAS] == "7:1002,0:1001"


# Size.


def test_list_over_kafkas_limit_is_refused_before_sending_and_others_are_applied(subject: Subject) -> None:
    """Kafka would close the connection instead of refusing the list."""
    value = ",".join(f"{p}:1001" for p in range(4_000))
    assert len(value) > MAX_VALUE_BYTES
    outcomes = subject.applied(lists("t1", value), lists("t2", "0:1001"))
    assert statuses(outcomes) == [OutcomeStatus.REFUSED, OutcomeStatus.APPLIED]
    assert f"{len(value)} bytes" in outcomes[0].reason and f"{MAX_VALUE_BYTES}" in outcomes[0].reason
    assert subject.notifications() == ["topics/t2"]
    assert subject.ledger(T1) is None


# Unreachable brokers.


def test_change_of_a_dead_broker_is_refused_and_others_are_applied(stopped: Subject, uncontrolled: Subject) -> None:
    stopped.cluster.kill_broker(1002)
    outcomes = uncontrolled.applied(rate("5"), THROTTLE)
    outcomes += uncontrolled.applied(lists("t1", "0:1001"))
    assert statuses(outcomes) == [OutcomeStatus.APPLIED, OutcomeStatus.REFUSED, OutcomeStatus.APPLIED]
    assert outcomes[1].reason.startswith("broker 1002 is unreachable")
    assert uncontrolled.current(BROKER) == {LEADER_RATE: "5"}
    assert uncontrolled.ledger(OTHER) is None


def test_hanging_broker_delays_others_at_most_by_the_patience(uncontrolled: Subject) -> None:
    subject = uncontrolled
    writer, fence = subject.writer_with(timedelta(seconds=15)), subject.begin_term()
    wanted = [rate("5"), THROTTLE, lists("t1", "0:1001")]
    subject.kafka.broker_configs([1001, 1002])
    process = subject.cluster.brokers[1002]
    process.freeze()
    try:
        outcomes = writer.apply(Term(fence), wanted, TIMEOUT)
    finally:
        process.thaw()
    assert statuses(outcomes) == [OutcomeStatus.APPLIED, OutcomeStatus.REFUSED, OutcomeStatus.APPLIED]
    assert outcomes[1].reason.startswith("broker 1002 is unreachable")
    # Once the broker responds, a cycle writes the rest.
    eventually(lambda: writer.apply(Term(fence), [THROTTLE], TIMEOUT)[0].status is OutcomeStatus.APPLIED, 60)
    assert statuses(writer.apply(Term(fence), wanted, TIMEOUT)) == [OutcomeStatus.UNCHANGED] * 3
    assert subject.current(OTHER) == {FOLLOWER_RATE: "5"}


@pytest.mark.parametrize("cluster", ["4.3.1"], indirect=True)
def test_rate_of_a_broker_that_is_down_is_set_through_the_controller(stopped: Subject) -> None:
    """Only removals went through a controller. So an override of a stopped broker waited until the broker ran."""
    stopped.cluster.stop_broker(1002)
    eventually(lambda: 1002 not in stopped.kafka.brokers(), 60)
    assert statuses(stopped.applied(THROTTLE, rate("5"))) == [OutcomeStatus.APPLIED] * 2
    assert (stopped.current(OTHER), stopped.ledger(OTHER)) == ({FOLLOWER_RATE: "5"}, OTHERS)
    raised = change(
        "brokers/1002", (FOLLOWER_RATE, "5", "6"), ledger=ledger_entry(follower_replication_throttled_rate="6")
    )
    assert statuses(stopped.applied(raised)) == [OutcomeStatus.APPLIED]
    assert stopped.current(OTHER) == {FOLLOWER_RATE: "6"}
    stopped.cluster.start_broker(1002)
    eventually(lambda: stopped.reported(OTHER) == {FOLLOWER_RATE: "6"}, 60)
    assert statuses(stopped.applied(raised)) == [OutcomeStatus.UNCHANGED]


def test_rate_of_a_broker_that_is_down_is_removed_through_the_controller(stopped: Subject) -> None:
    stopped.applied(THROTTLE)
    assert stopped.current(OTHER) == {FOLLOWER_RATE: "5"}
    stopped.cluster.kill_broker(1002)
    (outcome,) = stopped.applied(RELEASE)
    if isinstance(stopped.cluster, KraftCluster):
        assert outcome.status is OutcomeStatus.APPLIED
        assert (stopped.current(OTHER), stopped.ledger(OTHER)) == ({}, None)
        return
    assert outcome.status is OutcomeStatus.REFUSED
    assert "broker 1002 is unreachable" in outcome.reason
    assert (stopped.current(OTHER), stopped.ledger(OTHER)) == ({FOLLOWER_RATE: "5"}, OTHERS)
    stopped.cluster.start_broker(1002)
    eventually(lambda: 1002 in stopped.kafka.brokers(), 60)
    assert statuses(stopped.applied(RELEASE)) == [OutcomeStatus.APPLIED]
    assert (stopped.current(OTHER), stopped.ledger(OTHER)) == ({}, None)


def test_without_controllers_the_rate_of_a_stopped_broker_keeps_its_ledger_entry(
    stopped: Subject, uncontrolled: Subject
) -> None:
    uncontrolled.applied(THROTTLE)
    stopped.cluster.kill_broker(1002)
    (outcome,) = uncontrolled.applied(RELEASE)
    assert outcome.status is OutcomeStatus.REFUSED
    assert "kafka-bootstrap-controllers" in outcome.reason
    assert uncontrolled.ledger(OTHER) == OTHERS


# The fence.


def test_term_that_ends_after_the_rates_writes_no_lists(subject: Subject) -> None:
    subject.kafka.after_broker.append(subject.begin_term)
    with pytest.raises(NotLeader, match="is over"):
        subject.applied(rate("5"), lists("t1", "0:1001"))
    assert subject.current(T1) == {}
    assert subject.notifications() == ["brokers/1001"]
    # The next term finds the intent in the ledger.
    entry = subject.ledger(BROKER)
    assert entry is not None and entry.keys[LEADER_RATE] == LedgerKey(None, None, frozenset(), "5")


def test_without_a_term_nothing_is_written(subject: Subject) -> None:
    with pytest.raises(NotLeader):
        subject.writer.apply(Term(0), [rate("5"), lists("t1", "0:1001")], TIMEOUT)
    assert subject.notifications() == []
    assert subject.tree.nodes() == set()


# Interruptions.


def test_lost_response_leaves_an_intent_that_the_next_cycle_confirms(subject: Subject) -> None:
    def lose_response() -> None:
        raise Unavailable("the answer is lost")

    subject.kafka.after_broker.append(lose_response)
    (outcome,) = subject.applied(rate("5", ledger=ledger_entry(leader_replication_throttled_rate="5")))
    assert outcome.status is OutcomeStatus.REFUSED and "the answer is lost" in outcome.reason
    entry = subject.ledger(BROKER)
    assert entry is not None and entry.keys[LEADER_RATE].intent == "5"
    eventually(lambda: subject.reported(BROKER) == {LEADER_RATE: "5"}, 60)
    snapshot = builders.snapshot(throttles={"brokers/1001": {LEADER_RATE: "5"}}, ledger={"brokers/1001": entry})
    found = changes(Plan(), snapshot, builders.NOON, term=2)
    assert found.findings == ()
    assert statuses(subject.applied(*found.changes)) == [OutcomeStatus.APPLIED]
    waiting = subject.ledger(BROKER)
    assert subject.current(BROKER) == {} and waiting is not None and waiting.keys[LEADER_RATE].is_released
    requests = len(subject.kafka.operations)
    snapshot = builders.snapshot(ledger={"brokers/1001": waiting})
    assert changes(Plan(), snapshot, builders.NOON, term=2).changes == ()
    found = changes(Plan(), snapshot, builders.NOON + LATE_WRITES, term=2)
    assert statuses(subject.applied(*found.changes)) == [OutcomeStatus.APPLIED]
    assert (subject.ledger(BROKER), len(subject.kafka.operations)) == (None, requests)


def test_removal_after_an_unknown_write_is_sent_although_no_value_is_reported(subject: Subject) -> None:
    """The broker may not yet report a value that Kafka has accepted. Without the ledger entry it would stay forever."""
    subject.write_ledger(BROKER, LedgerEntry({LEADER_RATE: LedgerKey(None, None, frozenset(), "5")}, 1))
    assert statuses(subject.applied(change("brokers/1001", (LEADER_RATE, None, None)))) == [OutcomeStatus.APPLIED]
    assert subject.kafka.operations == [ConfigEdit(LEADER_RATE, ConfigOperation.DELETE)]
    assert subject.ledger(BROKER) is None


def test_change_of_a_deleted_topic_only_updates_the_ledger(subject: Subject) -> None:
    deleted = ConfigResource.topic("gone")
    entry = LedgerEntry({LEADER_REPLICAS: LedgerKey("", "0:1001", frozenset({"0:1001"}))}, 1)
    subject.write_ledger(deleted, entry)
    (outcome,) = subject.applied(
        change("topics/gone", (LEADER_REPLICAS, "0:1001", ""), (FOLLOWER_REPLICAS, "0:2", None), ledger=None)
    )
    assert outcome.status is OutcomeStatus.APPLIED
    assert subject.ledger(deleted) is None
    assert subject.notifications() == []


def test_list_of_an_unknown_topic_is_refused(subject: Subject) -> None:
    (outcome,) = subject.applied(lists("gone", "0:1001"))
    assert outcome.status is OutcomeStatus.REFUSED
    assert "gone" in outcome.reason
    assert subject.ledger(ConfigResource.topic("gone")) is None
