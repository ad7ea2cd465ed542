"""Every service ends within 5 s of SIGTERM, whichever of its dependencies is killed or frozen.

Each test lets calls wait for the dependency, then stops the service. `-s` prints the seconds; docs/failure-modes.md
has the table.
"""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from datetime import timedelta
from pathlib import Path

import pytest

from autothrottle.adapters.grpc import ApplierClient, DiscoveryClient, MetricsClient, PlannerServiceClient
from autothrottle.adapters.memory import MemoryMetrics
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.core.cluster.configs import LEADER_RATE
from autothrottle.core.errors import AutothrottleError
from autothrottle.ports.kafka import Term
from autothrottle_client import AdminClient
from autothrottle_lab.emulators.datadog import DatadogEmulator
from autothrottle_lab.servers.processes import Process
from autothrottle_lab.servers.services import LISTENS, Deployment
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests import builders
from tests.builders import mb
from tests.chaos.proxy import Link
from tests.in_process_services import BROKERS, InProcessServices
from tests.system.zookeeper_tree import session

LIMIT_SECONDS = 5.0
CALL_TIMEOUT = timedelta(seconds=60)
WAITING_SECONDS = 3.5
"""Time from the failure to SIGTERM. By then, the calls wait for the dependency."""
START_SECONDS = 120.0

READY = {"run": "Leading in term", "planner": "The cycle ended early"}
"""Service -> the log line after which its cycles use the dependencies. The twins do not know the planner's term."""

DEPENDENCIES = {
    "run": ("zookeeper", "kafka", "datadog"),
    "planner": ("zookeeper", "discovery", "metrics", "applier"),
    "discovery": ("zookeeper", "kafka"),
    "metrics": ("zookeeper", "datadog"),
    "applier": ("zookeeper", "kafka"),
    "admin": ("zookeeper", "kafka", "discovery", "metrics", "planner"),
    "gateway": ("zookeeper", "admin"),
}
IN_EVERY_RUN = {("run", "zookeeper"), ("planner", "zookeeper")}
CASES = [
    pytest.param(*case, how, id="-".join((*case, how)), marks=[] if case in IN_EVERY_RUN else [pytest.mark.repeat])
    for service, dependencies in DEPENDENCIES.items()
    for case in ((service, dependency) for dependency in dependencies)
    for how in ("killed", "frozen")
]


@pytest.mark.parametrize(("service", "dependency", "how"), CASES)
def test_service_ends_within_5_seconds(
    service: str, dependency: str, how: str, fresh_zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    """All parts closed one after the other, each with its own time limit, and some without one.

    `run` took 61 s to end while ZooKeeper was down, and 66 s while it was frozen. Kubernetes kills it after 30 s.
    """
    with ExitStack() as stack:
        links = {name: stack.enter_context(link) for name, link in peers(stack).items()}
        process = deployment(fresh_zookeeper, links, dependency, tmp_path).process(service, service, {})
        stack.callback(process.kill)
        process.start()
        process.wait_until(lambda: LISTENS.search(process.log.read_text()) is not None, START_SECONDS)
        process.wait_until(lambda: READY.get(service, "") in process.log.read_text(), START_SECONDS)
        waiting = calls(stack, service, LISTENS.findall(process.log.read_text())[0])
        for call in waiting if dependency != "kafka" else ():
            attempt(call)  # now the service is connected to the dependency
        fail(links.get(dependency) or fresh_zookeeper, how)
        ended = threading.Event()
        stack.callback(ended.set)
        for call in waiting:
            threading.Thread(target=repeat, args=(call, ended), daemon=True).start()
        time.sleep(WAITING_SECONDS)
        seconds = seconds_to_end(process)
        print(f"\n{service} | {dependency} | {how} | {seconds:.1f}")
        log = process.log.read_text()
        assert process.returncode == 0, log
        assert "Traceback" not in log
        assert seconds <= LIMIT_SECONDS
        if dependency != "zookeeper":
            assert candidates_and_members(fresh_zookeeper) == []


def peers(stack: ExitStack) -> Mapping[str, Link]:
    """Start the services, Datadog and a Kafka that never answers; return dependency -> the link to it."""
    load = MemoryMetrics(*(builders.load(b, outbound=mb(20), inbound=mb(10)) for b in BROKERS))
    services = stack.enter_context(InProcessServices(load, load))
    services.cluster.add_topic("test0", {0: (1001, 1002)})
    services.cluster.submit_reassignment("test0", {0: (1001, 1003)})
    datadog = stack.enter_context(DatadogEmulator())
    addresses = {name.removesuffix("-1"): server.address for name, server in services.servers.items()}
    addresses["datadog"] = datadog.url.rpartition("/")[2]
    links = {name: Link([int(address.rpartition(":")[2])], framing=None) for name, address in addresses.items()}
    kafka = Link([1], framing=None)
    kafka.hold()
    return {**links, "kafka": kafka}


def deployment(zookeeper: ZooKeeperServer, links: Mapping[str, Link], dependency: str, directory: Path) -> Deployment:
    options = {"interval": "60", "metrics-window": "2", "api-listen": "127.0.0.1:0", "grpc-listen": "127.0.0.1:0"}
    options |= {f"{name}-addr": link.connect for name, link in links.items() if name not in ("datadog", "kafka")}
    if dependency == "kafka":
        options |= {"kafka-backend": "admin", "bootstrap-servers": links["kafka"].connect}
    datadog = f"http://{links['datadog'].connect}" if links else ""
    return Deployment(zookeeper.connect, datadog, directory, options)


def fail(dependency: Link | ZooKeeperServer, how: str) -> None:
    match dependency, how:
        case ZooKeeperServer(), "killed":
            dependency.kill()
        case ZooKeeperServer(), _:
            dependency.freeze()
        case Link(), "killed":
            dependency.__exit__()
        case Link(), _:
            dependency.hold()


def calls(stack: ExitStack, service: str, address: str) -> list[Callable[[], object]]:
    """Return calls of a service that need its dependencies."""
    match service:
        case "planner" | "run":
            planner = stack.enter_context(closing(PlannerServiceClient([address])))
            return [lambda: planner.run_cycle("test", CALL_TIMEOUT)]
        case "discovery":
            discovery = stack.enter_context(closing(DiscoveryClient([address])))
            return [lambda: discovery.fetch_snapshot(timeout=CALL_TIMEOUT)]
        case "metrics":
            metrics = stack.enter_context(closing(MetricsClient([address])))
            return [lambda: metrics.fetch_loads(CALL_TIMEOUT)]
        case "applier":
            applier = stack.enter_context(closing(ApplierClient([address])))
            ours = builders.ledger_entry(leader_replication_throttled_rate="1000000")
            change = builders.change("brokers/1001", (LEADER_RATE, None, "1000000"), ledger=ours)
            return [lambda: applier.apply(Term(1), [change], CALL_TIMEOUT)]
        case "admin":
            admin = stack.enter_context(AdminClient(address, CALL_TIMEOUT))
            return [
                admin.state,
                lambda: admin.set_override(mb(10), broker_id=1001),
                lambda: admin.estimate_reassignment({("test0", 0): (1001, 1003)}),
            ]
        case "gateway":
            return [lambda: urllib.request.urlopen(f"http://{address}/v1/overrides", timeout=60)]
    return []


def attempt(call: Callable[[], object]) -> None:
    with suppress(AutothrottleError, OSError):
        call()


def repeat(call: Callable[[], object], ended: threading.Event) -> None:
    """Let a call be in progress at almost any time."""
    while not ended.wait(0.1):
        attempt(call)


def seconds_to_end(process: Process) -> float:
    """Send SIGTERM; return the seconds until the end of the process."""
    start = time.monotonic()
    process.terminate()
    process.wait(100)
    return time.monotonic() - start


def candidates_and_members(zookeeper: ZooKeeperServer) -> list[str]:
    own = OwnPaths()
    with session(zookeeper) as client:
        return [
            name for path in (own.election, own.members) if client.exists(path) for name in client.get_children(path)
        ]
