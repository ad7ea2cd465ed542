"""Our own state in ZooKeeper: sessions, and the stores that use them. The type to know is `StateStores`."""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property, partial
from typing import TypeVar

from kazoo.client import KazooClient

from autothrottle.adapters.zookeeper.map_codecs import (
    CATCH_UPS,
    REQUEST_QUOTAS,
    TEMPORARY_QUOTAS,
    YIELD_RULES,
    MapCodec,
)
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import connect, connect_in_background, disconnect, drop
from autothrottle.adapters.zookeeper_state.election import ZooKeeperElection
from autothrottle.adapters.zookeeper_state.membership import ZooKeeperMembership
from autothrottle.adapters.zookeeper_state.operator_stores import (
    ZooKeeperAuditedMap,
    ZooKeeperOverrides,
    ZooKeeperPauses,
)
from autothrottle.ports.state_store import CatchUpStore, RequestQuotaStore, TemporaryQuotaStore, YieldRuleStore
from autothrottle.runtime.configuration import Configuration
from autothrottle.runtime.shutdown import SESSIONS, Shutdown

K = TypeVar("K")
V = TypeVar("V")

_CONNECT_TIMEOUT = timedelta(seconds=15)


class StateStores:
    """The sessions and stores of a process, each built when it is first used; its stack closes them."""

    def __init__(self, configuration: Configuration, stack: Shutdown) -> None:
        self._stack, self._servers = stack, ",".join(configuration.zk_addr)
        self.session_timeout = configuration.session_timeout
        self.paths = OwnPaths(configuration.zk_config_prefix)

    def new_session(self) -> KazooClient:
        """Wait for ZooKeeper, and return a session with it."""
        return self._ended(connect(self._servers, self.session_timeout, _CONNECT_TIMEOUT, self._stack.requested))

    def background_session(self) -> KazooClient:
        """Return a session without waiting: metrics and gateway also work on hosts that cannot reach ZooKeeper."""
        return self._ended(connect_in_background(self._servers, self.session_timeout))

    def _ended(self, session: KazooClient) -> KazooClient:
        """Let the shutdown end a session, or drop it if ZooKeeper does not answer."""
        self._stack.callback(disconnect, session)
        self._stack.cancel_after(SESSIONS, partial(drop, session))
        return session

    @cached_property
    def session(self) -> KazooClient:
        """The session of all stores. A session for each of them costs three threads, and time at start and end."""
        return self.new_session()

    def election(self) -> ZooKeeperElection:
        return ZooKeeperElection(self.new_session(), self.paths, self.session_timeout)

    @cached_property
    def membership(self) -> ZooKeeperMembership:
        return ZooKeeperMembership(self.background_session(), self.paths, self.session_timeout)

    @cached_property
    def overrides(self) -> ZooKeeperOverrides:
        return self._stack.closing(ZooKeeperOverrides(self.session, self.paths))

    @cached_property
    def pauses(self) -> ZooKeeperPauses:
        return self._stack.closing(ZooKeeperPauses(self.session, self.paths))

    @cached_property
    def catch_ups(self) -> CatchUpStore:
        return self._audited_map(self.session, CATCH_UPS)

    @cached_property
    def temporary_quotas(self) -> TemporaryQuotaStore:
        return self._audited_map(self.session, TEMPORARY_QUOTAS)

    @cached_property
    def yield_rules(self) -> YieldRuleStore:
        return self._audited_map(self.session, YIELD_RULES)

    @cached_property
    def request_quotas(self) -> RequestQuotaStore:
        """In a session of its own: a gateway that cannot reach ZooKeeper serves without request quotas."""
        return self._audited_map(self.background_session(), REQUEST_QUOTAS)

    def _audited_map(self, session: KazooClient, codec: MapCodec[K, V]) -> ZooKeeperAuditedMap[K, V]:
        return self._stack.closing(ZooKeeperAuditedMap(session, self.paths, codec))
