"""Contract of every `ClientQuotaStore`. Inherit from it and define the fixture `subject`."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol

import pytest

from autothrottle.core.errors import Conflict
from autothrottle.core.quotas.keys import (
    CLIENT_KEYS,
    ClientQuotaEntity,
    QuotaKey,
    QuotaValues,
    keys_of,
    levels,
    levels_of_ip,
    quota_etag,
)
from autothrottle.ports.kafka import ClientQuotaChange, ClientQuotaStore

TIMEOUT = timedelta(seconds=30)
PRODUCER, CONSUMER = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE
REQUEST, CONNECTIONS = QuotaKey.REQUEST_PERCENTAGE, QuotaKey.CONNECTION_CREATION_RATE

ALICE = ClientQuotaEntity("alice")
LEVELS = (*levels("alice", "app"), *levels_of_ip("10.0.0.7"))
ODD_NAMES = ("a b", "100%", "a/b", "/", "%20", "grün ☃", "<default>", "*", "~", 'say "hi"', "CN=a,OU=b+c")


class ClientQuotasSubject(Protocol):
    """A store without quotas."""

    @property
    def store(self) -> ClientQuotaStore: ...


class ClientQuotasContract:
    def test_without_quotas_nothing_is_listed(self, subject: ClientQuotasSubject) -> None:
        assert self.all(subject) == {}

    def test_quotas_are_set_and_removed_on_every_level(self, subject: ClientQuotasSubject) -> None:
        wanted: dict[ClientQuotaEntity, QuotaValues] = {
            entity: {CONNECTIONS if entity.ip else PRODUCER: number} for number, entity in enumerate(LEVELS, start=1)
        }
        for entity, values in wanted.items():
            assert subject.store.alter_quota(ClientQuotaChange(entity, values), TIMEOUT) == {}
        assert self.all(subject) == wanted
        assert subject.store.fetch_quotas(TIMEOUT, LEVELS[2:4]).quotas == {e: wanted[e] for e in LEVELS[2:4]}
        for entity, values in wanted.items():
            assert subject.store.alter_quota(ClientQuotaChange(entity, dict.fromkeys(values)), TIMEOUT) == values
        assert self.all(subject) == {}

    def test_names_may_have_any_characters(self, subject: ClientQuotasSubject) -> None:
        wanted: dict[ClientQuotaEntity, QuotaValues] = {
            ClientQuotaEntity(name, name): {CONSUMER: 5} for name in ODD_NAMES
        }
        for entity, values in wanted.items():
            subject.store.alter_quota(ClientQuotaChange(entity, values), TIMEOUT)
        assert self.all(subject) == wanted
        for entity, values in wanted.items():
            subject.store.alter_quota(ClientQuotaChange(entity, dict.fromkeys(values)), TIMEOUT)
        assert self.all(subject) == {}

    def test_every_key_of_a_client_keeps_its_value(self, subject: ClientQuotasSubject) -> None:
        values: QuotaValues = {key: 2**53 if key.is_integer else 12.5 for key in CLIENT_KEYS}
        subject.store.alter_quota(ClientQuotaChange(ALICE, values), TIMEOUT)
        assert self.all(subject) == {ALICE: values}
        subject.store.alter_quota(ClientQuotaChange(ALICE, dict.fromkeys(keys_of(ALICE))), TIMEOUT)

    def test_an_unlimited_quota_is_read_kept_and_removed(self, subject: ClientQuotasSubject) -> None:
        """Kafka's "unlimited" is 2^63 as a double. It fits no int64, and one such quota failed the list of all."""
        subject.store.alter_quota(ClientQuotaChange(ALICE, {PRODUCER: 2**63 - 1}), TIMEOUT)
        assert self.all(subject) == {ALICE: {PRODUCER: 2**63 - 1}}
        assert subject.store.alter_quota(ClientQuotaChange(ALICE, {CONSUMER: 7}), TIMEOUT) == {PRODUCER: 2**63 - 1}
        values = {PRODUCER: 2**63 - 1, CONSUMER: 7}
        assert (
            subject.store.alter_quota(ClientQuotaChange(ALICE, {PRODUCER: 5}, etag=quota_etag(values)), TIMEOUT)
            == values
        )
        subject.store.alter_quota(ClientQuotaChange(ALICE, {PRODUCER: 2**63 - 1}), TIMEOUT)
        subject.store.alter_quota(ClientQuotaChange(ALICE, {PRODUCER: None, CONSUMER: None}), TIMEOUT)
        assert self.all(subject) == {}

    def test_edits_keep_the_other_keys_and_return_the_values_before(self, subject: ClientQuotasSubject) -> None:
        subject.store.alter_quota(ClientQuotaChange(ALICE, {PRODUCER: 5, REQUEST: 50.0}), TIMEOUT)
        assert subject.store.alter_quota(ClientQuotaChange(ALICE, {PRODUCER: 6, CONSUMER: 7}), TIMEOUT) == {
            PRODUCER: 5,
            REQUEST: 50.0,
        }
        assert self.all(subject) == {ALICE: {PRODUCER: 6, CONSUMER: 7, REQUEST: 50.0}}
        subject.store.alter_quota(ClientQuotaChange(ALICE, dict.fromkeys(keys_of(ALICE))), TIMEOUT)
        assert self.all(subject) == {}

    def test_only_the_values_of_the_etag_are_changed(self, subject: ClientQuotasSubject) -> None:
        subject.store.alter_quota(ClientQuotaChange(ALICE, {PRODUCER: 5}, etag=quota_etag({})), TIMEOUT)
        with pytest.raises(Conflict, match="now producer_byte_rate=5; read them again"):
            subject.store.alter_quota(ClientQuotaChange(ALICE, {PRODUCER: 6}, etag=quota_etag({PRODUCER: 4})), TIMEOUT)
        assert self.all(subject) == {ALICE: {PRODUCER: 5}}
        subject.store.alter_quota(ClientQuotaChange(ALICE, {PRODUCER: None}, etag=quota_etag({PRODUCER: 5})), TIMEOUT)
        assert self.all(subject) == {}

    def test_a_dry_run_changes_nothing(self, subject: ClientQuotasSubject) -> None:
        assert subject.store.alter_quota(ClientQuotaChange(ALICE, {PRODUCER: 5}, validate_only=True), TIMEOUT) == {}
        assert self.all(subject) == {}
        with pytest.raises(Conflict):
            subject.store.alter_quota(
                ClientQuotaChange(ALICE, {PRODUCER: 5}, etag=quota_etag({PRODUCER: 1}), validate_only=True), TIMEOUT
            )

    def all(self, subject: ClientQuotasSubject) -> dict[ClientQuotaEntity, QuotaValues]:
        """Return all quotas, each of which can be parsed."""
        read = subject.store.fetch_quotas(TIMEOUT)
        assert read.problems == ()
        return dict(read.quotas)
