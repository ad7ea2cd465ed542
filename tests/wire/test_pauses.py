import pytest
from hypothesis import given

from autothrottle.core.errors import Invalid
from autothrottle.core.pause import Pause, PauseMode
from autothrottle.v1 import types_pb2
from autothrottle.wire.pauses import pause_from_message, pause_mode_from_number, pause_to_message
from tests.wire import strategies


@given(strategies.pauses)
def test_a_pause_arrives_as_it_was_sent(pause: Pause) -> None:
    raw = pause_to_message(pause).SerializeToString()
    assert pause_from_message(types_pb2.Pause.FromString(raw)) == pause


@pytest.mark.parametrize("mode", PauseMode)
def test_every_mode_has_a_word_of_its_own(mode: PauseMode) -> None:
    assert types_pb2.Pause.Mode.Name(pause_to_message(Pause(mode)).mode) == f"MODE_{mode.name}"


@pytest.mark.parametrize("number", [0, 3])
def test_a_pause_without_a_known_mode_is_refused(number: int) -> None:
    with pytest.raises(Invalid, match=rf"pause mode {number} is neither MODE_KEEP .* nor MODE_CLEAR"):
        pause_mode_from_number(number)
