"""Current throttles and ledger entries, parsed from mirrored config and ledger nodes.

If a node cannot be parsed, its last known value stays.
"""

from __future__ import annotations

from collections.abc import Iterator

from autothrottle.adapters.zookeeper.codec import parse_config, parse_ledger_entry, resource_of
from autothrottle.adapters.zookeeper.mirror import ParsedNodes, ZnodeMirror
from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.core.cluster.configs import RATE_KEYS, THROTTLE_KEYS, THROTTLED_TYPES, ConfigResource, LedgerEntry
from autothrottle.core.cluster.snapshot import Problem


class ThrottleConfigs:
    """The throttles and ledger entries of brokers and topics. `absorb` updates them from a mirrored node."""

    def __init__(self, kafka: KafkaPaths, own: OwnPaths, mirror: ZnodeMirror, nodes: ParsedNodes) -> None:
        self._default, self._mirror, self._nodes = kafka.default_broker_config, mirror, nodes
        self._configs = {f"{kafka.configs}/{kind.value}/": kind for kind in THROTTLED_TYPES}
        self._entries = {f"{own.ledger}/{kind.value}/": kind for kind in THROTTLED_TYPES}
        self.parents = [root.rstrip("/") for root in (*self._configs, *self._entries)]
        """Paths of the nodes whose children are configs and ledger entries."""
        self.throttles: dict[ConfigResource, dict[str, str]] = {}
        """Resource -> its throttle configs (key -> value); absent: it has none."""
        self.default_throttles: dict[str, str] = {}
        self.ledger: dict[ConfigResource, LedgerEntry] = {}

    def absorb(self, path: str) -> None:
        """Update the value of one config or ledger entry from the mirror."""
        if path == self._default:
            return self._absorb_default()
        for root, kind in self._configs.items():
            if path.startswith(root):
                self._absorb_config(path, resource_of(kind, path.removeprefix(root)))
        for root, kind in self._entries.items():
            if path.startswith(root):
                self._absorb_entry(path, resource_of(kind, path.removeprefix(root)))

    def unreadable(self) -> Iterator[tuple[ConfigResource, Problem]]:
        """Yield the resources with an unreadable config or ledger entry, and the problem."""
        if problem := self._nodes.problems.get(self._default):
            yield ConfigResource.default_broker(), problem
        for path, problem in self._nodes.problems.items():
            for root, kind in (*self._configs.items(), *self._entries.items()):
                if path.startswith(root) and (resource := resource_of(kind, path.removeprefix(root))):
                    yield resource, problem

    def _absorb_config(self, path: str, resource: ConfigResource | None) -> None:
        config = self._nodes.value(path, parse_config) or {}
        if resource is None or path in self._nodes.problems:
            return
        if throttles := {key: value for key, value in config.items() if key in THROTTLE_KEYS}:
            self.throttles[resource] = throttles
        else:
            self.throttles.pop(resource, None)

    def _absorb_entry(self, path: str, resource: ConfigResource | None) -> None:
        entry = self._nodes.value(path, parse_ledger_entry)
        if resource is None or path in self._nodes.problems:
            return
        if entry:
            self.ledger[resource] = entry
        else:
            self.ledger.pop(resource, None)

    def _absorb_default(self) -> None:
        """Update the default broker config; the last known one stays if it cannot be read."""
        config = self._nodes.value(self._default, parse_config) or {}
        if self._default not in self._nodes.problems:
            self.default_throttles = {key: value for key, value in config.items() if key in RATE_KEYS}
