"""The overview and the explanation: what moves, how fast and why, as values and words."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.cluster.configs import ConfigResource
from autothrottle_client import (
    Basis,
    CatchUp,
    ClusterState,
    Cycle,
    Decision,
    ForeignThrottle,
    Outcome,
    OutcomeStatus,
    Override,
    Pause,
    PauseMode,
    Reason,
    ReassigningTopic,
    Reassignments,
    ReplicaRole,
    Throttle,
)
from autothrottle_client.explanation import explanation
from autothrottle_client.overview import Overview, overview, reason_words
from autothrottle_client.reassignments import ReassignmentPath
from autothrottle_client.tables import state_text
from autothrottle_client.top import overview_text
from tests.builders import NOON, mb

GB = 1_000_000_000
ETA = NOON + timedelta(minutes=2)

LEADER = Decision(1001, ReplicaRole.LEADER, mb(60), Reason.HEADROOM, None, mb(60), mb(40), mb(100), mb(20), 0)
FOLLOWER = Decision(
    1006, ReplicaRole.FOLLOWER, mb(34), Reason.HEADROOM, mb(30), mb(34), mb(50), mb(100), mb(11), 5, Basis.GROWTH
)
CYCLE = Cycle(
    3, 9, NOON, NOON, "interval", "1 topics in reassignment", ("orders",), (LEADER, FOLLOWER), bytes_left=5 * GB
)
STATE = ClusterState(3, "h1:8090", CYCLE, (), NOON, leader_host="h1", cluster_name="prod")
PATHS = (
    ReassignmentPath(1001, 1006, 2, 3 * GB, mb(20)),
    ReassignmentPath(1002, 1006, 1, None, None),
)
MOVING = Reassignments((ReassigningTopic("orders", (0, 1, 2), (1006,), (1000,), 3, GB, 3 * GB, ETA),), ETA, paths=PATHS)


def state(cycle: Cycle | None = CYCLE, **fields: object) -> ClusterState:
    return replace(STATE, last_cycle=cycle, **fields)  # type: ignore[arg-type]


def seen(given_state: ClusterState = STATE, reassignments: Reassignments = MOVING) -> Overview:
    return overview(given_state, reassignments, NOON)


def test_link_sides_have_their_decision_and_the_replication_of_their_flows() -> None:
    leader, silent_leader, follower = seen().sides
    assert (leader.broker, leader.role, leader.replication, leader.headroom) == (1001, "leader", mb(20), mb(60))
    assert (follower.capacity, follower.clients, follower.throttle) == (mb(100), mb(11), mb(34))
    assert (follower.replication, follower.headroom) == (mb(20), mb(69))
    assert (silent_leader.broker, silent_leader.replication, silent_leader.throttle) == (1002, None, None)
    assert silent_leader.reason == "the last cycle decided no rate for it"


def test_the_link_side_that_needs_the_longest_time_limits_the_reassignment() -> None:
    assert seen().limited_by == (
        "Broker 1006 [follower] has 3.00 GB to receive at a throttle of 34MB/s: at least 1 min 28 s"
    )


RISING = Throttle(1006, ReplicaRole.FOLLOWER, mb(10), mb(34), NOON + timedelta(seconds=22))
IN_KAFKA = replace(CYCLE, throttles=(Throttle(1001, ReplicaRole.LEADER, mb(60)), RISING), throttles_are_known=True)


def test_a_rising_throttle_is_shown_with_its_target_and_the_end_takes_the_ramp_into_account() -> None:
    """The target was shown as the throttle, and the end was computed with it."""
    current = seen(state(IN_KAFKA))
    leader, _, follower = current.sides
    assert (leader.throttle, leader.rise) == (mb(60), None)
    assert (follower.throttle, str(follower.rise)) == (mb(10), "rising to 34MB/s by 12:00:22Z")
    # 22 s at a mean of 22 MB/s copy 0.48 GB; the other 2.52 GB take 74 s.
    assert current.limited_by == (
        "Broker 1006 [follower] has 3.00 GB to receive at a throttle of 10MB/s, rising to 34MB/s by 12:00:22Z: at "
        "least 1 min 36 s"
    )
    assert explanation(state(IN_KAFKA), 1006)[0] == (
        "Broker 1006 [follower] may receive 10MB/s of replication now, rising to 34MB/s by 12:00:22Z: the policy's "
        "rate (38 % of the 89MB/s that clients leave free)."
    )


def test_a_rate_that_is_not_written_is_not_shown_as_the_throttle() -> None:
    unwritten = replace(IN_KAFKA, throttles=(Throttle(1001, ReplicaRole.LEADER, mb(5)),))
    leader, _, follower = seen(state(unwritten)).sides
    assert leader.throttle == mb(5) and leader.reason.startswith("60MB/s is decided, but not written: the policy's")
    assert follower.throttle is None and follower.reason.startswith("34MB/s is decided, but not written: the policy's")
    assert explanation(state(unwritten), 1006)[0].startswith(
        "Broker 1006 [follower] has no throttle in Kafka; 34MB/s is decided, but not written: the policy's rate"
    )


def test_throttles_without_a_decision_are_shown_during_a_pause() -> None:
    paused = state(replace(IN_KAFKA, decisions=()), pause=Pause(PauseMode.KEEP))
    assert seen(paused).sides[-1].throttle == mb(10)
    assert seen(paused).sides[-1].reason == "as before: the planner is paused"
    line = "Broker 1006 [follower] has a throttle of 10MB/s: as before: the planner is paused."
    assert line in explanation(paused, 1006)


def test_a_pause_shows_the_measurements_and_that_nothing_is_written() -> None:
    """All of them were unknown while paused. The rate in Kafka is the throttle, whatever would be decided."""
    pause = Pause(PauseMode.KEEP, "anna", NOON)
    paused = state(replace(IN_KAFKA, pause=pause, throttles=(Throttle(1001, ReplicaRole.LEADER, mb(5)),)), pause=pause)
    leader, _, follower = seen(paused).sides
    assert (leader.capacity, leader.clients, leader.headroom, leader.throttle) == (mb(100), mb(20), mb(60), mb(5))
    assert (follower.clients, follower.headroom, follower.throttle) == (mb(11), mb(69), None)
    words = "nothing is written while paused; without the pause {}MB/s: the policy's rate"
    assert leader.reason.startswith(words.format(60)) and follower.reason.startswith(words.format(34))
    text = "\n".join(explanation(paused, 1001))
    assert f"Broker 1001 [leader] may send 5MB/s of replication; {words.format(60)}" in text
    assert "the link has a capacity of 100MB/s, and clients use 20MB/s" in text and "before the cycle" not in text
    row = next(line for line in state_text(paused).splitlines() if line.startswith("1001"))
    assert row.split()[:6] == ["1001", "leader", "5MB/s", "60MB/s,", "not", "written"] and "20MB/s" in row


def test_a_throttle_of_zero_limits_without_an_end() -> None:
    stopped = replace(FOLLOWER, rate_bytes_per_second=0, reason=Reason.OVER_CAPACITY)
    words = seen(state(replace(CYCLE, decisions=(LEADER, stopped)))).limited_by
    assert words.endswith("its throttle of 0MB/s does not let it end within a year")


def test_fresh_bytes_left_and_eta_beat_those_of_the_last_cycle() -> None:
    cycle = replace(CYCLE, eta=NOON, eta_is_static=True)
    current = seen(state(cycle))
    assert (current.bytes_left, current.eta, current.eta_is_static) == (3 * GB, ETA, False)
    current = seen(state(cycle), replace(MOVING, eta=None))
    assert (current.eta, current.eta_is_static) == (NOON, True)


def test_a_finished_reassignment_shows_no_bytes_left_of_the_last_cycle() -> None:
    """The last cycle may be minutes old. Its bytes left were shown after the end of the reassignment."""
    current = seen(state(replace(CYCLE, eta=ETA)), Reassignments())
    assert (current.bytes_left, current.eta, current.topics) == (None, None, ())


def test_a_catch_up_alone_has_the_bytes_left_of_the_last_cycle() -> None:
    current = seen(state(catch_ups=(CatchUp(1004, "Anna"),)), Reassignments())
    assert current.bytes_left == 5 * GB
    assert current.catch_ups == ("Broker 1004, by Anna, catches up under a throttle",)


def test_refused_changes_and_foreign_throttles_are_findings() -> None:
    refused = Outcome(ConfigResource.broker(1006), OutcomeStatus.REFUSED, "the broker is down")
    foreign = ForeignThrottle(ConfigResource.topic("t"), "leader.replication.throttled.replicas", "*")
    current = seen(state(replace(CYCLE, findings=("one",), outcomes=(refused,), foreign_throttles=(foreign,))))
    assert current.cycle is not None
    assert current.cycle.findings == (
        "one",
        "brokers/1006 was refused: the broker is down",
        "topics/t has leader.replication.throttled.replicas=*, which others set",
    )


def test_brokers_without_metrics_are_warnings() -> None:
    assert seen(state(failures={1003: 2, 1002: 0, 1001: 1}, warnings=("w",))).warnings == (
        "w",
        "Broker 1001 has no usable metrics, 1 cycle in a row",
        "Broker 1003 has no usable metrics, 2 cycles in a row",
    )


def test_without_a_leader_and_a_cycle_everything_is_empty() -> None:
    current = overview(ClusterState(0, "", None, ()), Reassignments(), NOON)
    assert (current.leader, current.cycle, current.sides, current.limited_by) == (None, None, (), "")


@pytest.mark.parametrize("role", ReplicaRole)
@pytest.mark.parametrize("reason", [*Reason, Reason.UNKNOWN])
@pytest.mark.parametrize("basis", [*Basis, Basis.UNKNOWN, None])
def test_every_reason_and_basis_has_words(reason: Reason, basis: Basis | None, role: ReplicaRole) -> None:
    decision = replace(FOLLOWER, reason=reason, basis=basis, role=role)
    bare = Decision(1006, role, 0, reason)
    lines = explanation(state(replace(CYCLE, decisions=(decision, bare))), 1006)
    assert all(line.endswith(".") and "None" not in line and "  " not in line for line in lines)


def test_the_original_formula_shows_the_client_load_that_it_implies() -> None:
    implied = replace(FOLLOWER, client_bytes_per_second=None, client_age_seconds=None, basis=None)
    side = seen(state(replace(CYCLE, decisions=(implied,)))).sides[-1]
    assert side.clients == mb(50) - mb(30)
    assert "the measured traffic without the throttle of that time" in " ".join(
        explanation(state(replace(CYCLE, decisions=(implied,))), 1006)
    )


def test_an_unchanged_rate_names_the_policys_rate() -> None:
    unchanged = replace(FOLLOWER, reason=Reason.UNCHANGED, headroom_bytes_per_second=mb(36))
    assert reason_words(unchanged) == (
        "unchanged (38 % of the 89MB/s that clients leave free): the policy's 36MB/s differs too little to be written"
    )


def test_the_explanation_says_why_in_numbers_and_what_would_change_it() -> None:
    assert explanation(STATE, 1006) == (
        "Broker 1006 [follower] may receive 34MB/s of replication: the policy's rate (38 % of the 89MB/s that clients "
        "leave free).",
        "Broker 1006 [follower] had a throttle of 30MB/s before the cycle.",
        "Broker 1006 [follower]: the link has a capacity of 100MB/s, and clients use 11MB/s.",
        "Broker 1006 [follower]: the measured traffic is 50MB/s, with replication.",
        "Broker 1006 [follower]: the client load is measured, then updated to the time of the cycle by the growth of "
        "logs; the measurement ended 5 s before the cycle.",
        "Broker 1006 [follower]: clients leave 89MB/s free.",
        "What would change it: another client load or another amount of bytes left changes the policy's rate; set a "
        "fixed rate (throttlectl set RATE --broker 1006).",
    )


def test_an_override_a_pause_and_failures_are_explained() -> None:
    overridden = Decision(1006, ReplicaRole.FOLLOWER, mb(20), Reason.BROKER_OVERRIDE, mb(34))
    overrides = (Override(mb(90)), Override(mb(20), 1006, expire_time=ETA))
    paused = Pause(PauseMode.KEEP, "anna", NOON, "network work")
    text = "\n".join(
        explanation(
            state(replace(CYCLE, decisions=(overridden,)), overrides=overrides, pause=paused, failures={1006: 3}), 1006
        )
    )
    assert "The planner is paused, so throttles are kept as they are: keep, since 2026-11-02T12:00:00Z, by anna" in text
    assert "may receive 20MB/s of replication: set by the override of broker 1006." in text
    assert "capacity and client load are unknown, because its metrics are not usable." in text
    assert "Broker 1006 has no usable metrics, 3 cycles in a row." in text
    assert "Override of the cluster: 90MB/s; the broker's own override beats it." in text
    assert "Override of broker 1006: 20MB/s, until 2026-11-02T12:02:00Z; waits: autothrottle is paused" in text
    assert "resume the planner (throttlectl resume); remove the override (throttlectl remove --broker 1006)." in text


@pytest.mark.parametrize(
    ("cycle", "line"),
    [
        (None, "No cycle has run yet, so nothing is decided."),
        (replace(CYCLE, topics=()), "Broker 7 has no throttle: nothing is in reassignment."),
        (CYCLE, "The last cycle decided nothing for broker 7: it neither sends nor receives a reassignment."),
        (
            replace(CYCLE, error="no snapshot"),
            "The last cycle failed, and the throttles stay as they are: no snapshot.",
        ),
    ],
)
def test_a_broker_without_a_throttle_has_a_line(cycle: Cycle | None, line: str) -> None:
    assert explanation(state(cycle), 7) == (line,)


_NUMBERS = st.one_of(st.none(), st.integers(0, 2**63 - 1))


@given(_NUMBERS, _NUMBERS, _NUMBERS, _NUMBERS, st.integers(0, 2**63 - 1), st.sampled_from(list(Reason)), _NUMBERS)
def test_no_number_breaks_the_overview(
    capacity: int | None,
    clients: int | None,
    utilization: int | None,
    headroom: int | None,
    rate: int,
    reason: Reason,
    left: int | None,
) -> None:
    decision = Decision(
        1006, ReplicaRole.FOLLOWER, rate, reason, None, headroom, utilization, capacity, clients, 2**31 - 1
    )
    given_state = state(replace(CYCLE, decisions=(decision,)))
    current = seen(given_state, Reassignments(paths=(ReassignmentPath(1001, 1006, 1, left, left),)))
    assert all(side.headroom is None or side.headroom >= 0 for side in current.sides)
    assert explanation(given_state, 1006)


def test_a_destination_that_is_down_has_its_last_known_bytes_and_no_end() -> None:
    """Bytes left, end, copy rate and the limit were "unknown", and nothing said why."""
    finding = "broker 1006 is down since 2026-11-02T12:00:00Z: 3 partitions wait for it"
    cycle = replace(CYCLE, bytes_left=4 * GB, down_brokers=(1006,), findings=(finding,))
    paths = (ReassignmentPath(1001, 1006, 3, None, None),)
    current = seen(state(cycle), replace(MOVING, eta=None, paths=paths))
    assert (current.bytes_left, current.eta) == (4 * GB, None)
    assert current.limited_by == "No end while broker 1006 is down"
    assert [flow.rate for flow in current.flows] == [0]
    assert f"B{finding[1:]}." in explanation(state(cycle), 1006)
    assert "left        4.00 GB, no end while broker 1006 is down" in overview_text(current)
    assert "bytes left  4.00 GB, no end while broker 1006 is down" in state_text(state(cycle))


def test_many_brokers_without_metrics_are_one_warning() -> None:
    failing = state(failures={**dict.fromkeys(range(1001, 1301), 4), 1400: 1})
    assert seen(failing).warnings == (
        "300 brokers [1001-1300] have no usable metrics, 4 cycles in a row",
        "Broker 1400 has no usable metrics, 1 cycle in a row",
    )
    assert "failing     300 brokers [1001-1300]: no usable metrics, 4 in a row" in state_text(failing)
