"""`autothrottle check`: reads what the services of `run` read, writes nothing, and prints findings and facts.

Each source is read in its own thread and within a limit, so that one that does not answer is one finding. `inspection`
judges the readings. The types to know are `CheckSources` and `CheckComposition`.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from autothrottle.adapters.zookeeper.permissions import ZooKeeperPermissions
from autothrottle.composition import Composition
from autothrottle.core.cluster.fetch_settings import ClusterSettings
from autothrottle.core.cluster.snapshot import Snapshot
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.inspection import (
    Finding,
    fetches_inspected,
    finding,
    loads_inspected,
    racks_inspected,
    registrations_inspected,
    snapshot_inspected,
)
from autothrottle.core.policy.headroom import HeadroomPolicy
from autothrottle.core.policy.interface import Policy
from autothrottle.core.policy.limits import Limits
from autothrottle.core.texts import escape_unprintable
from autothrottle.core.traffic.loads import BrokerLoad, Loads
from autothrottle.ports.kafka import FetchSettingsSource, PermissionSource, SnapshotSource
from autothrottle.ports.services import ClusterSource, PlacementCluster
from autothrottle.ports.telemetry import LoadSource
from autothrottle.runtime.configuration import PolicyName

_LIMIT = timedelta(seconds=20)
"""How long the sources may take, all at once."""
_SETTINGS_LIMIT = timedelta(seconds=10)
"""How long the brokers' settings may take, which are read after the list of brokers."""
_PATIENCE = timedelta(seconds=3)
"""How long to wait for samples of a metrics source that collects them itself, beyond the time between two of them."""
_LEAST_INTERVAL = timedelta(seconds=3)
_POLL_SECONDS = 0.5

_UNREACHABLE = "check its address and credentials, and that it runs"

_METRICS, _CLUSTER, _SNAPSHOT = "metrics", "Kafka", "Kafka, throttles"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CheckSources:
    """Functions that connect to the sources; each may raise an AutothrottleError, or block."""

    cluster: Callable[[], ClusterSource]
    snapshots: Callable[[], SnapshotSource]
    loads: Callable[[], LoadSource] | None
    """None: the configuration needs no loads."""
    settings: Callable[[], FetchSettingsSource | None]
    """None: no admin API is configured, which has the settings."""
    permissions: Mapping[str, Callable[[], PermissionSource]]
    """What is accessed, such as `state store` -> the permissions there."""


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """What the readings are judged by."""

    limits: Limits
    policy: Policy = field(default_factory=HeadroomPolicy)
    """Without learned state."""
    source: str = ""
    """Name of the metrics source."""
    patience: timedelta = timedelta(0)
    """How long to wait for a metrics source that collects its own samples."""
    limit: timedelta = _LIMIT

    @property
    def timeout(self) -> timedelta:
        """How long one reading may wait for a broker that does not answer, so that the others are still reported."""
        return self.limit / 2


def check(sources: CheckSources, settings: CheckSettings) -> list[Finding]:
    """Return the findings and facts, in the order of the sources. An unreachable source is one finding."""
    reads: dict[str, Callable[[], Any]] = {
        name: partial(_missing_permissions, connect, settings.timeout) for name, connect in sources.permissions.items()
    }
    reads[_CLUSTER] = lambda: sources.cluster().fetch_readable_cluster(settings.timeout)
    reads[_SNAPSHOT] = lambda: sources.snapshots().fetch_snapshot(timeout=settings.timeout)
    if connect := sources.loads:
        reads[_METRICS] = lambda: _complete_loads(connect(), settings)
    readings = _in_parallel(reads, settings.limit)
    cluster, loads = readings[_CLUSTER], readings.get(_METRICS)
    brokers = cluster.brokers if isinstance(cluster, PlacementCluster) else {}
    fetches = _in_parallel({"fetch sizes": lambda: _settings(sources, brokers)}, _SETTINGS_LIMIT) if brokers else {}
    judged: dict[str, Callable[[], Iterable[Finding]]] = {
        name: partial(_judged, name, reading) for name, reading in _without_repeats(readings).items()
    }
    if isinstance(loads, Loads):
        registered = brokers or _registered(readings[_SNAPSHOT])
        judged[_METRICS] = lambda: _loads_judged(loads, registered, settings)
    for name, reading in fetches.items():
        judged[name] = partial(_fetches_judged, name, reading, cluster, loads, settings)
    return [line for name, judge in judged.items() for line in _guarded(name, judge)]


def _registered(snapshot: object) -> frozenset[int]:
    return snapshot.brokers if isinstance(snapshot, Snapshot) else frozenset()


# Reading.


def _in_parallel(reads: Mapping[str, Callable[[], T]], limit: timedelta) -> dict[str, T | Finding]:
    """Return name -> what it read, or why it could not. Threads that do not answer within the limit are left alone."""
    readings: dict[str, T | Finding] = {}

    def read(name: str, source: Callable[[], T]) -> None:
        try:
            readings[name] = source()
        except AutothrottleError as error:
            readings[name] = finding(name, str(error), _UNREACHABLE)
        except Exception as error:  # one check must not take the others down
            readings[name] = _defect(name, error)

    threads = [threading.Thread(target=read, args=pair, name=f"check {pair[0]}", daemon=True) for pair in reads.items()]
    deadline = time.monotonic() + limit.total_seconds()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return {name: readings[name] if name in readings else _no_answer(name, limit) for name in reads}


def _no_answer(name: str, limit: timedelta) -> Finding:
    value = f"no answer within {limit.total_seconds():g} s, so it is not checked"
    return Finding(name, value, "check the addresses, and that the servers and the network to them work")


def _defect(name: str, error: Exception) -> Finding:
    return Finding(name, f"an unexpected {type(error).__name__} ended this check: {error}", "report this line")


def _missing_permissions(connect: Callable[[], PermissionSource], limit: timedelta) -> Mapping[str, str]:
    return connect().fetch_missing_permissions(limit)


def _settings(sources: CheckSources, broker_ids: Iterable[int]) -> ClusterSettings | None:
    source = sources.settings()
    return source.fetch_settings(frozenset(broker_ids), (), _SETTINGS_LIMIT / 2) if source else None


def _complete_loads(source: LoadSource, settings: CheckSettings) -> Loads:
    """Return loads that cover a few seconds, or the last ones that the source has within the patience."""
    deadline = time.monotonic() + settings.patience.total_seconds()
    loads = source.fetch_loads(settings.timeout)
    while not _is_complete(loads) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        loads = source.fetch_loads(settings.timeout)
    return loads


def _is_complete(loads: Loads) -> bool:
    def is_long(load: BrokerLoad) -> bool:
        return min(load.outbound.end - load.outbound.start, load.inbound.end - load.inbound.start) >= _LEAST_INTERVAL

    return bool(loads.brokers) and not loads.problems and all(map(is_long, loads.brokers.values()))


# Judging.


def _without_repeats(readings: Mapping[str, T | Finding]) -> Mapping[str, T | Finding]:
    """Return the readings without those that failed for the same reason as an earlier one, such as the same server."""
    names = {(r.value, r.fix): name for name, r in reversed([*readings.items()]) if isinstance(r, Finding)}
    return {n: r for n, r in readings.items() if not isinstance(r, Finding) or names[r.value, r.fix] == n}


def _guarded(name: str, judge: Callable[[], Iterable[Finding]]) -> list[Finding]:
    try:
        return list(judge())
    except Exception as error:  # one check must not take the others down
        return [_defect(name, error)]


def _judged(name: str, reading: object) -> Iterator[Finding]:
    match reading:
        case Finding():
            yield reading
        case PlacementCluster():
            yield from (finding(name, problem) for problem in reading.problems)
            if not reading.problems:  # otherwise an unreadable registration may be that of the broker
                yield from registrations_inspected(reading.brokers.keys(), reading.partitions)
            racks = {broker.id: broker.rack for broker in reading.brokers.values()}
            yield from racks_inspected(racks, reading.partitions)
        case Snapshot():
            yield from snapshot_inspected(reading)
        case Mapping():
            yield from (finding(resource, sentence) for resource, sentence in reading.items())
            if not reading:
                yield Finding(name, "this client has the permissions that it needs")


def _loads_judged(loads: Loads, registered: Iterable[int], settings: CheckSettings) -> Iterator[Finding]:
    broker_ids = frozenset(registered)
    total = f" of {len(broker_ids)}" if broker_ids else ""
    yield Finding(_METRICS, f"the source {settings.source} has the load of {len(loads.brokers)}{total} brokers")
    yield from loads_inspected(loads, broker_ids, settings.limits, datetime.now(UTC))


def _fetches_judged(
    name: str, reading: object, cluster: object, loads: object, settings: CheckSettings
) -> Iterator[Finding]:
    if isinstance(reading, Finding):
        yield reading
    elif not isinstance(reading, ClusterSettings) or not isinstance(cluster, PlacementCluster):
        yield Finding(name, "not checked: the brokers report their settings only to --bootstrap-servers")
    else:
        for broker_id in sorted(cluster.brokers.keys() - reading.brokers.keys()):
            fix = "start it, or allow DescribeConfigs on the cluster"
            yield Finding(f"broker {broker_id}", "does not report its fetch sizes", fix)
        measured = loads if isinstance(loads, Loads) else Loads()
        yield from fetches_inspected(cluster.partitions, measured, reading, settings.limits, settings.policy)


# Printing.


def print_findings(lines: Iterable[Finding], output: str) -> None:
    """Print one line per finding and fact, or the same as JSON."""
    if output == "json":
        levels = [{"level": "warn" if line.fix else "info", **asdict(line)} for line in lines]
        print(json.dumps(levels, indent=2), flush=True)
        return
    for line in lines:
        fix = f". Fix: {line.fix}" if line.fix else ""
        print(escape_unprintable(f"{'WARN' if line.fix else 'INFO'} {line.subject}: {line.value}{fix}"))
    sys.stdout.flush()


class CheckComposition(Composition):
    """Builds what a check reads: the same adapters as those of the services, and none that writes."""

    def check_sources(self) -> CheckSources:
        """Return the sources of the configuration; nothing connects yet."""
        configuration, kafka = self.configuration, self._kafka_admin  # once, before there are threads
        permissions: dict[str, Callable[[], PermissionSource]] = {
            "state store": lambda: ZooKeeperPermissions(self._session(), self._own)
        }
        if not self._by_admin_api:
            submits = kafka is None
            permissions["Kafka's znodes"] = lambda: ZooKeeperPermissions(self._session(), self._kafka, submits)
        if kafka:
            from autothrottle.adapters.kafka_admin.permissions import KafkaPermissions

            permissions["Kafka's permissions"] = lambda: KafkaPermissions(kafka, self._by_admin_api)
        return CheckSources(
            cluster=self._cluster_source,
            snapshots=lambda: self._snapshots(self._session(), None),
            loads=None if configuration.metrics_source == "none" else self.load_source,
            settings=self._fetch_settings,
            permissions=permissions,
        )

    def check_settings(self) -> CheckSettings:
        """Return the settings of the configuration."""
        configuration = self.configuration
        is_static = configuration.policy is PolicyName.STATIC
        collects = configuration.metrics_source in ("scrape", "kafka")
        return CheckSettings(
            limits=configuration.limits,
            policy=configuration.new_policy() if is_static else HeadroomPolicy(),
            source=configuration.metrics_source,
            patience=_PATIENCE + configuration.scrape_interval if collects else timedelta(0),
        )

    def findings(self) -> list[Finding]:
        """Read all sources and return the findings."""
        return check(self.check_sources(), self.check_settings())
