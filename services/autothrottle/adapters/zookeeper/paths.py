"""The paths of Kafka's znodes and of autothrottle's own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from autothrottle.core.cluster.configs import ConfigResource


@cache  # few arguments, but called for each of 100,000 partitions
def _prefixed(prefix: str, path: str) -> str:
    parts = [part for part in prefix.split("/") if part]
    return "".join(f"/{part}" for part in parts) + path


@dataclass(frozen=True, slots=True)
class KafkaPaths:
    """Kafka's nodes under its chroot.

    The client connects without a chroot, and these paths include the prefix. This way, a transaction on Kafka's nodes
    can also check our term, which is outside the prefix.
    """

    prefix: str = ""

    @property
    def reassign_partitions(self) -> str:
        """The list of reassignments that were started through ZooKeeper."""
        return _prefixed(self.prefix, "/admin/reassign_partitions")

    @property
    def broker_ids(self) -> str:
        """Parent of one ephemeral node per registered broker."""
        return _prefixed(self.prefix, "/brokers/ids")

    @property
    def topics(self) -> str:
        """Parent of one node per topic."""
        return _prefixed(self.prefix, "/brokers/topics")

    def topic(self, name: str) -> str:
        """A topic's assignment and reassignment."""
        return f"{self.topics}/{name}"

    def state(self, topic: str, partition: int) -> str:
        """A partition's leader and ISR."""
        return f"{self.topics}/{topic}/partitions/{partition}/state"

    @property
    def configs(self) -> str:
        """Parent of all dynamic configs."""
        return _prefixed(self.prefix, "/config")

    def config(self, resource: ConfigResource) -> str:
        """One resource's dynamic config."""
        return f"{self.configs}/{resource.path}"

    @property
    def default_broker_config(self) -> str:
        """The dynamic config that applies to brokers without values of their own."""
        return f"{self.configs}/brokers/<default>"

    @property
    def change_notification(self) -> str:
        """Prefix of the sequential nodes that notify brokers of a changed config."""
        return _prefixed(self.prefix, "/config/changes/config_change_")


@dataclass(frozen=True, slots=True)
class OwnPaths:
    """Our own nodes; not nested under Kafka's prefix."""

    prefix: str = "autothrottle"

    @property
    def root(self) -> str:
        """Parent of all nodes of autothrottle."""
        return _prefixed(self.prefix, "")

    @property
    def term(self) -> str:
        """The newest term: its data names the holder, its version is the fence. Persistent."""
        return f"{self.root}/term"

    @property
    def election(self) -> str:
        """Parent of the candidates' ephemeral nodes."""
        return f"{self.root}/election"

    @property
    def members(self) -> str:
        """Parent of one ephemeral node per autothrottle process."""
        return f"{self.root}/members"

    @property
    def pause(self) -> str:
        """Exists while autothrottle is paused, with author, time and reason. Persistent: it outlives every leader."""
        return f"{self.root}/pause"

    @property
    def catch_ups(self) -> str:
        """The brokers that catch up under a throttle, with author and time. Persistent: it outlives every leader."""
        return f"{self.root}/catch_ups"

    @property
    def ledger(self) -> str:
        """Parent of the ledger."""
        return f"{self.root}/ledger"

    def ledger_entry(self, resource: ConfigResource) -> str:
        """The record of what we wrote to one resource."""
        return f"{self.ledger}/{resource.path}"

    @property
    def overrides(self) -> str:
        """The cluster override; its children are the broker overrides. Shared with the original program."""
        return f"{self.root}/override_rate"

    def override(self, broker_id: int | None) -> str:
        """The node of one override; None: the cluster override."""
        return self.overrides if broker_id is None else f"{self.overrides}/{broker_id}"

    @property
    def audit(self) -> str:
        """Parent of the audit records. Its version counts changes of the overrides and of the pause."""
        return f"{self.root}/audit"

    @property
    def audit_record(self) -> str:
        """Prefix of the sequential nodes that record who changed an override or the pause."""
        return f"{self.audit}/change-"
