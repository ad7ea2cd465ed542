"""`autothrottle simulate`: moves whose answers are known beforehand, and files that make no sense."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from autothrottle.__main__ import main
from autothrottle.adapters.decision_log import DecisionLog, LogLimits
from autothrottle.core.client_traffic import ClientTraffic, TrafficStep
from autothrottle.core.configs import FOLLOWER_RATE, LEADER_RATE, ConfigResource, ReplicaRole
from autothrottle.core.loads import Capacity
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.headroom import HeadroomPolicy
from autothrottle.core.policy.interface import Policy
from autothrottle.core.policy.static import StaticPolicy
from autothrottle.core.simulated_link import Contention, Sharing
from autothrottle.lab.recording import Outcome, Recording, bound
from autothrottle.lab.scenario_file import read_scenario
from autothrottle.lab.simulate import configure, play, scenario_of
from autothrottle.lab.virtual import (
    Happening,
    VirtualBroker,
    VirtualEvent,
    VirtualMove,
    VirtualRecovery,
    VirtualScenario,
)
from tests.builders import limits, mb

EXAMPLE = Path(__file__).parents[2] / "deploy" / "scenario.toml"
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


pytestmark = pytest.mark.usefixtures("no_options_of_the_machine")


def file(directory: Path, *changes: tuple[str, str]) -> str:
    """The path of the good scenario with some of its text replaced."""
    text = GOOD
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = directory / "move.toml"
    path.write_text(text)
    return str(path)


def shown(text: str) -> dict[str, str]:
    """What is printed above the table of ports: name -> value."""
    rows = [line for line in text.split("\n\n")[0].splitlines() if not line.startswith("plot: ")]
    return {line[:24].strip(): line[24:] for line in rows}


def replacement(traffic: ClientTraffic, size: float, produce: int = 0) -> VirtualScenario:
    """One partition that 1006 copies from 1001, whose link clients use like that."""
    brokers = {
        1001: VirtualBroker(LINK, traffic),
        1002: VirtualBroker(LINK, ClientTraffic()),
        1006: VirtualBroker(LINK, ClientTraffic()),
    }
    move = VirtualMove("t", 0, size, (1001, 1002), (1001, 1002, 1006), produce)
    return VirtualScenario(brokers, [move], limits(), metrics_window=timedelta(seconds=12), traffic_waits=True)


def test_a_static_throttle_at_90_percent_takes_what_the_closed_form_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "move.svg"
    assert main(["simulate", file(tmp_path), "--plot", str(plot)]) == 0
    said = capsys.readouterr().out
    rows = shown(said)
    assert rows["policy"] == "static"
    assert rows["bound"].startswith("120.0 s")
    assert float(rows["makespan"].split()[0]) == pytest.approx(120, rel=0.15)
    assert float(rows["makespan / bound"]) == pytest.approx(1, abs=0.15)
    assert rows["copied"] == "6.48 GB"
    sender, receiver = (line.split() for line in said.splitlines() if " sends " in line or " receives " in line)
    assert sender[:4] == ["1001", "sends", "100", "6.48"]
    assert receiver[:4] == ["1006", "receives", "100", "6.48"]
    assert sender[6:9] == receiver[6:9] == ["54.0", "to", "54.0"]
    titles = [one.text for one in ElementTree.fromstring(plot.read_text()).iter() if one.get("font-weight") == "bold"]
    assert titles == ["1001 sends", "1006 receives"]


def test_a_flag_beats_the_scenario_and_policies_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Clients take 60 of 100 MB/s after half a minute: a static 54 costs them bytes, the headroom formula less.
    rising = file(tmp_path, ("{ tx = 40, rx = 20 }", "{ tx = 40, rx = 20 }, { at = 30, tx = 60, rx = 20 }"))
    found = {}
    for policy in ("static", "headroom"):
        assert main(["simulate", rising, "--policy", policy, "--interval=20"]) == 0
        found[policy] = shown(capsys.readouterr().out)
        assert found[policy]["policy"] == policy
    deferred = {
        policy: float(rows["client bytes deferred"].split()[0].replace(",", "")) for policy, rows in found.items()
    }
    assert 0 < deferred["headroom"] < 0.9 * deferred["static"]
    makespan = {policy: float(rows["makespan"].split()[0]) for policy, rows in found.items()}
    assert makespan["headroom"] > 1.1 * makespan["static"]
    assert found["static"]["bound"] == found["headroom"]["bound"]


def test_the_bound_counts_growth_and_what_in_sync_followers_copy() -> None:
    # 10 MB/s of 100 for clients, 5 for the in-sync follower: 0.9 of 85 is 76.5, and 5 are added meanwhile.
    scenario = replacement(ClientTraffic.constant(mb(10), mb(10)), mb(71.5) * 100, mb(5))
    assert bound(scenario) == pytest.approx(100)
    falling = ClientTraffic((TrafficStep(0, mb(60), 0), TrafficStep(50, mb(10), 0)))
    assert bound(replacement(falling, mb(36) * 50 + mb(81) * 30)) == pytest.approx(80)


def test_what_clients_alone_cannot_get_is_not_the_moves_fault() -> None:
    overloaded = ClientTraffic((TrafficStep(0, mb(50), 0), TrafficStep(5, mb(130), 0), TrafficStep(15, mb(20), 0)))
    scenario = replace(replacement(overloaded, mb(1) * 40), policy=StaticPolicy(mb(1)))
    recording, recovery = Recording(scenario), VirtualRecovery(scenario)
    outcome = recording.outcome(recovery, recovery.run(watch=recording.watch))
    port = recovery.brokers.brokers[1001].tx
    assert port.client_deferred >= mb(300)
    deferred = outcome.ports[1001, ReplicaRole.LEADER].deferred
    assert 0 < deferred <= mb(60)
    assert outcome.ports[1001, ReplicaRole.LEADER].saturated_seconds >= 10


def test_when_a_leader_fails_the_next_one_is_throttled_at_once_and_takes_part() -> None:
    scenario = replace(
        replacement(ClientTraffic.constant(mb(20), mb(20)), mb(6_000)),
        events=[VirtualEvent(timedelta(seconds=30), 1001, Happening.FAILS)],
        interval=timedelta(seconds=60),
    )
    recording, recovery = Recording(scenario), VirtualRecovery(scenario)
    seen: dict[int, str | None] = {}

    def watch(watched: VirtualRecovery) -> None:
        recording.watch(watched)
        config = watched.kafka.configs.get(ConfigResource.broker(1002), {})
        seen[round(watched.brokers.now - watched.start)] = config.get(LEADER_RATE)

    outcome = recording.outcome(recovery, recovery.run(watch=watch))
    assert seen[29] is None
    assert int(seen[32] or 0) >= mb(50)
    assert recovery.kafka.topics["t"][0].leader == 1002
    moved = {broker_id: one.moved for (broker_id, role), one in outcome.ports.items() if role is ReplicaRole.LEADER}
    assert moved[1001] + moved[1002] == pytest.approx(mb(6_000))
    assert moved[1001] < 0.6 * mb(6_000) < 6 * moved[1002]


def test_a_destination_that_fails_and_returns_takes_that_much_longer() -> None:
    calm = replace(replacement(ClientTraffic.constant(mb(20), 0), mb(6_000)), policy=HeadroomPolicy())
    fails = VirtualEvent(timedelta(seconds=30), 1006, Happening.FAILS)
    returns = VirtualEvent(timedelta(seconds=90), 1006, Happening.RETURNS)
    hour = timedelta(hours=1)
    longer = play(replace(calm, events=[fails, returns]), hour).seconds - play(calm, hour).seconds
    assert longer == pytest.approx(60, abs=10)
    with pytest.raises(TimeoutError):
        play(replace(calm, events=[fails]), timedelta(minutes=5))


def test_events_fetchers_and_contention_of_a_file_are_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = '[[event]]\nat = 60\nbroker = 1006\nwhat = "returns"\n[[event]]\nat = 50\nbroker = 1006\nwhat = "fails"\n'
    top = '= 5\ncontention = "clients-first"\nclient-connections = 9\nfetcher-rate = 27\n[pl'
    path = file(tmp_path, ("[[move]]", f"{events}[[move]]"), ("= 5\n[pl", top))
    read = read_scenario(Path(path))
    assert [(one.at.total_seconds(), one.what) for one in read.events] == [
        (50, Happening.FAILS),
        (60, Happening.RETURNS),
    ]
    assert read.sharing == Sharing(Contention.CLIENTS_FIRST, 9, mb(27))
    assert main(["simulate", path]) == 0
    rows = shown(capsys.readouterr().out)
    assert rows["bound"].startswith("240.0 s")
    assert rows["bound"].endswith("had no broker failed, returned or taken the lead)")
    assert float(rows["makespan"].split()[0]) == pytest.approx(250, abs=5)


def test_equal_scenarios_have_equal_outcomes_whoever_joins_first() -> None:
    def played() -> Outcome:
        brokers = {b: VirtualBroker(LINK, ClientTraffic.constant(mb(20), mb(20))) for b in (1, 2, 3, 4)}
        moves = [
            VirtualMove("a", 0, mb(300), (1, 2), (3, 4)),
            VirtualMove("b", 0, mb(900), (2, 9), (2, 1, 4)),
        ]
        return play(VirtualScenario(brokers, moves, limits(), metrics_window=timedelta(seconds=12)), timedelta(hours=1))

    first = played()
    assert first == played()
    moved = {key: round(port.moved / mb(1)) for key, port in first.ports.items()}
    assert moved == {
        (1, ReplicaRole.LEADER): 600,
        (1, ReplicaRole.FOLLOWER): 900,
        (2, ReplicaRole.LEADER): 1800,
        (3, ReplicaRole.FOLLOWER): 300,
        (4, ReplicaRole.FOLLOWER): 1200,
    }


def test_a_logged_move_played_again_takes_as_long(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Clients leave in two steps while it moves; the first one is in no metric when it starts.
    falling = ClientTraffic((TrafficStep(0, mb(10), mb(70)), TrafficStep(60, 0, mb(50)), TrafficStep(150, 0, mb(20))))
    brokers = {1: VirtualBroker(LINK, ClientTraffic.constant(mb(20), 0)), 2: VirtualBroker(LINK, falling)}
    move = VirtualMove("t", 0, mb(9000), (1,), (1, 2), mb(1))
    second = timedelta(seconds=1)
    scenario = VirtualScenario(
        brokers, [move], limits(max_tx_ratio=0.8), interval=20 * second, metrics_window=20 * second, traffic_waits=True
    )
    with DecisionLog(str(tmp_path / "log"), limits=LogLimits(patience=timedelta(minutes=3))) as log:
        took = VirtualRecovery(scenario, log, "lab").run()
    assert main(["simulate", "--from-decisions", str(tmp_path / "log")]) == 0
    path = tmp_path / "again.toml"
    path.write_text(capsys.readouterr().out)
    read = read_scenario(path)
    assert sum(one.size + one.produce_rate * took for one in read.moves) == pytest.approx(mb(9000 + took), rel=0.01)
    assert [round(step.rx / mb(10)) for step in read.brokers[2].traffic.steps][-1] == 2
    again = scenario_of(read, configure(read, [], {}))
    assert (again.limits.max_tx_ratio, again.limits.max_rx_ratio, again.interval) == (0.8, 0.9, 20 * second)
    assert play(again, timedelta(hours=1)).seconds == pytest.approx(took, rel=0.1)


def test_a_log_without_such_a_move_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--from-decisions", str(tmp_path)]) == 1
    assert "holds no decision log. Fix: " in capsys.readouterr().err
    (tmp_path / "reassignments").mkdir()
    (tmp_path / "reassignments" / "torn.parquet").write_bytes(b"PAR1")
    assert main(["simulate", "--from-decisions", str(tmp_path), "--reassignment", "lab/1/1"]) == 1
    assert "the reassignment 'lab/1/1'; it knows those of: none" in capsys.readouterr().err


def test_the_example_is_accepted_and_what_it_has_commented_out_is_the_default(tmp_path: Path) -> None:
    read = read_scenario(EXAMPLE)
    assert len(read.moves) == 20
    assert {move.partition for move in read.moves if move.topic == "orders"} == set(range(12))
    text = EXAMPLE.read_text()
    path = tmp_path / "all.toml"
    for key in ("metrics-delay", "step", "longest", "begin", "contention", "client-connections"):
        assert f"\n# {key} = " in text
        text = text.replace(f"\n# {key} = ", f"\n{key} = ")
    path.write_text(text)
    assert replace(read_scenario(path), name=read.name) == read


def test_a_configuration_file_and_the_environment_beat_the_scenario(tmp_path: Path) -> None:
    read = read_scenario(EXAMPLE)
    config = tmp_path / "autothrottle.toml"
    config.write_text('interval = 45\nzk-addr = ["zk1:2181"]\n')
    given = configure(read, ["--config", str(config), "--max-rate=70"], {"AUTOTHROTTLE_POLICY": "headroom"})
    scenario = scenario_of(read, given)
    assert (scenario.policy.name, scenario.interval.total_seconds(), scenario.limits.max_tx_ratio) == (
        "headroom",
        45,
        0.7,
    )
    plain = scenario_of(read, configure(read, [], {}))
    assert (plain.policy.name, plain.interval.total_seconds(), plain.limits.max_tx_ratio) == ("adaptive", 60, 0.9)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("metrics-delay", "metrics-dely", "'metrics-dely' is no key of it"),
        ("metrics-delay", "metrics-dely", "did you mean metrics-delay?"),
        ("= 5\n", "= -5\n", "metrics-delay is -5; it must be a number of seconds, >= 0 and <= 3600"),
        ("= 5\n", "= 5\nstep = 3\n", "step is 3; it must be a number of seconds, >= 0.01 and <= 0.2"),
        ("= 5\n", "= 5\nbegin = 2026-11-02\n", "it must be a time with its zone"),
        ("= 5\n", "= 5\nbegin = 9999-12-31T23:59:59Z\n", "of the years 1971 to 8999"),
        ("= 5\n", "= 5\nbegin = 0001-01-01T00:00:00Z\n", "of the years 1971 to 8999"),
        ('policy = "static"', 'polcy = "static"', "planner of move.toml: 'polcy' is no key of it"),
        ('policy = "static"', 'policy = "fast"', "policy: 'fast' (key of planner in move.toml) is not one of them"),
        ("capacity = 100\ntraffic = [{ rx", "capacity = 0\ntraffic = [{ rx", "broker 2 of move.toml: capacity is 0"),
        ("capacity = 100\ntraffic = [{ rx", "traffic = [{ rx", "broker 2 of move.toml: capacity is not given"),
        ("id = 1006", "id = 1002", "broker 1002 is there twice"),
        ("id = 1006", 'id = "x"', "id is 'x'; it must be a list of broker ids"),
        ("{ rx = 40 }", "{ rx = true }", "traffic 1 of broker 2 of move.toml: rx is True"),
        ("{ rx = 40 }", "{ rx = 40 }, { rx = 50 }", "at is not given; it must be later than the step before, 0"),
        ("megabytes = 3240", "megabytes = nan", "megabytes is nan"),
        ("megabytes = 3240", "", "megabytes is not given; it must be a number of MB of each partition"),
        ("partitions = 2", "partitions = 2.5", "partitions is 2.5; it must be an integer"),
        ("partitions = 2", "partitions = 5001", "it must be a number of partitions, >= 1 and <= 5000"),
        ('"orders"', "3", "topic is 3; it must be a name"),
        ("replicas = [1001, 1000]", "replicas = [1000]", "at least one of the brokers [1001, 1002, 1006]"),
        ("to = [1001, 1006]", "to = [1001, 1007]", "to is [1001, 1007]; it must be of the brokers"),
        ("to = [1001, 1006]", "to = [1001]", "one of them at least not among the replicas"),
        ("[[move]]", "[[moves]]", "did you mean move?"),
        ("[[move]]", "[[move", "is no TOML"),
        ("[[move]]", "a = " + "[" * 5_000, "is no TOML: maximum recursion depth exceeded"),
        ("= 5\n", '= 5\ncontention = "tcp"\n', "it must be one of proportional, connections, clients-first"),
        ("= 5\n", "= 5\nclient-connections = 0\n", "client-connections is 0; it must be a number of connections"),
        ("= 5\n", "= 5\nclient-connections = 1.5\n", "client-connections is 1.5; it must be an integer"),
        ("= 5\n", "= 5\nfetcher-rate = 0\n", "fetcher-rate is 0; it must be a number of MB/s, >= 0.001"),
        ("[[move]]", "[[event]]\nat = 9\nbroker = 9\n[[move]]", "broker is 9; it must be one of the brokers [1001,"),
        ("[[move]]", '[[event]]\nbroker = 1006\nwhat = "fails"\n[[move]]', "at is not given"),
        ("[[move]]", "[[event]]\nat = 9\nbroker = 1006\n[[move]]", "one of fails, returns, leads"),
        (
            "[[move]]",
            '[[event]]\nat = 9\nbroker = 1006\nwhat = "returns"\n[[move]]',
            "what is 'returns'; it must be something that can happen to a broker that is up",
        ),
    ],
)
def test_a_scenario_that_makes_no_sense_is_refused_with_value_range_and_fix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, said: str
) -> None:
    assert main(["simulate", file(tmp_path, (old, new))]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert said in told.err
    assert "Fix: " in told.err or "give MB/s" in told.err


def test_a_command_line_that_makes_no_sense_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = file(tmp_path)
    for arguments, said in (
        ([], "Usage: autothrottle simulate"),
        (["--policy", "static", good], "the scenario comes first"),
        ([str(tmp_path / "none.toml")], "cannot be read: No such file or directory"),
        ([good, "--policy", "fast"], "'fast' (flag --policy)"),
        ([good, "--intervall", "9"], "intervall"),
        ([good, "--zk-addr", "zk1:2181"], "--zk-addr means nothing in a simulation"),
        ([good, "--plot", "move.png"], "the name of an SVG file"),
        ([good, "--plot", str(tmp_path / "none" / "move.svg")], "cannot be written"),
    ):
        assert main(["simulate", *arguments]) == 2
        assert said in capsys.readouterr().err
    assert main(["simulate", "--help"]) == 0
    told = capsys.readouterr().out
    assert "--change-threshold" in told
    assert "--zk-addr" not in told


def test_a_move_that_never_ends_is_given_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # More is produced than the throttle lets through.
    endless = file(
        tmp_path, ("megabytes = 3240", "megabytes = 10\nproduce = 5"), ("= 5\n[pl", "= 5\nlongest = 0.02\n[pl")
    )
    plot = tmp_path / "move.svg"
    assert main(["simulate", endless, "--static-rate=2", "--plot", str(plot)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("simulate: it has not ended after 0.02 h, and 0.")
    assert said.endswith(" GB are left. Fix: give more throttle, or a larger 'longest' in the scenario\n")
    assert not plot.exists()


def test_it_ends_quietly_when_nobody_reads_what_it_prints() -> None:
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


@pytest.mark.parametrize("policy", [HeadroomPolicy(), AdaptivePolicy()], ids=["headroom", "adaptive"])
def test_one_destination_whose_link_clients_fill_does_not_slow_the_flows_to_the_others(policy: Policy) -> None:
    def copied_to_the_others(clients: int) -> float:
        """Bytes within a minute while clients write so many MB/s to 1006."""
        traffic = {b: ClientTraffic.constant(mb(40), mb(20)) for b in (1001, 1002, 1003, 1004, 1005)}
        traffic[1006] = ClientTraffic.constant(mb(5), mb(clients))
        brokers = {b: VirtualBroker(LINK, one) for b, one in traffic.items()}
        pairs = [(leader, follower) for leader in (1001, 1002, 1003) for follower in (1004, 1005, 1006)]
        moves = [VirtualMove("t", n, mb(9_000), (a,), (a, b)) for n, (a, b) in enumerate(pairs)]
        timing = timedelta(seconds=10)
        recovery = VirtualRecovery(
            VirtualScenario(brokers, moves, limits(), policy, interval=timing, metrics_window=timing)
        )
        with pytest.raises(TimeoutError):
            recovery.run(timedelta(seconds=60))
        partitions = recovery.brokers.partitions.values()
        return sum(partition.landed.get(b, 0.0) for partition in partitions for b in (1004, 1005))

    assert copied_to_the_others(clients=95) >= 0.95 * copied_to_the_others(clients=20)


@pytest.mark.parametrize(("policy", "follows"), [(AdaptivePolicy(), True), (HeadroomPolicy(), False)])
def test_adaptive_is_played_with_the_growth_of_logs_and_knows_a_step_before_metrics_do(
    policy: Policy, follows: bool
) -> None:
    # Half as much is written to the destination from minute 10 on; a metric of that minute comes four minutes later.
    steps = (TrafficStep(0, 0, mb(50)), TrafficStep(600, 0, mb(25)))
    brokers = {1001: VirtualBroker(LINK, ClientTraffic()), 1006: VirtualBroker(LINK, ClientTraffic(steps))}
    moves = [VirtualMove("t", 0, mb(90_000), (1001,), (1001, 1006))]
    late, interval = timedelta(seconds=120), timedelta(seconds=30)
    recovery = VirtualRecovery(
        VirtualScenario(brokers, moves, limits(), policy, interval, metrics_window=late, metrics_delay=late)
    )
    ideal, rates = 0.9 * mb(75), dict[int, int]()

    def watch(seen: VirtualRecovery) -> None:
        config = seen.kafka.configs.get(ConfigResource.broker(1006), {})
        rates[round(seen.brokers.now)] = int(config.get(FOLLOWER_RATE, "0"))

    with pytest.raises(TimeoutError):
        recovery.run(timedelta(seconds=500), watch)
    assert (rates[600 + 90] == pytest.approx(ideal, rel=0.1)) is follows
