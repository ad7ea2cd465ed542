"""The paths of Kafka's znodes and of autothrottle's own."""

from __future__ import annotations

from urllib.parse import quote

from autothrottle.core.cluster.configs import ConfigResource, ResourceType


def _normalised(prefix: str) -> str:
    return "".join(f"/{part}" for part in prefix.split("/") if part)


class KafkaPaths:
    """Kafka's nodes under its chroot.

    The client connects without a chroot, and these paths include the prefix. This way, a transaction on Kafka's nodes
    can also check our term, which is outside the prefix.
    """

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        root = _normalised(prefix)
        self.reassign_partitions = f"{root}/admin/reassign_partitions"
        """The list of reassignments that were started through ZooKeeper."""
        self.broker_ids = f"{root}/brokers/ids"
        """Parent of one ephemeral node per registered broker."""
        self.topics = f"{root}/brokers/topics"
        """Parent of one node per topic."""
        self.topics_to_delete = f"{root}/admin/delete_topics"
        """Parent of one node per topic that waits for its deletion."""
        self.configs = f"{root}/config"
        """Parent of all dynamic configs."""
        self.default_broker_config = f"{self.configs}/brokers/<default>"
        """The dynamic config that applies to brokers without values of their own."""
        self.change_notification = f"{self.configs}/changes/config_change_"
        """Prefix of the sequential nodes that notify brokers of a changed config."""

    @property
    def absent(self) -> str:
        """One sentence for a prefix without Kafka."""
        return (
            f"{self.broker_ids} does not exist in ZooKeeper, so Kafka is not there, or has not started yet. "
            "Fix: check zk-prefix, Kafka's chroot, and zk-addr; Kafka without ZooKeeper needs kafka-backend admin"
        )

    def topic(self, name: str) -> str:
        """A topic's assignment and reassignment."""
        return f"{self.topics}/{name}"

    def state(self, topic: str, partition: int) -> str:
        """A partition's leader and ISR."""
        return f"{self.topics}/{topic}/partitions/{partition}/state"

    def config(self, resource: ConfigResource) -> str:
        """One resource's dynamic config."""
        return self.entity_config(resource.path)

    def entity_config(self, entity_path: str) -> str:
        """The dynamic config of an entity path."""
        return f"{self.configs}/{entity_path}"

    def entity_parents(self, entity_path: str) -> list[str]:
        """The parents of an entity's config that may be missing, outermost first.

        >>> KafkaPaths().entity_parents("users/a/clients/b")
        ['/config/users', '/config/users/a', '/config/users/a/clients']
        """
        parts = entity_path.split("/")
        return [self.entity_config("/".join(parts[:end])) for end in range(1, len(parts))]


class OwnPaths:
    """Our own nodes; not nested under Kafka's prefix."""

    def __init__(self, prefix: str = "autothrottle") -> None:
        self.prefix = prefix
        self.root = _normalised(prefix)
        """Parent of all nodes of autothrottle."""
        self.term = f"{self.root}/term"
        """The newest term: its data names the holder, its version numbers it. Persistent, with the origin as child."""
        self.election = f"{self.root}/election"
        """Parent of the candidates' ephemeral nodes."""
        self.members = f"{self.root}/members"
        """Parent of one ephemeral node per autothrottle process."""
        self.pause = f"{self.root}/pause"
        """Exists while autothrottle is paused, with author, time and reason. Persistent: it outlives every leader."""
        self.ledger = f"{self.root}/ledger"
        """Parent of the ledger."""
        self.quota_ledger = f"{self.ledger}/{ResourceType.QUOTA.value}"
        """Parent of the ledger's entries of client quotas, whose names are encoded entity paths."""
        self.overrides = f"{self.root}/override_rate"
        """The cluster override; its children are the broker overrides. Shared with the original program."""
        self.audit = f"{self.root}/audit"
        """Parent of the audit records. Its version counts changes of the overrides and of the pause."""
        self.audit_record = f"{self.audit}/change-"
        """Prefix of the sequential nodes with one audit record each."""

    def audited_map(self, name: str) -> str:
        """One map that operators change, such as the catch-ups. Persistent: it outlives every leader."""
        return f"{self.root}/{name}"

    def ledger_entry(self, resource: ConfigResource) -> str:
        """The record of what we wrote to one resource."""
        if resource.type is ResourceType.QUOTA:  # one node: its path has several parts
            return f"{self.quota_ledger}/{quote(resource.path, safe='')}"
        return f"{self.ledger}/{resource.path}"

    def override(self, broker_id: int | None) -> str:
        """Return the node of a broker's override; without a broker id, that of the cluster override."""
        return self.overrides if broker_id is None else f"{self.overrides}/{broker_id}"
