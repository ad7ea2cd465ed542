"""Which cancellations are safe."""

from __future__ import annotations

import pytest

from autothrottle.core.cluster.snapshot import Assignment
from autothrottle.core.operators.cancellation import CancelRule, without_reassignment

ROW = ("orders", 7)
ALL = (1, 2, 3, 4, 5, 6)


def move(
    isr: tuple[int, ...], originals: tuple[int, ...] = (1, 2, 3), target: tuple[int, ...] = (4, 5, 6)
) -> Assignment:
    """A partition whose reassignment from the originals to the target is in progress."""
    removing, adding = (tuple({*a} - {*b}) for a, b in ((originals, target), (target, originals)))
    return Assignment((*target, *removing), isr[0] if isr else -1, isr, adding, removing)


@pytest.mark.parametrize(
    ("isr", "live", "least", "is_safe"),
    [
        ((1, 2, 3), ALL, 2, True),
        ((1, 2, 3, 4, 5, 6), ALL, 2, True),
        ((4,), (4, 5, 6), 1, False),
        ((1, 4), ALL, 2, False),
        ((1, 4), ALL, 1, True),
        ((1,), ALL, 2, True),
        ((1, 2, 4), (1, 3, 4), 2, False),
        ((1, 2, 4), (1, 3, 5), 2, True),
        ((1, 2), (3, 4), 2, False),
        ((), ALL, 1, False),
        ((1, 2), ALL, None, True),
        ((1, 2, 4), ALL, None, False),
    ],
    ids=[
        *("nothing is copied yet", "everything is in sync", "only a new replica lives", "one of three originals"),
        *("one is enough", "the cancellation changes nothing", "an original is dead", "a new replica is dead, too"),
        *("all originals are dead", "the ISR is empty", "unknown and unchanged", "unknown and fewer"),
    ],
)
def test_enough_original_replicas_must_be_alive_and_in_sync(
    isr: tuple[int, ...], live: tuple[int, ...], least: int | None, is_safe: bool
) -> None:
    rule = CancelRule(live, {} if least is None else {"orders": least})
    assert (rule.hazard(ROW, move(isr)) == "") is is_safe


def test_a_cancellation_that_would_lower_the_replication_below_min_insync_is_refused() -> None:
    grown = move((1, 2), originals=(1,), target=(1, 2))
    assert grown.original == (1,)
    assert CancelRule(ALL, {"orders": 2}).hazard(ROW, grown) and not CancelRule(ALL, {"orders": 1}).hazard(ROW, grown)


def test_a_reason_names_the_partition_the_brokers_and_what_to_do() -> None:
    rule = CancelRule((2, 3, 4), {"orders": 2}, {3: "connection refused"})
    assert rule.hazard(ROW, move((1, 3, 4))) == (
        "it needs 2 of its original replicas [1, 2, 3] alive and in sync, and has 0: broker 1 is down, broker 2 is not "
        "in sync, broker 3 does not answer (min.insync.replicas is 2, 2 in sync now). orders-7 goes on moving; let it "
        "finish, or cancel it when enough of them are in sync"
    )


def test_a_partition_at_rest_has_nothing_to_cancel() -> None:
    assert without_reassignment(ROW, None) == "orders-7 does not exist; name a partition that does"
    at_rest = Assignment((1, 2), 1, (1, 2))
    assert without_reassignment(ROW, at_rest) == "orders-7 is not being reassigned; there is nothing to cancel"
    assert without_reassignment(ROW, move((1,))) == ""
