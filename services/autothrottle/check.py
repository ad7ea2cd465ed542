"""`autothrottle check`: reads what the services of `run` read, writes nothing, and prints findings and facts.

Each source is read in its own thread and within a limit, so that one that does not answer is one finding. `inspection`
judges the readings. The type to know is `CheckSources`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from autothrottle.composition.services import Composition
from autothrottle.core.cluster.configs import ClusterSettings
from autothrottle.core.cluster.snapshot import Snapshot
from autothrottle.core.errors import AutothrottleError, Unavailable, Unready
from autothrottle.core.inspection import (
    Finding,
    fetches_inspected,
    finding,
    growth_compared,
    loads_inspected,
    one_line_per_cause,
    racks_inspected,
    registrations_inspected,
    snapshot_inspected,
)
from autothrottle.core.placement.cluster import PlacementCluster
from autothrottle.core.policy.headroom import HeadroomPolicy
from autothrottle.core.texts import escape_unprintable
from autothrottle.core.traffic.loads import Loads
from autothrottle.ports.kafka import FetchSettingsSource, PermissionSource, SnapshotSource
from autothrottle.ports.services import ClusterSource
from autothrottle.ports.telemetry import LoadSource
from autothrottle.runtime.configuration import Configuration
from autothrottle.runtime.configuration_reader import InvalidConfiguration

_LIMIT = timedelta(seconds=20)
"""How long the sources may take, all at once."""
_SETTINGS_LIMIT = timedelta(seconds=10)
"""How long the brokers' settings may take, which are read after the list of brokers."""
_PATIENCE = timedelta(seconds=3)
"""How long to wait for samples of a metrics source that collects them itself, beyond the time between two of them."""
_UNREADY_SHARE = 1.5
"""The same for a source that works and has no two samples yet, as a share of the time for one answer."""
_LEAST_INTERVAL = timedelta(seconds=3)
_POLL_SECONDS = 0.5

_UNREACHABLE = "check its address and credentials, and that it runs"

_METRICS, _CLUSTER, _SNAPSHOT, _GROWTH = "metrics", "Kafka", "Kafka, throttles", "log growth"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CheckSources:
    """Functions that connect to the sources; each may raise an AutothrottleError, or block."""

    cluster: Callable[[], ClusterSource]
    snapshots: Callable[[], SnapshotSource]
    loads: Callable[[], LoadSource] | None
    """None: the configuration needs no loads."""
    settings: FetchSettingsSource | None
    """None: no admin API is configured, which has the settings."""
    permissions: Mapping[str, Callable[[], PermissionSource]]
    """What is accessed, such as `state store` -> the permissions there."""
    log_growth: Callable[[], LoadSource] | None = None
    """Loads from the growth of the logs, to compare with; None: no admin API is configured, or they are `loads`."""


def check(sources: CheckSources, configuration: Configuration, limit: timedelta = _LIMIT) -> list[Finding]:
    """Return the findings and facts, in the order of the sources. An unreachable source is one finding.

    One reading waits for half of the limit for a broker that does not answer, so that the others are still reported.
    """
    timeout = limit / 2
    reads: dict[str, Callable[[], Any]] = {
        name: partial(_missing_permissions, name, connect, timeout) for name, connect in sources.permissions.items()
    }
    reads[_CLUSTER] = lambda: sources.cluster().fetch_cluster(timeout)
    reads[_SNAPSHOT] = lambda: sources.snapshots().fetch_snapshot(timeout=timeout)
    if connect := sources.loads:
        collects = configuration.metrics_source in ("scrape", "kafka")
        patience = _PATIENCE + configuration.scrape_interval if collects else timedelta(0)
        reads[_METRICS] = lambda: _complete_loads(connect(), patience, timeout)
    if connect_growth := sources.log_growth:
        reads[_GROWTH] = lambda: _complete_loads(connect_growth(), _PATIENCE, timeout)
    readings = _in_parallel(reads, limit)
    growth = readings.pop(_GROWTH, None)  # brokers that cannot be read are findings of the other sources
    cluster, loads = readings[_CLUSTER], readings.get(_METRICS)
    brokers = cluster.brokers if isinstance(cluster, PlacementCluster) else {}
    fetches: dict[str, Any] = {"fetch sizes": None} if brokers else {}
    if brokers and (source := sources.settings):
        read_settings = partial(source.fetch_settings, frozenset(brokers), (), _SETTINGS_LIMIT / 2)
        fetches = _in_parallel({"fetch sizes": read_settings}, _SETTINGS_LIMIT)
    judged: dict[str, Callable[[], Iterable[Finding]]] = {
        name: partial(_judged, name, reading) for name, reading in _without_repeats(readings).items()
    }
    if isinstance(loads, Loads):
        registered = brokers or _registered(readings[_SNAPSHOT])
        judged[_METRICS] = lambda: _loads_judged(loads, registered, configuration)
        if isinstance(growth, Loads):
            judged[_GROWTH] = lambda: growth_compared(loads, growth)
    for name, reading in fetches.items():
        judged[name] = partial(_fetches_judged, name, reading, cluster, loads, configuration)
    return [line for name, judge in judged.items() for line in _guarded(name, judge)]


def _registered(snapshot: object) -> frozenset[int]:
    return snapshot.brokers if isinstance(snapshot, Snapshot) else frozenset()


# Reading.


def _in_parallel(reads: Mapping[str, Callable[[], T]], limit: timedelta) -> dict[str, T | Finding]:
    """Return name -> what it read, or why it could not. Threads that do not answer within the limit are left alone."""
    late = f"no answer within {limit.total_seconds():g} s, so it is not checked"
    fix = "check the addresses, and that the servers and the network to them work"
    readings: dict[str, T | Finding] = {name: Finding(name, late, fix) for name in reads}

    def read(name: str, source: Callable[[], T]) -> None:
        try:
            readings[name] = source()
        except InvalidConfiguration as error:  # whose text has several lines
            readings[name] = finding(name, "; ".join(error.problems), _UNREACHABLE)
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
    return dict(readings)  # a thread may still answer


def _defect(name: str, error: Exception) -> Finding:
    return Finding(name, f"an unexpected {type(error).__name__} ended this check: {error}", "report this line")


def _missing_permissions(
    name: str, connect: Callable[[], PermissionSource], limit: timedelta
) -> Mapping[str, str] | Finding:
    source = connect()
    return source.fetch_missing_permissions(limit) or Finding(name, source.summary)


def _complete_loads(source: LoadSource, patience: timedelta, timeout: timedelta) -> Loads:
    """Return loads that cover a few seconds. A source that collects its own samples gets this time for that."""
    began = time.monotonic()
    deadline = began + patience.total_seconds()
    while True:
        try:
            loads = source.fetch_loads(timeout)
        except Unavailable as error:
            # A large cluster or a busy host needs longer for two samples.
            last = began + _UNREADY_SHARE * timeout.total_seconds() if isinstance(error, Unready) else deadline
            if time.monotonic() >= last:
                raise
        else:
            if _is_complete(loads) or time.monotonic() >= deadline:
                return loads
        time.sleep(_POLL_SECONDS)


def _is_complete(loads: Loads) -> bool:
    utilizations = [side for load in loads.brokers.values() for side in (load.outbound, load.inbound)]
    are_long = all(utilization.end - utilization.start >= _LEAST_INTERVAL for utilization in utilizations)
    return bool(utilizations) and not loads.problems and are_long


# Judging.


def _without_repeats(readings: Mapping[str, T | Finding]) -> Mapping[str, T | Finding]:
    """Return the readings without those that failed for the reason of another one, such as the same server.

    A reading may say before the reason what it could not do. The shortest text stays, the first of equal ones.
    """
    problems = {name: reading for name, reading in readings.items() if isinstance(reading, Finding) and reading.fix}
    causes: dict[str, Finding] = {}
    for name, problem in sorted(problems.items(), key=lambda pair: len(pair[1].value)):
        if not any(problem.fix == cause.fix and problem.value.endswith(cause.value) for cause in causes.values()):
            causes[name] = problem
    return {name: reading for name, reading in readings.items() if name not in problems or name in causes}


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


def _loads_judged(loads: Loads, registered: Iterable[int], configuration: Configuration) -> Iterator[Finding]:
    broker_ids = frozenset(registered)
    total = f" of {len(broker_ids)}" if broker_ids else ""
    source = configuration.metrics_source
    yield Finding(_METRICS, f"the source {source} has the load of {len(loads.brokers)}{total} brokers")
    yield from loads_inspected(loads, broker_ids, configuration.limits, datetime.now(UTC))


def _fetches_judged(
    name: str, reading: object, cluster: object, loads: object, configuration: Configuration
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
        policy = configuration.new_policy()
        if policy.follows_load:
            policy = HeadroomPolicy()  # adaptive has not learned yet
        yield from fetches_inspected(cluster.partitions, measured, reading, configuration.limits, policy)


# Output.


def findings_text(lines: Iterable[Finding], output: str) -> str:
    """Return one line per cause, or a list of all findings and facts as JSON."""
    shown = lines if output == "json" else one_line_per_cause(lines)
    levels = [("warn" if line.fix else "info", line) for line in shown]
    if output == "json":
        return json.dumps([{"level": level, **asdict(line)} for level, line in levels], indent=2)
    return "\n".join(
        escape_unprintable(f"{level.upper()} {line.subject}: {line.value}{f'. Fix: {line.fix}' if line.fix else ''}")
        for level, line in levels
    )


def check_sources(composition: Composition) -> CheckSources:
    """Return the sources of the configuration; nothing connects yet, and nothing is written."""
    state, cluster = composition.state, composition.cluster
    is_needed = composition.configuration.metrics_source != "none"
    return CheckSources(
        cluster=cluster.source,
        snapshots=lambda: cluster.snapshots(None),
        loads=composition.sources.load_source if is_needed else None,
        settings=cluster.fetch_settings,
        permissions={"state store": state.permissions, **cluster.permissions()},
        log_growth=composition.sources.log_growth() if is_needed else None,
    )
