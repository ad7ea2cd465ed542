"""Each registered policy, and one of another package, in all programs that name policies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from autothrottle.__main__ import main
from autothrottle.adapters.decision_log.writer import DecisionLog, LogLimits
from autothrottle.core.errors import Incomplete
from autothrottle.core.policy import registry
from autothrottle.core.policy.registry import POLICIES, policy_of, policy_text
from autothrottle.core.scoring.estimates import LoggedRecovery, LoggedStretch, estimate
from autothrottle.core.scoring.score import Setting
from autothrottle.core.traffic.loads import Capacity
from autothrottle.runtime.configuration_reader import InvalidConfiguration, parse
from autothrottle_lab.simulate.virtual_time import (
    SETTINGS,
    VirtualBroker,
    VirtualReassignment,
    VirtualRecovery,
    VirtualScenario,
)
from autothrottle_lab.simulation.link import ClientTraffic
from tests.builders import mb

pytestmark = pytest.mark.usefixtures("no_autothrottle_variables")

PLUGIN = '''
from autothrottle.core.policy.interface import Policy, RateProposal

class Half(Policy):
    """Half of each link."""

    name = "half"

    def propose(self, policy_input):
        return {side: RateProposal(given.capacity // 2) for side, given in policy_input.sides.items()}
'''

SCENARIO = """
[planner]
interval = 20
[[broker]]
id = [1, 2]
capacity = 100
traffic = [{ tx = 20, rx = 20 }]
[[move]]
topic = "t"
partitions = 1
megabytes = 2000
replicas = [1]
to = [2]
"""


@pytest.fixture(params=[*POLICIES, "half"])
def policy(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Name of a policy; `half` is installed as another package."""
    installed = tmp_path / "half-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: half\nVersion: 1\n")
    (installed / "entry_points.txt").write_text("[autothrottle.policies]\nhalf = half_policy:Half\n")
    (tmp_path / "half_policy.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    registry._entry_points.cache_clear()
    yield request.param
    registry._entry_points.cache_clear()


def test_a_policy_is_an_option_logs_is_replayed_advised_and_simulated(
    policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Options, decision log and advice listed the policies themselves. Logs of any other policy were not replayed."""
    configured = parse([f"--policy={policy}", "--static-rate=30"], {}).new_policy()
    assert configured.name == policy
    assert policy_of(policy_text(configured)) == configured or policy == "half"

    brokers = {b: VirtualBroker(Capacity(mb(100), mb(100)), ClientTraffic.constant(mb(20), mb(20))) for b in (1, 2)}
    settings = replace(SETTINGS, policy=configured, interval=timedelta(seconds=20))
    scenario = VirtualScenario(brokers, [VirtualReassignment("t", 0, mb(2000), (1,), (1, 2))], settings)
    log = str(tmp_path / "log")
    with closing(DecisionLog(log, limits=LogLimits(patience=timedelta(minutes=3)))) as decisions:
        VirtualRecovery(scenario, decisions, "lab").run()
    assert main(["replay", "--decisions", log]) == 0
    assert main(["replay", "--decisions", log, "--policy", "static", "--set", "static-rate=1"]) == 1

    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO)
    capsys.readouterr()
    assert main(["simulate", str(path), "--compare", f"none,{policy}"]) == 0
    assert f"\n{policy} " in capsys.readouterr().out

    stretch = LoggedStretch(60, mb(100), mb(20), mb(20), mb(25), mb(25), mb(25), mb(10), "headroom")
    setting = Setting(0.45, 0.1, 1, policy)
    logged = LoggedRecovery("c", "r", False, 600, mb(25) * 600, 0.0, setting, 60, [stretch] * 10)
    # 45 % of the 80 MB/s that clients leave, half of the link, or the logged 25 MB/s.
    rate = {"adaptive": 36, "headroom": 36, "half": 50, "static": 25}[policy]
    assert estimate(logged, setting).seconds == pytest.approx(600 * 25 / rate, rel=0.02)


def test_a_policy_that_is_not_installed_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match=r"policy.* 'fast' .*is not installed.*adaptive, headroom, static"):
        parse(["--policy=fast"], {})
    with pytest.raises(Incomplete, match="the policy 'fast 3' is unknown to this version"):
        policy_of("fast 3")
