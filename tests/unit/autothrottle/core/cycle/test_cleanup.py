"""Foreign throttles without a reassignment are reported first, and removed when that is due."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.cluster.snapshot import Snapshot
from autothrottle.core.cycle.input import CycleObservation, KnownLoads, PlannerSettings, SnapshotViews, StepInput
from autothrottle.core.cycle.throttling import clean_up
from autothrottle.core.operators.sources import AdoptedSources, KnownSources, Overrides
from autothrottle.core.records import Pause, PauseMode
from autothrottle.core.throttles.changes import Change
from autothrottle.core.throttles.plan import HOLD_ALL, Plan
from tests import builders
from tests.builders import NOON

SETTINGS = PlannerSettings(builders.limits(), cleanup_after=2, cleanup_foreign=True)
BROKER = ConfigResource.broker(1001)
FOREIGN = builders.snapshot(throttles={BROKER.path: {"leader.replication.throttled.rate": "5"}})


def cycle(snapshot: Snapshot = FOREIGN, pause: Pause | None = None) -> StepInput:
    """The input of a scheduled cycle with these throttles."""
    sources = KnownSources(pause, pause_is_known=True)
    observation = CycleObservation(NOON, 0.0, True, AdoptedSources(sources), snapshot)
    return StepInput(observation, NOON, 0.0, 1, 1, sources, Overrides(), KnownLoads(), SnapshotViews(snapshot))


def test_foreign_throttles_are_reported_until_their_removal_is_due() -> None:
    reported = clean_up(SETTINGS, 1, cycle(), Plan(), ())
    assert (reported.cycles, list(reported.foreign), reported.contribution.changes) == (2, [BROKER], ())
    removed = clean_up(SETTINGS, reported.cycles, cycle(), Plan(), ())
    assert (
        removed.cycles == 3
        and not removed.foreign
        and {change.resource for change in removed.contribution.changes} == {BROKER}
    )


def test_shadow_mode_reports_what_it_would_remove() -> None:
    shadow = clean_up(replace(SETTINGS, shadow=True), 2, cycle(), Plan(), ())
    assert list(shadow.foreign) == [BROKER] and {change.resource for change in shadow.contribution.changes} == {BROKER}


def test_a_resource_that_the_cycle_changes_waits_for_the_next_one() -> None:
    assert clean_up(SETTINGS, 2, cycle(), Plan(), [Change(BROKER, (), None)]).contribution.changes == ()


@pytest.mark.parametrize(
    ("snapshot", "plan"),
    [
        (builders.snapshot(), Plan()),
        (FOREIGN, Plan(hold=HOLD_ALL)),
        (replace(FOREIGN, reassignments=(builders.reassignment("t", {0: (1001, [1001], [1002], [])}),)), Plan()),
    ],
)
def test_the_count_begins_again_without_foreign_throttles_or_with_a_reassignment(
    snapshot: Snapshot, plan: Plan
) -> None:
    assert clean_up(SETTINGS, 2, cycle(snapshot), plan, ()).cycles == 0


def test_a_pause_keeps_the_count() -> None:
    paused = clean_up(SETTINGS, 2, cycle(pause=Pause(PauseMode.KEEP)), Plan(), ())
    assert (paused.cycles, paused.foreign, paused.contribution.changes) == (2, {}, ())
