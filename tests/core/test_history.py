"""Which throttle stood over which interval."""

from datetime import UTC, datetime, timedelta

from autothrottle.core.configs import ReplicaRole
from autothrottle.core.history import ThrottleHistory
from autothrottle.core.loads import Port
from tests import builders

LEADER, FOLLOWER = ReplicaRole.LEADER, ReplicaRole.FOLLOWER
PORT: Port = (1, LEADER)


def at(second: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


def observed(*steps: tuple[float, int]) -> ThrottleHistory:
    history = ThrottleHistory()
    for second, rate in steps:
        history = history.observe(at(second), {PORT: rate} if rate else {})
    return history


def mean(history: ThrottleHistory, start: float, end: float, standing: int | None = None) -> int:
    return history.mean(*PORT, at(start), at(end), standing)


def test_the_mean_is_weighted_by_time() -> None:
    history = observed((0, 100), (90, 20))
    assert mean(history, 60, 180) == (30 * 100 + 90 * 20) // 120


def test_an_interval_before_a_raise_knows_nothing_of_it() -> None:
    # The original subtracts the newest throttle from an older measurement, and the rates swing by 30 %.
    assert mean(observed((0, 100), (120, 500)), 0, 120) == 100


def test_an_interval_after_the_last_step_has_its_value() -> None:
    assert mean(observed((0, 100), (60, 40)), 100, 200) == 40


def test_three_steps_within_one_interval_all_count() -> None:
    assert mean(observed((0, 10), (10, 20), (20, 60)), 0, 30) == 30


def test_before_the_first_observation_what_it_saw_stood() -> None:
    assert mean(observed((100, 50)), 0, 60) == 50
    assert mean(observed((100, 50), (150, 90)), 0, 200) == (150 * 50 + 50 * 90) // 200


def test_a_port_that_comes_later_had_no_throttle_before() -> None:
    # A broker that joins a move in its tenth minute was not throttled in the ninth: to say so would take its
    # clients' traffic for replication.
    history = ThrottleHistory().observe(at(0), {}).observe(at(100), {PORT: 60})
    assert mean(history, 40, 100) == 0
    assert mean(history, 40, 160) == 30


def test_without_any_observation_what_stands_has_always_stood() -> None:
    assert mean(ThrottleHistory(), 0, 60, standing=70) == 70
    assert mean(ThrottleHistory(), 0, 60) == 0


def test_a_port_that_was_never_seen_to_have_a_throttle_had_none() -> None:
    assert mean(ThrottleHistory().observe(at(0), {}), 0, 60, standing=70) == 0


def test_an_interval_of_no_length_has_the_value_of_its_moment() -> None:
    history = observed((0, 100), (60, 20))
    assert mean(history, 60, 60) == 20
    assert mean(history, 59, 59) == 100
    assert mean(history, 70, 65) == 20


def test_a_port_that_is_not_seen_any_more_has_no_throttle() -> None:
    assert mean(observed((0, 100), (60, 0)), 60, 120) == 0


def test_roles_and_brokers_are_apart() -> None:
    history = observed((0, 100))
    assert history.mean(1, FOLLOWER, at(0), at(60), None) == 0
    assert history.mean(2, LEADER, at(0), at(60), None) == 0


def test_an_unchanged_rate_adds_no_step() -> None:
    assert len(observed((0, 100), (60, 100), (120, 100)).steps[PORT]) == 1


def test_steps_are_forgotten_after_the_horizon_but_the_standing_one_stays() -> None:
    history = observed((0, 100), (60, 200), (120, 300), (4000, 300))
    assert history.steps[PORT] == ((at(120), 300),)
    assert mean(history, 3900, 4000) == 300


def test_a_port_without_throttle_is_forgotten_after_the_horizon() -> None:
    history = observed((0, 100), (60, 0), (4000, 0))
    assert history.steps == {}
    assert mean(history, 3900, 4000, standing=5) == 0


def test_an_observation_leaves_the_older_history_as_it_was() -> None:
    older = observed((0, 100))
    older.observe(at(60), {PORT: 7})
    assert mean(older, 60, 120) == 100


def doubt(history: ThrottleHistory, start: float, end: float) -> int:
    return history.doubt(*PORT, at(start), at(end))


def test_a_change_leaves_a_short_measurement_in_doubt_and_a_long_one_hardly() -> None:
    history = observed((0, 60), (100, 160))
    assert doubt(history, 95, 106) == 100
    assert doubt(history, 95, 205) == 10


def test_a_lowering_is_as_doubtful_as_a_raise_and_doubts_add_up() -> None:
    assert doubt(observed((0, 60), (100, 160), (105, 60)), 95, 106) == 200


def test_a_change_is_felt_for_a_quota_window_and_no_longer() -> None:
    history = observed((0, 60), (100, 160))
    assert doubt(history, 110, 121) == 100
    assert doubt(history, 111, 122) == 0
    assert doubt(history, 80, 99) == 0


def test_what_was_never_seen_is_beyond_doubt() -> None:
    assert doubt(ThrottleHistory(), 0, 10) == 0


def unthrottled(history: ThrottleHistory, start: float, end: float) -> bool:
    return history.was_unthrottled(*PORT, at(start), at(end))


def test_a_move_is_unthrottled_from_a_moment_before_it_is_seen_until_its_throttle_stands() -> None:
    history = ThrottleHistory().observe(at(0), {}).observe(at(100), {}, [PORT]).observe(at(101), {PORT: 60}, [PORT])
    history = history.observe(at(150), {PORT: 70}, [PORT])
    assert [unthrottled(history, *interval) for interval in ((90, 97), (90, 98), (100, 101), (101, 110))] == [
        False,
        True,
        True,
        False,
    ]


def test_a_throttle_that_was_not_written_leaves_a_move_unthrottled() -> None:
    history = ThrottleHistory().observe(at(0), {}).observe(at(100), {}, [PORT]).observe(at(200), {}, [PORT])
    assert unthrottled(history, 150, 160)


def test_a_users_rate_throttles_no_move_before_its_lists_stand() -> None:
    history = ThrottleHistory().observe(at(0), {PORT: 50}).observe(at(100), {PORT: 50}, [PORT])
    assert unthrottled(history, 99, 105)
    assert not unthrottled(history.observe(at(101), {PORT: 60}, [PORT]), 101, 105)


def test_a_new_leader_takes_a_move_under_a_throttle_for_a_throttled_one() -> None:
    assert not unthrottled(ThrottleHistory().observe(at(100), {PORT: 50}, [PORT]), 0, 200)


def test_a_port_that_moves_no_more_is_unthrottled_no_more() -> None:
    history = ThrottleHistory().observe(at(0), {}).observe(at(100), {}, [PORT]).observe(at(110), {})
    assert not unthrottled(history, 95, 110)


def test_what_was_measured_where_nothing_moved_is_remembered_and_nothing_else_is() -> None:
    loads = builders.loads(builders.load(1, tx=30, rx=20, end=at(100)))
    history = ThrottleHistory().observe(at(0), {}).measured(loads, ())
    assert history.idle_loads == {(1, LEADER): 30, (1, FOLLOWER): 20}
    later = builders.loads(builders.load(1, tx=300, rx=200, end=at(200)))
    assert history.measured(later, [PORT]).idle_loads == {(1, LEADER): 30, (1, FOLLOWER): 200}
    throttled = history.observe(at(150), {PORT: 60}).observe(at(190), {})
    assert throttled.measured(later, ()).idle_loads == {(1, LEADER): 30, (1, FOLLOWER): 200}
