"""No history of the state topic breaks a promise, and the rules of older versions break them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from tests.unit.autothrottle.adapters.kafka_state.log_model import Event, Fault, History

HISTORIES = 2_000


def faults(seeds: range, events: Sequence[Event] = tuple(Event), is_strict: bool = True) -> Iterator[tuple[int, str]]:
    """Yield the seeds whose histories break a promise, and the promise."""
    for seed in seeds:
        try:
            History(seed, events, is_strict).run()
        except Fault as fault:
            yield seed, str(fault)


@pytest.mark.parametrize("part", range(4))
def test_no_history_breaks_a_promise(part: int) -> None:
    size = HISTORIES // 4
    assert not list(faults(range(part * size, (part + 1) * size)))


@pytest.mark.repeat
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(8))
def test_no_history_of_200_000_breaks_a_promise(part: int) -> None:
    assert not list(faults(range(HISTORIES + part * 25_000, HISTORIES + (part + 1) * 25_000)))


@pytest.mark.parametrize(
    ("events", "promise"),
    [
        pytest.param((Event.STOP, Event.DELETE, Event.START), "differ", id="a process that wakes"),
        pytest.param((Event.OLD_SNAPSHOT, Event.DELETE, Event.START), "differ", id="a foreign old snapshot"),
        pytest.param((Event.OLD_SNAPSHOT, Event.START), "lead", id="a foreign old snapshot, two leaders"),
        pytest.param((Event.TAIL,), "lead", id="a lost tail"),
        pytest.param((Event.FAR_SNAPSHOT,), "lost", id="a position far ahead"),
        pytest.param((Event.REPEAT,), "lives again", id="a late second copy"),
    ],
)
def test_the_rules_of_older_versions_break_promises(events: Sequence[Event], promise: str) -> None:
    """So the model finds these faults, and the strict rules are why it finds none."""
    assert next(fault for _, fault in faults(range(1_000), events, is_strict=False) if promise in fault)
    assert not list(faults(range(50), events))
