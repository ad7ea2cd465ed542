"""Where things are in ZooKeeper: Kafka's tree and our own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from autothrottle.core.configs import ConfigResource


@cache  # of a few constants, asked for with each of 100,000 partitions
def _prefixed(prefix: str, path: str) -> str:
    parts = [part for part in prefix.split("/") if part]
    return "".join(f"/{part}" for part in parts) + path


@dataclass(frozen=True, slots=True)
class KafkaPaths:
    """Kafka's nodes under its chroot.

    The client connects without a chroot and the prefix is put in front here: a transaction on Kafka's nodes must be
    able to check our term, which lives outside of the prefix.
    """

    prefix: str = ""

    @property
    def reassign_partitions(self) -> str:
        """The reassignments that were started through ZooKeeper."""
        return _prefixed(self.prefix, "/admin/reassign_partitions")

    @property
    def broker_ids(self) -> str:
        """The parent of one ephemeral node for each registered broker."""
        return _prefixed(self.prefix, "/brokers/ids")

    @property
    def topics(self) -> str:
        """The parent of one node for each topic."""
        return _prefixed(self.prefix, "/brokers/topics")

    def topic(self, name: str) -> str:
        """A topic's assignment and reassignment."""
        return f"{self.topics}/{name}"

    def state(self, topic: str, partition: int) -> str:
        """A partition's leader and ISR."""
        return f"{self.topics}/{topic}/partitions/{partition}/state"

    @property
    def configs(self) -> str:
        """The parent of all dynamic configs."""
        return _prefixed(self.prefix, "/config")

    def config(self, resource: ConfigResource) -> str:
        """One resource's dynamic config."""
        return f"{self.configs}/{resource.path}"

    @property
    def default_broker_config(self) -> str:
        """The dynamic config of all brokers without values of their own."""
        return f"{self.configs}/brokers/<default>"

    @property
    def change_notification(self) -> str:
        """The prefix of the sequential nodes that tell brokers of a changed config."""
        return _prefixed(self.prefix, "/config/changes/config_change_")


@dataclass(frozen=True, slots=True)
class OwnPaths:
    """Our own nodes; not nested under Kafka's prefix."""

    prefix: str = "autothrottle"

    @property
    def root(self) -> str:
        """The parent of everything of ours."""
        return _prefixed(self.prefix, "")

    @property
    def term(self) -> str:
        """The newest term: its data names the holder, its version is the fence. Persistent."""
        return f"{self.root}/term"

    @property
    def election(self) -> str:
        """The parent of the candidates' ephemeral nodes."""
        return f"{self.root}/election"

    @property
    def members(self) -> str:
        """The parent of one ephemeral node for each process of ours."""
        return f"{self.root}/members"

    @property
    def pause(self) -> str:
        """There while it is paused, with who, when and why. Persistent: it outlives every leader."""
        return f"{self.root}/pause"

    @property
    def catch_ups(self) -> str:
        """The brokers that catch up under throttle, with who asked for it and when. Persistent, like the pause."""
        return f"{self.root}/catch_ups"

    @property
    def ledger(self) -> str:
        """The parent of the ledger."""
        return f"{self.root}/ledger"

    def ledger_entry(self, resource: ConfigResource) -> str:
        """What we wrote to one resource."""
        return f"{self.ledger}/{resource.path}"

    @property
    def overrides(self) -> str:
        """The cluster's override; its children are the brokers'. Shared with the original program."""
        return f"{self.root}/override_rate"

    def override(self, broker_id: int | None) -> str:
        """One override; None: the cluster's."""
        return self.overrides if broker_id is None else f"{self.overrides}/{broker_id}"

    @property
    def audit(self) -> str:
        """The parent of the audit records; its version counts our changes of overrides and of the pause."""
        return f"{self.root}/audit"

    @property
    def audit_record(self) -> str:
        """The prefix of the sequential nodes that say who changed which override, or the pause."""
        return f"{self.audit}/change-"
