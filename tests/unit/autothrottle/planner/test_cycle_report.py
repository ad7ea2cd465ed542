"""The report of a cycle as a value: its lines, what it need not repeat, and what happened before a failure."""

from __future__ import annotations

import logging
from datetime import timedelta

from autothrottle.core.cycle.decision import CycleDecision, CycleResults
from autothrottle.core.cycle.input import ControllerState, PlannerSettings
from autothrottle.core.errors import NotLeader, Unavailable
from autothrottle.core.records import Pause, PauseMode
from autothrottle.planner.cycle_report import CycleReport, Reported, RunningCycle, cycle_report
from tests import builders
from tests.builders import NOON

SETTINGS = PlannerSettings(builders.limits())
STATE = ControllerState().begin_term(7)
PAUSED = CycleDecision(STATE, NOON, False, pause=Pause(PauseMode.KEEP, "anna"), findings=("a finding",))


def report(outcome: RunningCycle, reported: Reported = Reported()) -> CycleReport:  # noqa: B008 (frozen)
    return cycle_report(SETTINGS, reported, outcome)


def outcome(**parts: object) -> RunningCycle:
    """A cycle of one second."""
    return RunningCycle(STATE, NOON, NOON + timedelta(seconds=1), "interval", True, **parts)  # type: ignore[arg-type]


def texts(of_cycle: CycleReport) -> list[str]:
    return [line.text for line in of_cycle.lines]


def test_a_pause_and_a_finding_are_logged_once() -> None:
    written = outcome(decision=PAUSED, results=CycleResults(NOON, 0.0))
    first = report(written)
    assert texts(first)[0] == "Paused: keep, by anna" and "A finding" in texts(first)
    assert texts(report(written, first.reported)) == []


def test_a_failure_is_logged_after_the_input_and_before_the_results() -> None:
    failed = outcome(
        decision=PAUSED, results=CycleResults(NOON, 0.0), failure=Unavailable("no answer"), error="no answer"
    )
    expected = ["Paused: keep, by anna", "The cycle failed, nothing was removed: no answer"]
    assert (texts(report(failed))[:2], texts(report(failed))[-1]) == (expected, "A finding")
    assert report(failed).record.error == "no answer" and report(failed).record.sentence == ""


def test_the_end_of_a_term_is_a_warning_and_a_bug_has_its_traceback() -> None:
    bug = ZeroDivisionError()
    (ended,) = report(outcome(failure=NotLeader("term 7 is over"))).lines
    (failed,) = report(outcome(bugs=(bug,))).lines
    assert (ended.level, ended.text) == (logging.WARNING, "The cycle ended early: term 7 is over")
    assert (failed.level, failed.cause) == (logging.ERROR, bug)


def test_findings_of_a_cycle_that_wrote_nothing_are_in_its_record_and_not_yet_reported() -> None:
    unwritten = report(outcome(decision=PAUSED))
    assert unwritten.record.findings == ("a finding",) and unwritten.reported.findings == frozenset()


def test_a_new_term_reports_again_except_for_catch_ups_and_the_schedule() -> None:
    reported = Reported(pause=PAUSED.pause, lagging={1001: 3}, findings=frozenset({"a finding"}))
    assert reported.begin_term() == Reported(lagging={1001: 3})
