"""Our own state: the stores of a process, in ZooKeeper or in Kafka (`kafka_state`).

The type to know is `StateStores`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

from autothrottle.adapters.credentials import CredentialFiles
from autothrottle.adapters.state_store.nodes import NodeStore
from autothrottle.adapters.state_store.operator_stores import MapCodec, NodeAuditedMap, NodeOverrides, NodePauses
from autothrottle.adapters.state_store.state_copy import StateCopy, parse_copy
from autothrottle.adapters.zookeeper.client import SecuredClient
from autothrottle.adapters.zookeeper.map_codecs import CATCH_UPS, REQUEST_QUOTAS, TEMPORARY_QUOTAS, YIELD_RULES
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.permissions import ZooKeeperPermissions, require_access
from autothrottle.adapters.zookeeper.security import OtherClients, ZooKeeperSecurity
from autothrottle.adapters.zookeeper.session import connect, connect_in_background, disconnect, drop
from autothrottle.adapters.zookeeper_state.access import AccessChange, members_without_login, secure_tree
from autothrottle.adapters.zookeeper_state.copy import export_state, import_state
from autothrottle.adapters.zookeeper_state.election import ZooKeeperElection
from autothrottle.adapters.zookeeper_state.ledger import ZooKeeperLedger, ZooKeeperLedgerReader
from autothrottle.adapters.zookeeper_state.membership import ZooKeeperMembership, remove_own_tree
from autothrottle.adapters.zookeeper_state.nodes import ZooKeeperNodeStore
from autothrottle.core.errors import Invalid, Unavailable
from autothrottle.core.exported_metrics import MetricSample
from autothrottle.ports.kafka import PermissionSource
from autothrottle.ports.state_store import (
    CatchUpStore,
    Election,
    Ledger,
    LedgerReader,
    Membership,
    OverrideStore,
    PauseStore,
    RequestQuotaStore,
    TemporaryQuotaStore,
    YieldRuleStore,
)
from autothrottle.runtime.configuration import OPTIONS, Configuration
from autothrottle.runtime.shutdown import SESSIONS, Shutdown
from autothrottle_client.files import read_text, write_text

K = TypeVar("K")
V = TypeVar("V")

_CONNECT_TIMEOUT = timedelta(seconds=15)

_ACCESS_TIMEOUT = timedelta(seconds=10)

log = logging.getLogger(__name__)


class StateStores(ABC):
    """The stores of a process, each built when it is first used; its stack closes them."""

    def __init__(self, configuration: Configuration, stack: Shutdown) -> None:
        self._stack = stack
        self.session_timeout = configuration.session_timeout
        self.paths = OwnPaths(configuration.zk_config_prefix)

    place: str
    """Where the state is, and how to delete it if that needs another program; for messages."""

    @property
    def credentials(self) -> Sequence[CredentialFiles]:
        """The files with which this process logs in, which are read again when they change."""
        return ()

    @property
    def problems(self) -> Sequence[str]:
        """What is wrong with reading and writing the state now; findings of each cycle."""
        return ()

    def samples(self) -> Iterable[MetricSample]:
        """Return the metrics of the store."""
        return ()

    @abstractmethod
    def election(self) -> Election:
        """Return a candidate."""

    @cached_property
    @abstractmethod
    def membership(self) -> Membership: ...

    @abstractmethod
    def _nodes(self, in_background: bool = False) -> NodeStore:
        """Return where the settings of operators are; `in_background`: without waiting for it."""

    @cached_property
    def overrides(self) -> OverrideStore:
        return self._stack.closing(NodeOverrides(self._nodes()))

    @cached_property
    def pauses(self) -> PauseStore:
        return self._stack.closing(NodePauses(self._nodes()))

    @cached_property
    def catch_ups(self) -> CatchUpStore:
        return self._audited_map(CATCH_UPS)

    @cached_property
    def temporary_quotas(self) -> TemporaryQuotaStore:
        return self._audited_map(TEMPORARY_QUOTAS)

    @cached_property
    def yield_rules(self) -> YieldRuleStore:
        return self._audited_map(YIELD_RULES)

    @cached_property
    def request_quotas(self) -> RequestQuotaStore:
        """Without waiting: a gateway that cannot reach the state store serves without request quotas."""
        return self._audited_map(REQUEST_QUOTAS, in_background=True)

    def _audited_map(self, codec: MapCodec[K, V], in_background: bool = False) -> NodeAuditedMap[K, V]:
        return self._stack.closing(NodeAuditedMap(self._nodes(in_background), codec))

    @cached_property
    @abstractmethod
    def ledger(self) -> Ledger: ...

    @abstractmethod
    def ledger_reader(self) -> LedgerReader: ...

    @abstractmethod
    def permissions(self) -> PermissionSource:
        """Return what this process may do with the store."""

    @abstractmethod
    def export_copy(self) -> StateCopy:
        """Return a copy of the state.

        Raises:
            Unavailable: the store does not answer.
        """

    @abstractmethod
    def import_copy(self, copy: StateCopy) -> None:
        """Load a copy into an empty store.

        Raises:
            Conflict: the store is not empty.
            Unavailable: the store does not answer.
        """

    @abstractmethod
    def set_access(self, undo: bool) -> AccessChange:
        """Let other clients do with the store what the configuration says, or everything with `undo`.

        Raises:
            Invalid: this store has no such access.
            Conflict: a running process would lose its access, or this process has none.
            Unavailable: the store does not answer.
        """

    @abstractmethod
    def remove(self) -> None:
        """Remove the ledger, the election and the members. What operators set stays, and the term.

        Raises:
            Conflict: the ledger still has entries, or a planner is still a candidate.
        """


class ZooKeeperState(StateStores):
    """The stores in ZooKeeper, and the sessions that use them."""

    def __init__(self, configuration: Configuration, stack: Shutdown) -> None:
        super().__init__(configuration, stack)
        self._servers = ",".join(configuration.zk_addr)
        self._is_default = self._servers == OPTIONS["zk-addr"].default
        self._security = zookeeper_security(configuration)
        self._is_admitted = False
        self.place = f"ZooKeeper, {self.paths.root}"

    @property
    def credentials(self) -> Sequence[CredentialFiles]:
        return self._security.credentials

    def new_session(self) -> SecuredClient:
        """Wait for ZooKeeper, and return a session with it.

        Raises:
            Unavailable: ZooKeeper does not answer, or does not let this process write our nodes.
        """
        timeout, stop = _CONNECT_TIMEOUT, self._stack.requested
        try:
            session = self._ended(connect(self._servers, self.session_timeout, timeout, stop, self._security))
        except Unavailable as error:
            if not self._is_default:
                raise
            raise Unavailable(f"{error}. On Kafka alone: --bootstrap-servers, and no option of ZooKeeper") from error
        if not self._is_admitted:
            require_access(session, self.paths, _ACCESS_TIMEOUT)
            self._is_admitted = True
            self._warn_of_open_members(session)
        return session

    def _warn_of_open_members(self, session: SecuredClient) -> None:
        """Name the processes that cannot use the nodes that this process creates."""
        if self._security.others is OtherClients.OPEN:
            return
        if strangers := members_without_login(session, self.paths, _ACCESS_TIMEOUT):
            log.warning(
                "These processes do not have the login of this one, and are locked out of the nodes that it creates: "
                "%s. Fix: restart them with the same login",
                "; ".join(strangers),
            )

    def background_session(self) -> SecuredClient:
        """Return a session without waiting: metrics and gateway also work on hosts that cannot reach ZooKeeper."""
        return self._ended(connect_in_background(self._servers, self.session_timeout, self._security))

    def _ended(self, session: SecuredClient) -> SecuredClient:
        """Let the shutdown end a session, or drop it if ZooKeeper does not answer."""
        self._stack.callback(disconnect, session)
        self._stack.cancel_after(SESSIONS, partial(drop, session))
        return session

    @cached_property
    def session(self) -> SecuredClient:
        """The session of all stores. A session for each of them costs three threads, and time at start and end."""
        return self.new_session()

    @cached_property
    def applier_session(self) -> SecuredClient:
        """The session of all writes to the ledger and to Kafka."""
        return self.new_session()

    def election(self) -> ZooKeeperElection:
        return ZooKeeperElection(self.new_session(), self.paths, self.session_timeout)

    @cached_property
    def membership(self) -> ZooKeeperMembership:
        return ZooKeeperMembership(self.background_session(), self.paths, self.session_timeout)

    def _nodes(self, in_background: bool = False) -> ZooKeeperNodeStore:
        return ZooKeeperNodeStore(self.background_session() if in_background else self.session, self.paths)

    @cached_property
    def ledger(self) -> ZooKeeperLedger:
        return ZooKeeperLedger(self.applier_session, self.paths)

    def ledger_reader(self) -> LedgerReader:
        return self._stack.closing(ZooKeeperLedgerReader(self.new_session(), self.paths))

    def permissions(self) -> PermissionSource:
        return ZooKeeperPermissions(self.new_session(), self.paths)

    def export_copy(self) -> StateCopy:
        return export_state(self.session, self.paths)

    def import_copy(self, copy: StateCopy) -> None:
        import_state(self.session, self.paths, copy)

    def set_access(self, undo: bool) -> AccessChange:
        return secure_tree(self.session, self.paths, undo)

    def remove(self) -> None:
        remove_own_tree(self.session, self.paths, self.session_timeout * 2)


def zookeeper_security(configuration: Configuration) -> ZooKeeperSecurity:
    """Return the TLS, the login and the ACLs of sessions with ZooKeeper.

    Raises:
        Invalid: a file cannot be read, or has other content.
    """
    own = OwnPaths(configuration.zk_config_prefix)
    return ZooKeeperSecurity(configuration.zookeeper_files, configuration.zk_acl, own)


def copy_state(is_import: bool, file: Path, state: StateStores) -> StateCopy:
    """Import the copy in a file, or export one into it; return it.

    Raises:
        Invalid: the file cannot be read or written, or is not a copy.
        Conflict: the store is not empty.
        Unavailable: the store does not answer.
    """
    try:
        if is_import:
            copy = parse_copy(read_text(file))
            state.import_copy(copy)
            return copy
        copy = state.export_copy()
        write_text(file, copy.encoded())
        return copy
    except (OSError, ValueError) as error:
        raise Invalid(f"{file} cannot be {'read' if is_import else 'written'}: {error}") from None
