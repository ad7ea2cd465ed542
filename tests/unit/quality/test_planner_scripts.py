"""The differential scripts of the planner give the same digest each time, and different seeds give different ones."""

from __future__ import annotations

from tests.quality.cycle_trace import traced_cycle
from tests.quality.planner_scripts import numbers, transcript


def test_a_script_observes_the_same_each_time() -> None:
    first, again, other = (transcript(seed, 15) for seed in (3, 3, 4))
    assert first.digest() == again.digest() != other.digest()
    assert {"write", "cycle", "log"} <= {line.split()[0] for line in first.lines}


def test_seeds_are_given_as_ranges_and_numbers() -> None:
    assert list(numbers("0-2,7")) == [0, 1, 2, 7]


def test_a_trace_follows_the_cycle_through_its_files() -> None:
    trace = traced_cycle()
    assert ("core/cycle/step.py", "step") in trace.functions
    assert trace.changes >= len({file for file, _ in trace.functions})
