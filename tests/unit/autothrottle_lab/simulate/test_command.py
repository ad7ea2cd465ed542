"""`autothrottle simulate`: reassignments with known answers, and invalid scenario files."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from autothrottle.__main__ import main
from autothrottle.adapters.decision_log.writer import DecisionLog, LogLimits
from autothrottle.core.cluster.configs import FOLLOWER_RATE, LEADER_RATE, ConfigResource, ReplicaRole
from autothrottle.core.cycle.input import PlannerSettings
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.headroom import HeadroomPolicy, StaticPolicy
from autothrottle.core.policy.interface import Policy
from autothrottle.core.traffic.loads import Capacity
from autothrottle_lab.simulate.command import configure, play, virtual_scenario
from autothrottle_lab.simulate.recording import LinkSideOutcome, Recording, SimulationOutcome, bound
from autothrottle_lab.simulate.results import PolicyRun, verdict
from autothrottle_lab.simulate.scenario_file import read_scenario
from autothrottle_lab.simulate.virtual_time import (
    SETTINGS,
    EventKind,
    VirtualBroker,
    VirtualEvent,
    VirtualReassignment,
    VirtualRecovery,
    VirtualScenario,
)
from autothrottle_lab.simulation.link import ClientTraffic, Contention, Sharing, TrafficStep
from tests import browser
from tests.builders import limits, mb
from tests.paths import ROOT

EXAMPLE = ROOT / "deploy" / "scenario.toml"
LINK = Capacity(mb(100), mb(100))
GOOD = """
metrics-delay = 5
[planner]
policy = "static"
static-rate = 54
metrics-window = 12
[[broker]]
id = [1001, 1002]
capacity = 100
traffic = [{ tx = 40, rx = 20 }]
[[broker]]
id = 1006
capacity = 100
traffic = [{ rx = 40 }]
[[move]]
topic = "orders"
partitions = 2
megabytes = 3240
replicas = [1001, 1000]
to = [1001, 1006]
"""

WINDOW_OF_12_S = replace(SETTINGS, metrics_window=timedelta(seconds=12))


pytestmark = pytest.mark.usefixtures("no_autothrottle_variables")


def scenario_path(directory: Path, *changes: tuple[str, str]) -> str:
    """Write the valid scenario with some of its text replaced; return its path."""
    text = GOOD
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = directory / "reassignment.toml"
    path.write_text(text)
    return str(path)


def totals(text: str) -> dict[str, str]:
    """The printed lines above the table of link sides: name -> value."""
    rows = [line for line in text.split("\n\n")[0].splitlines() if not line.startswith("plot: ")]
    return {line[:24].strip(): line[24:] for line in rows}


def one_partition(traffic: ClientTraffic, size: float, produce: int = 0) -> VirtualScenario:
    """One partition that 1006 copies from 1001, whose clients have this traffic."""
    brokers = {
        1001: VirtualBroker(LINK, traffic),
        1002: VirtualBroker(LINK, ClientTraffic()),
        1006: VirtualBroker(LINK, ClientTraffic()),
    }
    reassignment = VirtualReassignment("t", 0, size, (1001, 1002), (1001, 1002, 1006), produce)
    return VirtualScenario(brokers, [reassignment], WINDOW_OF_12_S, traffic_waits=True)


def test_static_throttle_at_90_percent_takes_as_long_as_the_closed_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "plot.svg"
    assert main(["simulate", scenario_path(tmp_path), "--plot", str(plot)]) == 0
    output = capsys.readouterr().out
    rows = totals(output)
    assert rows["policy"] == "static"
    assert rows["bound"].startswith("120.0 s")
    assert float(rows["duration"].split()[0]) == pytest.approx(120, rel=0.15)
    assert float(rows["duration / bound"]) == pytest.approx(1, abs=0.15)
    assert rows["copied"] == "6.48 GB"
    sender, receiver = (line.split() for line in output.splitlines() if " leader " in line or " follower " in line)
    assert sender[:4] == ["1001", "leader", "100", "6.48"]
    assert receiver[:4] == ["1006", "follower", "100", "6.48"]
    assert sender[6:9] == receiver[6:9] == ["54.0", "to", "54.0"]
    drawing = ElementTree.fromstring(plot.read_text())
    headings = [text.text for text in drawing.iterfind("{*}text[@font-weight='bold']")]
    assert headings == [
        "Reassignment of 2 partitions, 6.5 GB: static",
        "Broker 1001, outbound link",
        "Broker 1006, inbound link",
    ]
    assert len(drawing.findall("{*}svg/{*}title")) == len(drawing.findall("{*}svg/{*}desc")) == 2


def test_brokers_counted_from_0_get_the_same_rates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    renamed = scenario_path(tmp_path, ("1000", "3"), ("1001", "0"), ("1002", "2"), ("1006", "1"))
    assert main(["simulate", renamed, "--policy", "adaptive"]) == 0
    counted = capsys.readouterr().out
    assert main(["simulate", scenario_path(tmp_path), "--policy", "adaptive"]) == 0
    assert totals(counted) == totals(capsys.readouterr().out)
    assert re.search(r"^ +0 +leader .*\n +1 +follower ", counted, re.MULTILINE)


def test_flag_overrides_the_scenario_and_policies_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Clients use 60 of 100 MB/s after half a minute: a static 54 defers their bytes, the headroom policy defers fewer.
    rising = scenario_path(tmp_path, ("{ tx = 40, rx = 20 }", "{ tx = 40, rx = 20 }, { at = 30, tx = 60, rx = 20 }"))
    found = {}
    for policy in ("static", "headroom"):
        assert main(["simulate", rising, "--policy", policy, "--interval=20"]) == 0
        found[policy] = totals(capsys.readouterr().out)
        assert found[policy]["policy"] == policy
    deferred = {
        policy: float(rows["client bytes deferred"].split()[0].replace(",", "")) for policy, rows in found.items()
    }
    assert 0 < deferred["headroom"] < 0.9 * deferred["static"]
    duration = {policy: float(rows["duration"].split()[0]) for policy, rows in found.items()}
    assert duration["headroom"] > 1.1 * duration["static"]
    assert found["static"]["bound"] == found["headroom"]["bound"]


def test_a_higher_produce_rate_starts_a_cycle_at_once() -> None:
    """A full link kept its throttle until the next interval, though the services of a cluster start a cycle at once.

    So `simulate` showed twice the client bytes that wait, and recommended the static policy.
    """
    rising = ClientTraffic((TrafficStep(0, mb(20), mb(20)), TrafficStep(30, mb(20), mb(40))))
    recovery = VirtualRecovery(one_partition(rising, mb(4_000)))
    cycles: dict[int, int] = {}

    def watch(recovery: VirtualRecovery) -> None:
        second = recovery.now().timestamp() - recovery.scenario.begin.timestamp() - recovery.start
        cycles[round(second)] = recovery.cycles

    recovery.run(watch=watch)
    assert (cycles[29], cycles[40]) == (1, 2)


def test_the_last_bytes_of_a_removed_replica_are_not_produced_to_its_broker() -> None:
    """The planner's copy of log sizes was up to 2 s old when a replica was removed. The rest counted as produced."""
    brokers = {b: VirtualBroker(LINK, ClientTraffic()) for b in (1001, 1002, 1003)}
    moves = [
        VirtualReassignment("t", 0, mb(700), (1001, 1002), (1001, 1003), mb(5)),
        VirtualReassignment("t", 1, mb(2_000), (1002,), (1002, 1003)),
    ]
    produced: list[int] = []

    def watch(recovery: VirtualRecovery) -> None:
        progress = recovery.kafka.fetch_snapshot(timeout=timedelta(seconds=1)).progress
        assert progress is not None
        produced.extend(logs.led for b, logs in progress.growth.items() if b == 1002)

    VirtualRecovery(VirtualScenario(brokers, moves, WINDOW_OF_12_S, traffic_waits=True)).run(watch=watch)
    assert len(produced) > 20
    assert max(produced) <= 1


def outcome_of(seconds: float, share: float) -> SimulationOutcome:
    """The outcome of a reassignment that lets a share of the client bytes wait."""
    side = LinkSideOutcome(mb(100), 0.0, mb(1_000), share * mb(1_000), [])
    return SimulationOutcome(seconds, 1000.0, {(1006, ReplicaRole.FOLLOWER): side}, {}, 0, 0)


def test_the_verdict_names_a_policy_that_follows_the_load() -> None:
    """With the shipped scenario the verdict recommended the static policy, whose default rate fitted by chance."""
    shares = {"none": (800, 0.03), "static": (1200, 0.0), "headroom": (990, 0.01), "adaptive": (1050, 0.0014)}
    runs = [PolicyRun(policy, outcome_of(*of_policy)) for policy, of_policy in shares.items()]
    sentences = verdict(runs)
    assert sentences.startswith("adaptive: the reassignment takes 17 min 30 s, 1.05 times the shortest; 0.14 %")
    assert "static is 2 min 30 s slower and lets 0 % wait, with a rate that fits this load" in sentences
    assert "none is 4 min 10 s faster, but lets 3 %" in sentences
    assert verdict(runs[:2]).startswith("static: ")
    assert verdict([runs[0], PolicyRun("adaptive", None, "not done")]).startswith("none: ")


def test_bound_counts_produced_bytes_and_in_sync_followers() -> None:
    # 10 of 100 MB/s for clients, 5 for the in-sync follower: 0.9 of 85 is 76.5, less the 5 MB/s produced.
    scenario = one_partition(ClientTraffic.constant(mb(10), mb(10)), mb(71.5) * 100, mb(5))
    assert bound(scenario) == pytest.approx(100)
    falling = ClientTraffic((TrafficStep(0, mb(60), 0), TrafficStep(50, mb(10), 0)))
    assert bound(one_partition(falling, mb(36) * 50 + mb(81) * 30)) == pytest.approx(80)


def test_bound_is_that_of_the_slowest_link_side() -> None:
    traffic = {1: ClientTraffic.constant(mb(90), 0), 2: ClientTraffic(), 3: ClientTraffic()}
    brokers = {broker_id: VirtualBroker(LINK, clients) for broker_id, clients in traffic.items()}
    reassignments = [
        VirtualReassignment("t", 0, mb(100), (1,), (1, 3)),
        VirtualReassignment("t", 1, mb(500), (2,), (2, 3)),
    ]
    scenario = VirtualScenario(brokers, reassignments, traffic_waits=True)
    assert bound(scenario) == pytest.approx(100 / 10)  # min-rate; the other link sides need 6.7 s at most


def test_bound_is_infinite_when_clients_leave_no_headroom() -> None:
    scenario = one_partition(ClientTraffic.constant(mb(100), 0), mb(600))
    settings = replace(WINDOW_OF_12_S, limits=limits(min_rate=0))
    assert bound(replace(scenario, settings=settings)) == math.inf


def test_deferred_bytes_exclude_those_that_clients_alone_would_defer() -> None:
    overloaded = ClientTraffic((TrafficStep(0, mb(50), 0), TrafficStep(5, mb(130), 0), TrafficStep(15, mb(20), 0)))
    settings = replace(WINDOW_OF_12_S, policy=StaticPolicy(mb(1)))
    scenario = replace(one_partition(overloaded, mb(1) * 40), settings=settings)
    recording, recovery = Recording(scenario), VirtualRecovery(scenario)
    outcome = recording.outcome(recovery, recovery.run(watch=recording.watch))
    side = recovery.cluster.brokers[1001].outbound
    assert side.client_deferred >= mb(300)
    deferred = outcome.sides[1001, ReplicaRole.LEADER].deferred
    assert 0 < deferred <= mb(60)
    assert outcome.sides[1001, ReplicaRole.LEADER].saturated_seconds >= 10


def test_new_leader_after_a_failure_is_throttled_at_once_and_takes_part() -> None:
    scenario = replace(
        one_partition(ClientTraffic.constant(mb(20), mb(20)), mb(6_000)),
        events=[VirtualEvent(timedelta(seconds=30), 1001, EventKind.FAILS)],
    )
    recording, recovery = Recording(scenario), VirtualRecovery(scenario)
    seen: dict[int, str | None] = {}

    def watch(watched: VirtualRecovery) -> None:
        recording.watch(watched)
        config = watched.kafka.configs.get(ConfigResource.broker(1002), {})
        seen[round(watched.cluster.now - watched.start)] = config.get(LEADER_RATE)

    outcome = recording.outcome(recovery, recovery.run(watch=watch))
    assert seen[29] is None
    assert int(seen[32] or 0) >= mb(50)
    assert recovery.kafka.topics["t"][0].leader == 1002
    copied = {broker_id: one.copied for (broker_id, role), one in outcome.sides.items() if role is ReplicaRole.LEADER}
    assert copied[1001] + copied[1002] == pytest.approx(mb(6_000))
    assert copied[1001] < 0.6 * mb(6_000) < 6 * copied[1002]


def test_compared_policies_share_one_table_and_one_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "plot.html"
    path = scenario_path(tmp_path, ("megabytes = 3240", "megabytes = 1000"))
    assert main(["simulate", path, "--compare", "none,static", "--plot", str(page), "--output", "json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == f"plot: {page}\n"
    document = json.loads(printed.out)
    free, throttled = document["policies"]
    assert (free["policy"], throttled["policy"]) == ("none", "static")
    assert free["throttle_writes"] == 0 < throttled["throttle_writes"]
    assert free["seconds"] < throttled["seconds"]
    assert free["link_sides"][0]["highest_throttle_bytes_per_second"] is None
    assert throttled["link_sides"][0]["highest_throttle_bytes_per_second"] == mb(54)
    text = page.read_text()
    assert text.count("<table>") == 1
    assert document["verdict"].replace("<", "&lt;") in text
    assert text.count('class="narrow"') == 2 * 2
    # With clients of 40 MB/s, only a policy without throttles fills the link.
    assert document["verdict"].startswith("static: the reassignment takes ")


def test_browser_shows_the_page_of_a_comparison_without_sideways_scrolling(tmp_path: Path) -> None:
    if browser.find() is None:
        pytest.skip(browser.ABSENT)
    page = tmp_path / "plot.html"
    path = scenario_path(tmp_path, ("megabytes = 3240", "megabytes = 1000"))
    assert main(["simulate", path, "--compare", "none,static", "--plot", str(page)]) == 0
    expression = "[d.documentElement.scrollWidth, d.querySelectorAll('.chart svg').length]"
    widths = (390, 1280)
    for width, (scroll_width, charts) in zip(widths, browser.evaluate(page, expression, widths, tmp_path), strict=True):
        assert scroll_width <= width and charts == 2 * 2 * 2


def test_policy_that_never_ends_has_a_row_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = scenario_path(
        tmp_path, ("megabytes = 3240", "megabytes = 10\nproduce = 5"), ("= 5\n[pl", "= 5\nlongest = 0.02\n[pl")
    )
    assert main(["simulate", path, "--static-rate=2", "--compare", "none,static"]) == 0
    output = capsys.readouterr().out
    assert [line.split()[0] for line in output.splitlines()[:3]] == ["Policy", "none", "static"]
    assert "not done after 0.02 h" in output
    assert main(["simulate", path, "--static-rate=2", "--compare", "static"]) == 1


def test_failed_follower_delays_the_reassignment_until_it_returns() -> None:
    settings = replace(WINDOW_OF_12_S, policy=HeadroomPolicy())
    calm = replace(one_partition(ClientTraffic.constant(mb(20), 0), mb(6_000)), settings=settings)
    fails = VirtualEvent(timedelta(seconds=30), 1006, EventKind.FAILS)
    returns = VirtualEvent(timedelta(seconds=90), 1006, EventKind.RETURNS)
    hour = timedelta(hours=1)
    longer = play(replace(calm, events=[fails, returns]), hour).seconds - play(calm, hour).seconds
    assert longer == pytest.approx(60, abs=10)
    with pytest.raises(TimeoutError):
        play(replace(calm, events=[fails]), timedelta(minutes=5))


def test_scenario_events_fetcher_rate_and_contention_are_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = '[[event]]\nat = 60\nbroker = 1006\nwhat = "returns"\n[[event]]\nat = 50\nbroker = 1006\nwhat = "fails"\n'
    top = '= 5\ncontention = "clients-first"\nclient-connections = 9\nfetcher-rate = 27\n[pl'
    path = scenario_path(tmp_path, ("[[move]]", f"{events}[[move]]"), ("= 5\n[pl", top))
    scenario = read_scenario(Path(path)).scenario
    assert [(event.at.total_seconds(), event.kind) for event in scenario.events] == [
        (50, EventKind.FAILS),
        (60, EventKind.RETURNS),
    ]
    assert scenario.sharing == Sharing(Contention.CLIENTS_FIRST, 9, mb(27))
    assert main(["simulate", path]) == 0
    rows = totals(capsys.readouterr().out)
    assert rows["bound"].startswith("240.0 s")
    assert rows["bound"].endswith("share of the headroom, without the broker events)")
    assert float(rows["duration"].split()[0]) == pytest.approx(250, abs=5)


def test_equal_scenarios_have_equal_outcomes() -> None:
    def played() -> SimulationOutcome:
        brokers = {b: VirtualBroker(LINK, ClientTraffic.constant(mb(20), mb(20))) for b in (1, 2, 3, 4)}
        reassignments = [
            VirtualReassignment("a", 0, mb(300), (1, 2), (3, 4)),
            VirtualReassignment("b", 0, mb(900), (2, 9), (2, 1, 4)),
        ]
        return play(VirtualScenario(brokers, reassignments, WINDOW_OF_12_S), timedelta(hours=1))

    first = played()
    assert first == played()
    copied = {key: round(side.copied / mb(1)) for key, side in first.sides.items()}
    assert copied == {
        (1, ReplicaRole.LEADER): 600,
        (1, ReplicaRole.FOLLOWER): 900,
        (2, ReplicaRole.LEADER): 1800,
        (3, ReplicaRole.FOLLOWER): 300,
        (4, ReplicaRole.FOLLOWER): 1200,
    }


def test_replay_of_a_logged_reassignment_takes_equally_long(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # The client load falls in two steps during the reassignment; no metric has the first one at the start.
    falling = ClientTraffic((TrafficStep(0, mb(10), mb(70)), TrafficStep(60, 0, mb(50)), TrafficStep(150, 0, mb(20))))
    brokers = {1: VirtualBroker(LINK, ClientTraffic.constant(mb(20), 0)), 2: VirtualBroker(LINK, falling)}
    reassignment = VirtualReassignment("t", 0, mb(9000), (1,), (1, 2), mb(1))
    second = timedelta(seconds=1)
    scenario = VirtualScenario(
        brokers,
        [reassignment],
        PlannerSettings(limits(max_tx_ratio=0.8), interval=20 * second, metrics_window=20 * second),
        traffic_waits=True,
    )
    with closing(DecisionLog(str(tmp_path / "log"), limits=LogLimits(patience=timedelta(minutes=3)))) as log:
        took = VirtualRecovery(scenario, log, "lab").run()
    assert main(["simulate", "--from-decisions", str(tmp_path / "log")]) == 0
    path = tmp_path / "again.toml"
    path.write_text(capsys.readouterr().out)
    read = read_scenario(path)
    assert sum(one.size + one.produce_rate * took for one in read.scenario.reassignments) == pytest.approx(
        mb(9000 + took), rel=0.01
    )
    assert [round(step.inbound / mb(10)) for step in read.scenario.brokers[2].traffic.steps][-1] == 2
    again = virtual_scenario(read, configure(read, [], {}))
    again_limits = again.settings.limits
    assert (again_limits.max_tx_ratio, again_limits.max_rx_ratio, again.settings.interval) == (0.8, 0.9, 20 * second)
    assert play(again, timedelta(hours=1)).seconds == pytest.approx(took, rel=0.1)


def test_log_without_the_reassignment_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--from-decisions", str(tmp_path)]) == 1
    assert "holds no decision log. Fix: " in capsys.readouterr().err
    (tmp_path / "reassignments").mkdir()
    (tmp_path / "reassignments" / "torn.parquet").write_bytes(b"PAR1")
    assert main(["simulate", "--from-decisions", str(tmp_path), "--reassignment", "lab/1/1"]) == 1
    assert "the reassignment 'lab/1/1'; those with both are: none" in capsys.readouterr().err


def test_example_scenario_is_valid_and_its_comments_show_the_defaults(tmp_path: Path) -> None:
    read = read_scenario(EXAMPLE)
    assert len(read.scenario.reassignments) == 20
    assert {one.partition for one in read.scenario.reassignments if one.topic == "orders"} == set(range(12))
    text = EXAMPLE.read_text()
    path = tmp_path / "all.toml"
    for key in ("metrics-delay", "step", "longest", "begin", "contention", "client-connections"):
        assert f"\n# {key} = " in text
        text = text.replace(f"\n# {key} = ", f"\n{key} = ")
    path.write_text(text)
    assert replace(read_scenario(path), name=read.name) == read


def test_configuration_file_and_environment_override_the_scenario(tmp_path: Path) -> None:
    read = read_scenario(EXAMPLE)
    config = tmp_path / "autothrottle.toml"
    config.write_text('interval = 45\nzk-addr = ["zk1:2181"]\n')
    given = configure(read, ["--config", str(config), "--max-rate=70"], {"AUTOTHROTTLE_POLICY": "headroom"})
    settings = virtual_scenario(read, given).settings
    assert (settings.policy.name, settings.interval.total_seconds(), settings.limits.max_tx_ratio) == (
        "headroom",
        45,
        0.7,
    )
    plain = virtual_scenario(read, configure(read, [], {})).settings
    assert (plain.policy.name, plain.interval.total_seconds(), plain.limits.max_tx_ratio) == ("adaptive", 30, 0.9)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("metrics-delay", "metrics-dely", "unknown key 'metrics-dely'"),
        ("metrics-delay", "metrics-dely", "did you mean metrics-delay?"),
        ("= 5\n", "= -5\n", "metrics-delay is -5; it must be a number of seconds, >= 0 and <= 3600"),
        ("= 5\n", "= 5\nstep = 3\n", "step is 3; it must be a number of seconds, >= 0.01 and <= 0.2"),
        ("= 5\n", "= 5\nbegin = 2026-11-02\n", "it must be a time with its zone"),
        ("= 5\n", "= 5\nbegin = 9999-12-31T23:59:59Z\n", "in the years 1971 to 8999"),
        ("= 5\n", "= 5\nbegin = 0001-01-01T00:00:00Z\n", "in the years 1971 to 8999"),
        ('policy = "static"', 'polcy = "static"', "planner of reassignment.toml: unknown key 'polcy'"),
        (
            'policy = "static"',
            'policy = "fast"',
            "policy: 'fast' (key of planner in reassignment.toml) is not installed",
        ),
        (
            "capacity = 100\ntraffic = [{ rx",
            "capacity = 0\ntraffic = [{ rx",
            "broker 2 of reassignment.toml: capacity is 0",
        ),
        ("capacity = 100\ntraffic = [{ rx", "traffic = [{ rx", "broker 2 of reassignment.toml: capacity is missing"),
        ("id = 1006", "id = 1002", "duplicate broker 1002"),
        ("id = 1006", 'id = "x"', "id is 'x'; it must be a list of broker ids"),
        ("{ rx = 40 }", "{ rx = true }", "traffic 1 of broker 2 of reassignment.toml: rx is True"),
        ("{ rx = 40 }", "{ rx = 40 }, { rx = 50 }", "at is missing; it must be later than the previous step, 0"),
        ("megabytes = 3240", "megabytes = nan", "megabytes is nan"),
        ("megabytes = 3240", "", "megabytes is missing; it must be a number of MB of each partition"),
        ("partitions = 2", "partitions = 2.5", "partitions is 2.5; it must be an integer"),
        ("partitions = 2", "partitions = 5001", "it must be a number of partitions, >= 1 and <= 5000"),
        ('"orders"', "3", "topic is 3; it must be a name"),
        ("replicas = [1001, 1000]", "replicas = [1000]", "at least one of the brokers [1001, 1002, 1006]"),
        ("to = [1001, 1006]", "to = [1001, 1007]", "to is [1001, 1007]; it must be some of the brokers"),
        ("to = [1001, 1006]", "to = [1001]", "at least one of them outside the replicas"),
        ("[[move]]", "[[moves]]", "did you mean move?"),
        ("[[move]]", "[[move", "is not valid TOML"),
        ("[[move]]", "a = " + "[" * 5_000, "is not valid TOML: it is nested too deeply"),
        ("= 5\n", '= 5\ncontention = "tcp"\n', "it must be one of proportional, connections, clients-first"),
        ("= 5\n", "= 5\nclient-connections = 0\n", "client-connections is 0; it must be a number of connections"),
        ("= 5\n", "= 5\nclient-connections = 1.5\n", "client-connections is 1.5; it must be an integer"),
        ("= 5\n", "= 5\nfetcher-rate = 0\n", "fetcher-rate is 0; it must be a number of MB/s, >= 0.001"),
        ("[[move]]", "[[event]]\nat = 9\nbroker = 9\n[[move]]", "broker is 9; it must be one of the brokers [1001,"),
        ("[[move]]", '[[event]]\nbroker = 1006\nwhat = "fails"\n[[move]]', "at is missing"),
        ("[[move]]", "[[event]]\nat = 9\nbroker = 1006\n[[move]]", "one of fails, returns, leads"),
        (
            "[[move]]",
            '[[event]]\nat = 9\nbroker = 1006\nwhat = "returns"\n[[move]]',
            "what is 'returns'; it must be an event that is possible while the broker is up",
        ),
    ],
)
def test_invalid_scenario_is_refused_with_value_range_and_fix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, message: str
) -> None:
    assert main(["simulate", scenario_path(tmp_path, (old, new))]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert "Fix: " in printed.err or "give MB/s" in printed.err


def test_invalid_command_line_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = scenario_path(tmp_path)
    for arguments, message in (
        ([], "Usage: autothrottle simulate"),
        (["--policy", "static", good], "the scenario must come before the flag"),
        ([str(tmp_path / "none.toml")], "cannot be read: No such file or directory"),
        ([good, "--policy", "fast"], "'fast' (flag --policy)"),
        ([good, "--intervall", "9"], "intervall"),
        ([good, "--zk-addr", "zk1:2181"], "--zk-addr does not apply to a simulation"),
        ([good, "--plot", "plot.png"], "the name of an SVG or HTML file"),
        ([good, "--compare", "static,none", "--plot", "plot.svg"], "with --compare it must be an HTML file"),
        ([good, "--compare", "fast"], "it must be different policies of none, adaptive, headroom, static"),
        ([good, "--compare", "static,static"], "it must be different policies"),
        ([good, "--plot", str(tmp_path / "none" / "plot.svg")], "cannot be written"),
    ):
        assert main(["simulate", *arguments]) == 2
        assert message in capsys.readouterr().err
    assert main(["simulate", "--help"]) == 0
    help_text = capsys.readouterr().out
    assert "--change-threshold" in help_text
    assert "--zk-addr" not in help_text


def test_reassignment_that_never_ends_fails_after_the_longest_duration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Producers append faster than the throttle allows.
    endless = scenario_path(
        tmp_path, ("megabytes = 3240", "megabytes = 10\nproduce = 5"), ("= 5\n[pl", "= 5\nlongest = 0.02\n[pl")
    )
    plot = tmp_path / "plot.svg"
    assert main(["simulate", endless, "--static-rate=2", "--plot", str(plot)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("simulate: the reassignment is not done after 0.02 h; 0.")
    assert error.endswith(" GB are left to copy. Fix: raise the throttles, or 'longest' in the scenario\n")
    assert not plot.exists()


def test_closed_standard_output_ends_the_command_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "autothrottle", "simulate", "--help"],
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=120,
            check=False,
        )
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, b"")


@pytest.mark.parametrize(
    "policy",
    [pytest.param(HeadroomPolicy(), marks=pytest.mark.repeat), AdaptivePolicy()],
    ids=["headroom", "adaptive"],
)
def test_follower_with_a_link_full_of_client_traffic_does_not_slow_flows_to_other_followers(policy: Policy) -> None:
    def copied_to_other_followers(clients: int) -> float:
        """Bytes copied to 1004 and 1005 within a minute while clients write `clients` MB/s to 1006."""
        traffic = {b: ClientTraffic.constant(mb(40), mb(20)) for b in (1001, 1002, 1003, 1004, 1005)}
        traffic[1006] = ClientTraffic.constant(mb(5), mb(clients))
        brokers = {b: VirtualBroker(LINK, one) for b, one in traffic.items()}
        pairs = [(leader, follower) for leader in (1001, 1002, 1003) for follower in (1004, 1005, 1006)]
        reassignments = [VirtualReassignment("t", n, mb(9_000), (a,), (a, b)) for n, (a, b) in enumerate(pairs)]
        timing = timedelta(seconds=10)
        settings = PlannerSettings(limits(), policy, interval=timing, metrics_window=timing)
        recovery = VirtualRecovery(VirtualScenario(brokers, reassignments, settings))
        with pytest.raises(TimeoutError):
            recovery.run(timedelta(seconds=60))
        logs = recovery.kafka.log_bytes
        return sum(size for b in (1004, 1005) for (topic, _), size in logs[b].items() if topic == "t")

    assert copied_to_other_followers(clients=95) >= 0.95 * copied_to_other_followers(clients=20)


@pytest.mark.parametrize(("policy", "adapts"), [(AdaptivePolicy(), True), (HeadroomPolicy(), False)])
def test_adaptive_policy_sees_a_load_step_in_log_growth_before_the_metrics(policy: Policy, adapts: bool) -> None:
    # Clients write half as much to the follower from minute 10 on; a metric of that minute arrives four minutes later.
    steps = (TrafficStep(0, 0, mb(50)), TrafficStep(600, 0, mb(25)))
    brokers = {1001: VirtualBroker(LINK, ClientTraffic()), 1006: VirtualBroker(LINK, ClientTraffic(steps))}
    reassignments = [VirtualReassignment("t", 0, mb(90_000), (1001,), (1001, 1006))]
    late, interval = timedelta(seconds=120), timedelta(seconds=30)
    settings = PlannerSettings(limits(), policy, interval, metrics_window=late)
    recovery = VirtualRecovery(VirtualScenario(brokers, reassignments, settings, metrics_delay=late))
    ideal, rates = 0.9 * mb(75), dict[int, int]()

    def watch(recovery: VirtualRecovery) -> None:
        config = recovery.kafka.configs.get(ConfigResource.broker(1006), {})
        rates[round(recovery.cluster.now)] = int(config.get(FOLLOWER_RATE, "0"))

    with pytest.raises(TimeoutError):
        recovery.run(timedelta(seconds=500), watch)
    assert (rates[600 + 90] == pytest.approx(ideal, rel=0.1)) is adapts
