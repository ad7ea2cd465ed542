"""500 hostile inputs for each door, 10,000 in `make test-all`; `make fuzz` takes 100,000."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.examples import examples
from tests.fuzz.__main__ import main
from tests.fuzz.doors import DOORS
from tests.fuzz.hostile import Choices
from tests.fuzz.series import ENTROPY_BYTES, Result, attack_once, run, table

COUNT = examples(500, 10_000)


@pytest.fixture(autouse=True)
def without_logs() -> Iterator[None]:
    """Refused inputs are logged, some with 40,000 characters."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", DOORS)
def test_hostile_inputs_are_refused_and_leave_the_others_as_they_are(name: str) -> None:
    with closing(DOORS[name]()) as door:
        result = run(door, COUNT, 1)
    assert result.inputs >= COUNT
    assert result.accepted > COUNT / 10, "most inputs are refused before they reach what the door is about"
    assert result.defects == {}, f"\n{table([result])}"


def test_the_command_attacks_one_door_and_prints_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """`make fuzz` runs this command, too."""
    status = main(["--door", "znodes", "--count", "100", "--seed", "7"])
    printed = capsys.readouterr()
    assert printed.out.splitlines()[0].split()[:3] == ["door", "inputs", "refused"]
    assert printed.out.splitlines()[1].split()[:2] == ["znodes", "100"]
    assert (status == 0) is (len(printed.out.splitlines()) == 2)


class _Fragile:
    """A door that breaks at some inputs."""

    name = "fragile"

    def make(self, choices: Choices) -> int:
        return choices.below(4)

    def check(self, attack: int) -> None:
        if attack == 3:
            raise KeyError(attack)

    def close(self) -> None:
        """Nothing to release."""


def test_an_unexpected_error_is_a_defect_with_the_id_of_its_input() -> None:
    result = run(_Fragile(), 200, 1)
    (defect,) = result.defects.values()
    assert defect.what.startswith("KeyError at ") and defect.attack == "3"
    again = Result("again")
    attack_once(_Fragile(), bytes.fromhex(defect.id), again)
    assert again.defects.keys() == result.defects.keys()
    assert len(bytes.fromhex(defect.id)) == ENTROPY_BYTES
    assert result.inputs == 200 and 0 < result.failures < 200
