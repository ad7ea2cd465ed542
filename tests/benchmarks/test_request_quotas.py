"""Request quotas: one caller at ten times its quota beside another one, at a process with a real ZooKeeper."""

from __future__ import annotations

import statistics
from contextlib import ExitStack

from autothrottle_client import AdminClient
from autothrottle_lab.servers.processes import scratch_directory
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.benchmarks.figures import Figures
from tests.request_caller import Responses, responses
from tests.system.test_request_quotas import TOKENS, started
from tests.system.zookeeper_tree import Tree, session

QUOTA, SECONDS, RUNS = 20, 30.0, 3
IN_PROGRESS = 10
QUIET_RATE = 20.0


def test_a_caller_at_ten_times_its_quota_beside_another_one(zookeeper: ZooKeeperServer, figures: Figures) -> None:
    alone, beside, loud, unlimited = list[Responses](), list[Responses](), list[Responses](), list[Responses]()
    with ExitStack() as stack:
        tree = Tree(stack.enter_context(session(zookeeper)))
        tree.client.ensure_path(tree.kafka.reassign_partitions.rpartition("/")[0])
        address = started(zookeeper, tree, stack.enter_context(scratch_directory()), stack)
        admin = stack.enter_context(AdminClient(address, token=TOKENS["services"]))
        quiet = (address, TOKENS["quiet"], QUIET_RATE, 1, SECONDS)
        quiet_half = (address, TOKENS["quiet"], QUIET_RATE, 1, SECONDS / 2)
        for _ in range(RUNS):
            admin.set_request_quota(QUOTA, "loud")
            # Before and after, since the load of the machine changes.
            (before,) = responses(quiet_half)
            both = responses(quiet, (address, TOKENS["loud"], 10.0 * QUOTA, IN_PROGRESS, SECONDS))
            beside.append(both[0])
            loud.append(both[1])
            (after,) = responses(quiet_half)
            alone.append(Responses(latencies=before.latencies + after.latencies))
            admin.remove_request_quota("loud")
            unlimited.append(responses(quiet, (address, TOKENS["loud"], 10.0 * QUOTA, IN_PROGRESS, SECONDS))[0])
    held = [one.rate(SECONDS) / QUOTA for one in loud]
    growth = [_median(b) / _median(a) for a, b in zip(alone, beside, strict=True)]
    size = f"{10 * QUOTA} requests/s, quota {QUOTA}"
    figures.add("rate of the caller above its quota over 30 s / its quota", size, "1", held)
    figures.add("median latency of the other caller / without that caller", size, "1", growth)
    for name, found in (("alone", alone), ("beside it", beside), ("beside it without a quota", unlimited)):
        figures.add(f"median latency of the other caller {name}", size, "ms", [1000 * _median(one) for one in found])
        slow = [1000 * statistics.quantiles(one.latencies, n=100)[-1] for one in found]
        figures.add(f"99th percentile of the other caller {name}", size, "ms", slow)
    assert all(1.0 <= one <= 1.1 for one in held)
    assert statistics.median(growth) <= 1.2


def _median(one: Responses) -> float:
    return statistics.median(one.latencies)
