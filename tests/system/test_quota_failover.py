"""A client quota of a recovery, with real services on a real ZooKeeper: the leading planner is killed in between."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from autothrottle.core.quotas.keys import DEFAULT, ClientQuotaEntity
from autothrottle_client import AdminClient, QuotaEntity, QuotaValues
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.system.simulated_recovery import RESTLESS, SimulatedRecovery, wait_for

BACKFILL = QuotaEntity(default_user=True, client_id="back fill")
PATH = ClientQuotaEntity(DEFAULT, "back fill").path
QUOTAS = {
    PATH: {"producer_byte_rate": "70000000", "consumer_byte_rate": "8000000"},
    "clients/customer": {"producer_byte_rate": "1"},
}


# In each run of `make test`, tests/system/test_yielding_on_kafka.py kills the leader of a recovery with quotas, on real
# brokers in ZooKeeper mode.
@pytest.mark.repeat
def test_a_quota_of_a_recovery_is_restored_although_its_leader_is_killed(
    fresh_zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    # Long enough that a busy machine elects the next leader during it; `speed_up` ends it.
    sizes = {"orders": [40 * n for n in range(1, 13)]}
    with SimulatedRecovery(fresh_zookeeper, tmp_path, sizes, traffic=RESTLESS) as recovery:
        for path, config in QUOTAS.items():
            recovery.set_config(path, config)
        before, start = recovery.configs(), fresh_zookeeper.last_zxid()

        def quotas() -> dict[str, dict[str, str]]:
            return {path: recovery.config(path) for path in QUOTAS}

        with recovery.services(planners=2) as services, AdminClient(services.addresses["admin"]) as admin:
            leader = recovery.wait_for_term()
            recovery.start_reassignment()
            recovery.wait_until_throttled()
            admin.quotas.set(BACKFILL, QuotaValues(producer_byte_rate=5_000_000), until_recovered=True)
            wanted = {**QUOTAS, PATH: {**QUOTAS[PATH], "producer_byte_rate": "5000000"}}
            began = time.monotonic()
            wait_for(lambda: quotas() == wanted or None, 20, "the quota is set")
            print(f"\nquota set within {time.monotonic() - began:.2f} s")
            services.planner(leader.address).kill()
            recovery.wait_for_term(leader.fence)
            assert recovery.is_reassigning()
            assert quotas() == wanted
            recovery.speed_up()
            recovery.wait_until_clean(before)
            wait_for(lambda: quotas() == QUOTAS or None, 20, "the quota is restored")
            recovery.assert_fenced(start, terms=2)
            listed, _ = admin.quotas.list()
            assert not any(quota.until_recovered for quota in listed)
