"""Contract of every `ConfigWriter`. Inherit from it and define the fixture `subject`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Protocol

import pytest

from autothrottle.core.cluster.configs import (
    FOLLOWER_RATE,
    LEADER_RATE,
    LEADER_REPLICAS,
    ConfigResource,
    LedgerEntry,
    LedgerKey,
)
from autothrottle.core.errors import NotLeader
from autothrottle.core.quotas.keys import DEFAULT, ClientQuotaEntity
from autothrottle.core.records import Outcome, OutcomeStatus
from autothrottle.core.throttles.changes import Change
from autothrottle.ports.kafka import ConfigWriter, Term
from tests import builders

TIMEOUT = timedelta(seconds=60)
BROKER = ConfigResource.broker(1001)
TOPIC = ConfigResource.topic("t1")
OURS = builders.ledger_entry(term=1, cycle=3, leader_replication_throttled_rate="5")


class ConfigWriterSubject(Protocol):
    """A writer under test, and its cluster as other clients see it."""

    @property
    def writer(self) -> ConfigWriter: ...

    def begin_term(self) -> int:
        """Begin a new term and return its fence."""
        ...

    def current(self, resource: ConfigResource) -> Mapping[str, str]:
        """All configs of a resource."""
        ...

    def ledger(self, resource: ConfigResource) -> LedgerEntry | None:
        """The ledger entry of a resource."""
        ...

    def notifications(self) -> Sequence[str]:
        """The entity paths of all notifications to brokers, in order."""
        ...

    def set_config_as_user(self, resource: ConfigResource, key: str, value: str | None) -> None:
        """Set a config as another party would."""
        ...


def rate(value: str | None, expected: str | None = None, ledger: LedgerEntry | None = OURS) -> Change:
    return builders.change("brokers/1001", (LEADER_RATE, expected, value), ledger=ledger)


class ConfigWriterContract:
    def applied(self, subject: ConfigWriterSubject, *changes: Change) -> Sequence[Outcome]:
        return subject.writer.apply(Term(subject.begin_term()), changes, TIMEOUT)

    def test_rate_ledger_entry_and_notification_are_written_together(self, subject: ConfigWriterSubject) -> None:
        assert list(self.applied(subject, rate("5"))) == [Outcome(BROKER, OutcomeStatus.APPLIED)]
        assert subject.current(BROKER) == {LEADER_RATE: "5"}
        assert subject.ledger(BROKER) == OURS
        assert list(subject.notifications()) == ["brokers/1001"]

    def test_current_value_is_unchanged_and_sends_no_notification(self, subject: ConfigWriterSubject) -> None:
        self.applied(subject, rate("5"))
        assert list(self.applied(subject, rate("5"))) == [Outcome(BROKER, OutcomeStatus.UNCHANGED)]
        assert list(subject.notifications()) == ["brokers/1001"]

    def test_foreign_keys_stay(self, subject: ConfigWriterSubject) -> None:
        subject.set_config_as_user(BROKER, "log.cleaner.threads", "2")
        self.applied(subject, rate("5"))
        self.applied(subject, rate(None, "5", None))
        assert subject.current(BROKER) == {"log.cleaner.threads": "2"}

    def test_ledger_entry_is_removed_with_the_last_key(self, subject: ConfigWriterSubject) -> None:
        self.applied(subject, rate("5"))
        outcomes = self.applied(subject, rate(None, "5", None))
        assert [o.status for o in outcomes] == [OutcomeStatus.APPLIED]
        assert LEADER_RATE not in subject.current(BROKER)
        assert subject.ledger(BROKER) is None
        assert list(subject.notifications()) == ["brokers/1001"] * 2

    def test_edit_of_a_value_changed_by_another_party_is_refused(self, subject: ConfigWriterSubject) -> None:
        subject.set_config_as_user(BROKER, LEADER_RATE, "7")
        (outcome,) = self.applied(subject, rate("5"))
        assert (outcome.resource, outcome.status) == (BROKER, OutcomeStatus.REFUSED)
        assert "'7'" in outcome.reason
        assert subject.current(BROKER) == {LEADER_RATE: "7"}
        assert subject.ledger(BROKER) is None
        assert list(subject.notifications()) == []

    def test_one_refused_edit_refuses_the_whole_resource(self, subject: ConfigWriterSubject) -> None:
        subject.set_config_as_user(BROKER, FOLLOWER_RATE, "7")
        both = builders.change("brokers/1001", (LEADER_RATE, None, "5"), (FOLLOWER_RATE, None, "5"))
        (outcome,) = self.applied(subject, both)
        assert outcome.status is OutcomeStatus.REFUSED
        assert subject.current(BROKER) == {FOLLOWER_RATE: "7"}

    def test_one_refused_resource_does_not_stop_the_others(self, subject: ConfigWriterSubject) -> None:
        subject.set_config_as_user(BROKER, LEADER_RATE, "7")
        lists = builders.change("topics/t1", (LEADER_REPLICAS, None, "0:1001"))
        outcomes = self.applied(subject, rate("5"), lists)
        assert [o.resource for o in outcomes] == [BROKER, TOPIC]
        assert [o.status for o in outcomes] == [OutcomeStatus.REFUSED, OutcomeStatus.APPLIED]
        assert subject.current(TOPIC) == {LEADER_REPLICAS: "0:1001"}

    def test_foreign_value_equal_to_the_target_is_not_a_conflict(self, subject: ConfigWriterSubject) -> None:
        subject.set_config_as_user(BROKER, LEADER_RATE, "5")
        (outcome,) = self.applied(subject, rate("5"))
        assert outcome.status is OutcomeStatus.APPLIED  # The ledger entry was written.
        assert subject.ledger(BROKER) == OURS
        assert list(subject.notifications()) == []

    def test_change_of_only_the_ledger_sends_no_notification(self, subject: ConfigWriterSubject) -> None:
        (outcome,) = self.applied(subject, builders.change("brokers/1001", ledger=OURS))
        assert outcome.status is OutcomeStatus.APPLIED
        assert subject.ledger(BROKER) == OURS
        assert list(subject.notifications()) == []

    def test_only_the_value_in_the_ledger_is_restored(self, subject: ConfigWriterSubject) -> None:
        """A caller with the role service could set any value: as a restore, it needed no record in the ledger."""
        subject.set_config_as_user(BROKER, LEADER_RATE, "7")
        subject.set_config_as_user(TOPIC, LEADER_REPLICAS, "0:1001")
        both, before = "0:1001,1:1001", {LEADER_RATE: "7", LEADER_REPLICAS: "0:1001"}
        lists = builders.ledger_entry(before="0:1001", owned=["1:1001"], leader_replication_throttled_replicas=both)
        self.applied(
            subject,
            rate("5", "7", builders.ledger_entry(before="7", leader_replication_throttled_rate="5")),
            builders.change("topics/t1", (LEADER_REPLICAS, "0:1001", both), ledger=lists),
        )
        changes = [
            rate("9", "5", None),
            builders.change("topics/t1", (LEADER_REPLICAS, both, "0:1001,2:1001"), ledger=None),
        ]
        outcomes = self.applied(subject, *changes)
        assert [o.status for o in outcomes] == [OutcomeStatus.REFUSED] * 2
        assert "is restored to '9', but the value before ours in the ledger is '7'" in outcomes[0].reason
        assert (subject.current(BROKER), subject.current(TOPIC)) == ({LEADER_RATE: "5"}, {LEADER_REPLICAS: both})
        restored = [
            rate("7", "5", None),
            builders.change("topics/t1", (LEADER_REPLICAS, both, "0:1001"), ledger=None),
        ]
        assert [o.status for o in self.applied(subject, *restored)] == [OutcomeStatus.APPLIED] * 2
        assert {**subject.current(BROKER), **subject.current(TOPIC)} == before

    def test_a_rate_that_was_never_ours_is_not_replaced_by_a_restore(self, subject: ConfigWriterSubject) -> None:
        subject.set_config_as_user(BROKER, LEADER_RATE, "7")
        (outcome,) = self.applied(subject, rate("9", "7", None))
        assert outcome.status is OutcomeStatus.REFUSED
        assert subject.current(BROKER) == {LEADER_RATE: "7"}

    def test_an_earlier_term_writes_nothing(self, subject: ConfigWriterSubject) -> None:
        earlier = subject.begin_term()
        later = subject.begin_term()
        assert later > earlier
        with pytest.raises(NotLeader):
            subject.writer.apply(Term(earlier), [rate("5")], TIMEOUT)
        assert subject.current(BROKER) == {}
        assert subject.ledger(BROKER) is None

    def test_empty_batch_returns_no_outcomes(self, subject: ConfigWriterSubject) -> None:
        assert list(self.applied(subject)) == []

    def test_outcomes_have_the_order_of_the_changes(self, subject: ConfigWriterSubject) -> None:
        value = ",".join(f"{p}:1001" for p in range(4_000))
        changes = [builders.change(f"topics/t{n}", (LEADER_REPLICAS, None, value)) for n in reversed(range(40))]
        outcomes = self.applied(subject, *changes)
        assert [o.resource for o in outcomes] == [c.resource for c in changes]
        assert {o.status for o in outcomes} == {OutcomeStatus.APPLIED}
        assert sorted(subject.notifications()) == sorted(f"topics/t{n}" for n in range(40))

    def test_a_client_quota_is_set_and_restored_with_its_ledger_entry(self, subject: ConfigWriterSubject) -> None:
        pair, key = ClientQuotaEntity("a b", DEFAULT).resource, "producer_byte_rate"
        subject.set_config_as_user(pair, key, "70")
        entry = LedgerEntry({key: LedgerKey("70", "5")}, 1, 3)
        assert list(self.applied(subject, builders.change(pair.path, (key, "70", "5"), ledger=entry))) == [
            Outcome(pair, OutcomeStatus.APPLIED)
        ]
        assert (subject.current(pair), subject.ledger(pair)) == ({key: "5"}, entry)
        (outcome,) = self.applied(subject, builders.change(pair.path, (key, "70", "9"), ledger=entry))
        assert outcome.status is OutcomeStatus.REFUSED and "'5'" in outcome.reason
        (outcome,) = self.applied(subject, builders.change(pair.path, (key, "5", "71"), ledger=None))
        assert outcome.status is OutcomeStatus.REFUSED and "restored to '71'" in outcome.reason
        self.applied(subject, builders.change(pair.path, (key, "5", "70"), ledger=None))
        assert (subject.current(pair), subject.ledger(pair)) == ({key: "70"}, None)
        subject.set_config_as_user(pair, key, None)

    def test_a_client_quota_of_an_entity_without_any_is_set_and_removed(self, subject: ConfigWriterSubject) -> None:
        entities = (ClientQuotaEntity("new", "app"), ClientQuotaEntity(client_id=DEFAULT), ClientQuotaEntity(DEFAULT))
        set_ = [builders.change(e.path, ("request_percentage", None, "12.5")) for e in entities]
        assert {o.status for o in self.applied(subject, *set_)} == {OutcomeStatus.APPLIED}
        assert [dict(subject.current(e.resource)) for e in entities] == [{"request_percentage": "12.5"}] * 3
        removed = [builders.change(e.path, ("request_percentage", "12.5", None)) for e in entities]
        assert {o.status for o in self.applied(subject, *removed)} == {OutcomeStatus.APPLIED}
        assert [(dict(subject.current(e.resource)), subject.ledger(e.resource)) for e in entities] == [({}, None)] * 3
