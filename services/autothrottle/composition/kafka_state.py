"""Our own state in Kafka. Importing its library takes 0.2 s of CPU time. The type to know is `KafkaState`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import cached_property, partial

from autothrottle.adapters.credentials import CredentialFiles
from autothrottle.adapters.kafka_admin.topic_log import TopicLog
from autothrottle.adapters.kafka_state.copy import export_state, import_state
from autothrottle.adapters.kafka_state.election import KafkaElection
from autothrottle.adapters.kafka_state.ledger import KafkaLedger, KafkaLedgerReader
from autothrottle.adapters.kafka_state.log import StateLog
from autothrottle.adapters.kafka_state.membership import KafkaMembership, disagreement, remove_own_nodes
from autothrottle.adapters.kafka_state.nodes import KafkaNodeStore
from autothrottle.adapters.kafka_state.unwritten import UnwrittenTopic
from autothrottle.adapters.state_store.state_copy import StateCopy, is_copied
from autothrottle.adapters.zookeeper_state.access import AccessChange
from autothrottle.composition.admin_cluster import kafka_settings
from autothrottle.composition.state import StateStores
from autothrottle.core.errors import Invalid
from autothrottle.core.exported_metrics import STATE_DIFFERENCES, STATE_LOSSES, MetricSample
from autothrottle.ports.kafka import PermissionSource
from autothrottle.ports.state_store import LedgerReader
from autothrottle.runtime.configuration import Configuration
from autothrottle.runtime.configuration_reader import InvalidConfiguration
from autothrottle.runtime.shutdown import SESSIONS, Shutdown

_CONNECT_TIMEOUT = timedelta(seconds=15)


class KafkaState(StateStores):
    """The stores in one topic. They share one reader and one writer of it."""

    def __init__(self, configuration: Configuration, stack: Shutdown, writes: bool = True) -> None:
        super().__init__(configuration, stack)
        settings = kafka_settings(configuration)
        self._login, self._topic = settings.login, TopicLog(settings, configuration.state_topic)
        self.place = (
            f"topic {configuration.state_topic}. To delete it: kafka-topics.sh --bootstrap-server "
            f"{','.join(configuration.bootstrap_servers)} --delete --topic {configuration.state_topic}"
        )
        self._is_shadow = configuration.shadow
        silence_limit = self.session_timeout.total_seconds() * 2 / 3
        topic = self._topic if writes else UnwrittenTopic(self._topic)
        is_kept = partial(is_copied, self.paths)
        self._background = StateLog(topic, configuration.state_topic, self.paths.term, silence_limit, is_kept=is_kept)
        stack.callback(self._background.close)
        stack.cancel_after(SESSIONS, self._background.close)

    @property
    def credentials(self) -> Sequence[CredentialFiles]:
        return self._login.credentials

    @property
    def problems(self) -> Sequence[str]:
        difference = disagreement(self._background, self.paths, self.session_timeout)
        return (*self._topic.problems, *([difference] if difference else []))

    def samples(self) -> Iterator[MetricSample]:
        differing = self._background.differing_nodes(self.session_timeout.total_seconds())
        yield STATE_DIFFERENCES.sample(len(differing))
        for kind, count in self._background.losses.items():
            yield STATE_LOSSES.sample(count, kind)

    @cached_property
    def _log(self) -> StateLog:
        """The log, when the whole state has been read.

        Raises:
            InvalidConfiguration: an operator must correct the topic.
            Incomplete: the topic lacks its beginning.
            Unavailable: the topic cannot be read in time.
        """
        deadline = time.monotonic() + _CONNECT_TIMEOUT.total_seconds()
        try:
            self._background.prepare(deadline, self._stack.requested.is_set)
        except Invalid as error:
            raise InvalidConfiguration([str(error)]) from error
        return self._background

    def election(self) -> KafkaElection:
        return KafkaElection(self._log, self.paths, self.session_timeout, repairs=not self._is_shadow)

    @cached_property
    def membership(self) -> KafkaMembership:
        return KafkaMembership(self._background, self.paths, self.session_timeout)

    def _nodes(self, in_background: bool = False) -> KafkaNodeStore:
        return KafkaNodeStore(self._background if in_background else self._log, self.paths)

    @cached_property
    def ledger(self) -> KafkaLedger:
        return KafkaLedger(self._log, self.paths)

    def ledger_reader(self) -> LedgerReader:
        return KafkaLedgerReader(self._log, self.paths)

    def permissions(self) -> PermissionSource:
        return self._topic

    def export_copy(self) -> StateCopy:
        return export_state(self._log, self.paths)

    def import_copy(self, copy: StateCopy) -> None:
        import_state(self._log, self.paths, copy)

    def set_access(self, undo: bool) -> AccessChange:
        raise Invalid(
            "the state is in Kafka, where the ACLs of the state topic say who may write it. Fix: kafka-acls.sh, see "
            "docs/security.md; or --state-store=zookeeper"
        )

    def remove(self) -> None:
        remove_own_nodes(self._log, self.paths, self.session_timeout)
