"""The mean throttle over an interval."""

from datetime import UTC, datetime, timedelta

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import LinkSide
from autothrottle.core.traffic.replication import ThrottleHistory
from tests import builders

LEADER, FOLLOWER = ReplicaRole.LEADER, ReplicaRole.FOLLOWER
SIDE: LinkSide = (1, LEADER)


def at(second: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


def observed(*steps: tuple[float, int]) -> ThrottleHistory:
    history = ThrottleHistory()
    for second, rate in steps:
        history = history.observe(at(second), {SIDE: rate} if rate else {})
    return history


def mean(history: ThrottleHistory, start: float, end: float, current: int | None = None) -> int:
    return history.mean(*SIDE, at(start), at(end), current)


def test_mean_is_weighted_by_time() -> None:
    history = observed((0, 100), (90, 20))
    assert mean(history, 60, 180) == (30 * 100 + 90 * 20) // 120


def test_interval_before_a_raise_is_not_affected_by_it() -> None:
    # The original subtracts the newest throttle from an older measurement, and its rates oscillate by 30 %.
    assert mean(observed((0, 100), (120, 500)), 0, 120) == 100


def test_interval_after_the_last_step_has_its_value() -> None:
    assert mean(observed((0, 100), (60, 40)), 100, 200) == 40


def test_three_steps_within_one_interval_all_count() -> None:
    assert mean(observed((0, 10), (10, 20), (20, 60)), 0, 30) == 30


def test_first_observed_throttle_also_counts_for_the_time_before() -> None:
    assert mean(observed((100, 50)), 0, 60) == 50
    assert mean(observed((100, 50), (150, 90)), 0, 200) == (150 * 50 + 50 * 90) // 200


def test_link_side_first_seen_later_had_no_throttle_before() -> None:
    # A broker that joins a reassignment in its tenth minute was not throttled in the ninth. Otherwise its client
    # load would count as replication.
    history = ThrottleHistory().observe(at(0), {}).observe(at(100), {SIDE: 60})
    assert mean(history, 40, 100) == 0
    assert mean(history, 40, 160) == 30


def test_without_observations_the_current_throttle_counts_for_all_time() -> None:
    assert mean(ThrottleHistory(), 0, 60, current=70) == 70
    assert mean(ThrottleHistory(), 0, 60) == 0


def test_link_side_never_seen_with_a_throttle_had_none() -> None:
    assert mean(ThrottleHistory().observe(at(0), {}), 0, 60, current=70) == 0


def test_interval_of_zero_length_has_the_value_of_its_time() -> None:
    history = observed((0, 100), (60, 20))
    assert mean(history, 60, 60) == 20
    assert mean(history, 59, 59) == 100
    assert mean(history, 70, 65) == 20


def test_link_side_no_longer_seen_has_no_throttle() -> None:
    assert mean(observed((0, 100), (60, 0)), 60, 120) == 0


def test_roles_and_brokers_are_separate() -> None:
    history = observed((0, 100))
    assert history.mean(1, FOLLOWER, at(0), at(60), None) == 0
    assert history.mean(2, LEADER, at(0), at(60), None) == 0


def test_unchanged_rate_adds_no_step() -> None:
    assert len(observed((0, 100), (60, 100), (120, 100)).steps[SIDE]) == 1


def test_steps_expire_after_the_horizon_but_the_current_one_stays() -> None:
    history = observed((0, 100), (60, 200), (120, 300), (4000, 300))
    assert history.steps[SIDE] == ((at(120), 300),)
    assert mean(history, 3900, 4000) == 300


def test_link_side_without_throttle_expires_after_the_horizon() -> None:
    history = observed((0, 100), (60, 0), (4000, 0))
    assert history.steps == {}
    assert mean(history, 3900, 4000, current=5) == 0


def test_observation_leaves_the_older_history_unchanged() -> None:
    older = observed((0, 100))
    older.observe(at(60), {SIDE: 7})
    assert mean(older, 60, 120) == 100


def doubt(history: ThrottleHistory, start: float, end: float) -> int:
    return history.doubt(*SIDE, at(start), at(end))


def test_change_makes_a_short_measurement_uncertain_and_a_long_one_hardly() -> None:
    history = observed((0, 60), (100, 160))
    assert doubt(history, 95, 106) == 100
    assert doubt(history, 95, 205) == 10


def test_lowering_is_as_uncertain_as_a_raise_and_uncertainties_add_up() -> None:
    assert doubt(observed((0, 60), (100, 160), (105, 60)), 95, 106) == 200


def test_change_affects_measurements_for_one_quota_window() -> None:
    history = observed((0, 60), (100, 160))
    assert doubt(history, 110, 121) == 100
    assert doubt(history, 111, 122) == 0
    assert doubt(history, 80, 99) == 0


def test_link_side_never_seen_has_no_uncertainty() -> None:
    assert doubt(ThrottleHistory(), 0, 10) == 0


def unthrottled(history: ThrottleHistory, start: float, end: float) -> bool:
    return history.was_unthrottled(*SIDE, at(start), at(end))


def test_reassignment_is_unthrottled_from_before_it_is_seen_until_its_throttle() -> None:
    history = ThrottleHistory().observe(at(0), {}).observe(at(100), {}, [SIDE]).observe(at(101), {SIDE: 60}, [SIDE])
    history = history.observe(at(150), {SIDE: 70}, [SIDE])
    assert [unthrottled(history, *interval) for interval in ((90, 97), (90, 98), (100, 101), (101, 110))] == [
        False,
        True,
        True,
        False,
    ]


def test_failed_throttle_write_leaves_the_reassignment_unthrottled() -> None:
    history = ThrottleHistory().observe(at(0), {}).observe(at(100), {}, [SIDE]).observe(at(200), {}, [SIDE])
    assert unthrottled(history, 150, 160)


def test_foreign_rate_throttles_no_reassignment_before_its_lists_are_set() -> None:
    history = ThrottleHistory().observe(at(0), {SIDE: 50}).observe(at(100), {SIDE: 50}, [SIDE])
    assert unthrottled(history, 99, 105)
    assert not unthrottled(history.observe(at(101), {SIDE: 60}, [SIDE]), 101, 105)


def test_new_leader_treats_a_throttled_reassignment_as_throttled() -> None:
    assert not unthrottled(ThrottleHistory().observe(at(100), {SIDE: 50}, [SIDE]), 0, 200)


def test_link_side_without_reassignment_is_no_longer_unthrottled() -> None:
    history = ThrottleHistory().observe(at(0), {}).observe(at(100), {}, [SIDE]).observe(at(110), {})
    assert not unthrottled(history, 95, 110)


def test_idle_loads_are_stored_only_without_reassignment_and_throttle() -> None:
    loads = builders.loads(builders.load(1, outbound=30, inbound=20, end=at(100)))
    history = ThrottleHistory().observe(at(0), {}).measured(loads, ())
    assert [history.idle_load((1, role)) for role in (LEADER, FOLLOWER)] == [30, 20]
    later = builders.loads(builders.load(1, outbound=300, inbound=200, end=at(200)))
    busy = history.measured(later, [SIDE])
    assert [busy.idle_load((1, role)) for role in (LEADER, FOLLOWER)] == [30, 200]
    throttled = history.observe(at(150), {SIDE: 60}).observe(at(190), {})
    after_throttle = throttled.measured(later, ())
    assert [after_throttle.idle_load((1, role)) for role in (LEADER, FOLLOWER)] == [30, 200]


def test_a_measurement_from_just_before_a_reassignment_is_seen_is_no_idle_load() -> None:
    """Loads that were read after the first copies, in a cycle that did not see them yet, counted as client load."""
    before = builders.loads(builders.load(1, outbound=30, inbound=20, end=at(90)))
    with_copies = builders.loads(builders.load(1, outbound=3000, inbound=20, end=at(99)))
    history = ThrottleHistory().observe(at(90), {}).measured(before, ()).observe(at(99), {}).measured(with_copies, ())
    assert history.observe(at(100), {}, [SIDE]).idle_load(SIDE) == 30
    assert (
        ThrottleHistory().observe(at(99), {}).measured(with_copies, ()).observe(at(100), {}, [SIDE]).idle_load(SIDE)
        is None
    )
