"""Contributions of several concerns become one."""

from __future__ import annotations

from datetime import timedelta

from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.cycle.decision import Contribution, WakeUp
from autothrottle.core.cycle.step import merged
from autothrottle.core.errors import Conflict
from autothrottle.core.records import Outcome, OutcomeStatus
from tests import builders

CHANGE = builders.change("brokers/1", ("leader.replication.throttled.rate", None, "1"))
REFUSED = Outcome(ConfigResource.broker(2), OutcomeStatus.REFUSED, "it cannot be read")


def test_contributions_are_merged_in_their_order() -> None:
    wake_ups = WakeUp("first"), WakeUp("second", timedelta(seconds=1))
    total = merged(
        Contribution((CHANGE,), findings=("a",), wake_ups=wake_ups[:1]),
        Contribution(refused=(REFUSED,), findings=("b",), wake_ups=wake_ups[1:]),
    )
    assert total == Contribution((CHANGE,), (REFUSED,), findings=("a", "b"), wake_ups=wake_ups)


def test_the_first_answer_counts() -> None:
    answers = Conflict("paused"), Conflict("no such topic")
    assert merged(*(Contribution(answer=answer) for answer in (None, *answers))).answer is answers[0]


def test_refused_resources_count_as_touched() -> None:
    contribution = Contribution((CHANGE,), (REFUSED,))
    assert contribution.resources == {ConfigResource.broker(1), ConfigResource.broker(2)}
