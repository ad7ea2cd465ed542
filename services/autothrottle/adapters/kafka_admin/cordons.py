"""Cordons of brokers (KIP-1066): a cordoned broker keeps its replicas and receives no new ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.placement import CORDONED_LOG_DIRS
from autothrottle.adapters.kafka_admin.values import ConfigEdit, ConfigOperation
from autothrottle.core.errors import Conflict, Invalid, Missing

_ALL = "*"


class KafkaCordons:
    """Sets and removes cordons of whole brokers. It never touches a cordon of single log directories."""

    def __init__(self, kafka: KafkaAdmin) -> None:
        self._kafka = kafka

    def cordon(self, broker_ids: Collection[int]) -> tuple[int, ...]:
        """Cordon brokers; return those that were not cordoned before. If one fails, the others are as before.

        Raises:
            Invalid: a broker is older than Kafka 4.3.
            Missing: a broker does not answer.
            Conflict: single log directories of a broker are cordoned.
        """
        current = self._current(broker_ids)
        partly = {id: value for id, value in current.items() if value not in ("", _ALL)}
        if partly:
            id, value = next(iter(partly.items()))
            raise Conflict(f"broker {id} has {CORDONED_LOG_DIRS}={value}; remove this value first")
        changed: list[int] = []
        try:
            # A busy broker may still report a cordon that has just been removed, so it is written in any case.
            for id in sorted(current):
                if current[id] != _ALL:
                    changed.append(id)
                self._kafka.alter_broker_configs(id, [ConfigEdit(CORDONED_LOG_DIRS, ConfigOperation.SET, _ALL)])
        except Exception:
            self.uncordon(changed)
            raise
        return tuple(changed)

    def uncordon(self, broker_ids: Collection[int]) -> tuple[int, ...]:
        """Remove the cordons of whole brokers; return the brokers that had one. Idempotent.

        Raises:
            Missing: a broker does not answer.
            Conflict: single log directories of a broker are cordoned.
        """
        current = self._current(broker_ids)
        for id, value in current.items():
            if value not in ("", _ALL):
                raise Conflict(f"broker {id} has {CORDONED_LOG_DIRS}={value}, which another party set; it stays")
        for id in current:
            self._kafka.alter_broker_configs(id, [ConfigEdit(CORDONED_LOG_DIRS, ConfigOperation.DELETE)])
        return tuple(sorted(id for id, value in current.items() if value))

    def _current(self, broker_ids: Collection[int]) -> Mapping[int, str]:
        """Return broker id -> the dynamic value of its config; "": not set."""
        answers = self._kafka.broker_configs(broker_ids, (CORDONED_LOG_DIRS,))
        for id, failure in answers.failures.items():
            raise Missing(f"broker {id} does not report its configs: {failure}")
        for id, values in answers.values.items():
            if CORDONED_LOG_DIRS not in values:
                raise Invalid(
                    f"broker {id} does not know {CORDONED_LOG_DIRS}: cordons need Kafka 4.3. Fix: leave out --execute, "
                    "and submit the map with `throttlectl reassign`"
                )
        return {id: values[CORDONED_LOG_DIRS].current or "" for id, values in answers.values.items()}
