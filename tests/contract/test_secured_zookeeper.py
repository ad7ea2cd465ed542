"""The state and Kafka's configs in a ZooKeeper with TLS, whose nodes only autothrottle's login may read and write."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest

from autothrottle.adapters.state_store.operator_stores import NodeAuditedMap, NodePauses
from autothrottle.adapters.zookeeper_state.audit import AuditTrail
from autothrottle.core.operators.audit import StoredAuditRecord
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.contract import test_zookeeper_audited_maps as audited_maps
from tests.contract import test_zookeeper_client_quotas as client_quotas
from tests.contract import test_zookeeper_config_writer as config_writer
from tests.contract import test_zookeeper_election as election
from tests.contract import test_zookeeper_membership as membership
from tests.contract import test_zookeeper_overrides as overrides
from tests.contract import test_zookeeper_pauses as pauses
from tests.contract import test_zookeeper_reassigner as reassigner
from tests.contract.audited_map_contract import AuditedMapContract, MapCase
from tests.contract.client_quotas_contract import ClientQuotasContract
from tests.contract.config_writer_contract import ConfigWriterContract
from tests.contract.election_contract import ElectionContract
from tests.contract.membership_contract import MembershipContract
from tests.contract.override_store_contract import OverrideStoreContract
from tests.contract.pause_store_contract import PauseStoreContract
from tests.contract.reassigner_contract import ReassignerContract
from tests.system.zookeeper_tree import session


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


class TestOverrides(OverrideStoreContract):
    @pytest.fixture
    def subject(self, secured_zookeeper: ZooKeeperServer, stack: contextlib.ExitStack) -> overrides.Subject:
        return overrides.Subject(secured_zookeeper, stack)


class TestPauses(PauseStoreContract):
    @pytest.fixture
    def store(self, secured_zookeeper: ZooKeeperServer, stack: contextlib.ExitStack) -> NodePauses:
        return pauses.Subject(secured_zookeeper, stack).stores[0]


@pytest.mark.repeat
class TestAuditedMaps(AuditedMapContract):
    @pytest.fixture
    def subject(
        self, secured_zookeeper: ZooKeeperServer, case: MapCase, stack: contextlib.ExitStack
    ) -> audited_maps.Subject:
        return audited_maps.Subject(secured_zookeeper, case, stack)

    @pytest.fixture
    def store(self, subject: audited_maps.Subject) -> NodeAuditedMap[Any, Any]:
        return subject.stores[0]

    @pytest.fixture
    def fence(self, subject: audited_maps.Subject) -> int:
        return subject.tree.begin_term()

    @pytest.fixture
    def newest(self, subject: audited_maps.Subject) -> Callable[[], Sequence[StoredAuditRecord]]:
        trail = AuditTrail(subject.tree.client, subject.tree.own, timedelta(seconds=60))
        return lambda: trail.newest(10).records


@pytest.mark.repeat
class TestElection(ElectionContract):
    @pytest.fixture
    def subject(self, secured_zookeeper: ZooKeeperServer, stack: contextlib.ExitStack) -> election.Subject:
        return election.Subject(secured_zookeeper, stack)


@pytest.mark.repeat
class TestMembership(MembershipContract):
    @pytest.fixture
    def subject(self, secured_zookeeper: ZooKeeperServer, stack: contextlib.ExitStack) -> membership.Subject:
        return membership.Subject(secured_zookeeper, stack)


class TestConfigWriter(ConfigWriterContract):
    @pytest.fixture
    def subject(self, secured_zookeeper: ZooKeeperServer, stack: contextlib.ExitStack) -> config_writer.Subject:
        return config_writer.Subject(secured_zookeeper, stack)


@pytest.mark.repeat
class TestClientQuotas(ClientQuotasContract):
    @pytest.fixture
    def subject(self, secured_zookeeper: ZooKeeperServer, stack: contextlib.ExitStack) -> client_quotas.Subject:
        client, other = (stack.enter_context(session(secured_zookeeper)) for _ in range(2))
        return client_quotas.Subject(client, other)


class TestReassigner(ReassignerContract):
    @pytest.fixture
    def subject(self, secured_zookeeper: ZooKeeperServer, stack: contextlib.ExitStack) -> reassigner.Subject:
        return reassigner.Subject(secured_zookeeper, stack)
