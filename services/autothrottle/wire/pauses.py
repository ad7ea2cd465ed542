"""Pauses to messages and back."""

from __future__ import annotations

from autothrottle.core.errors import Invalid
from autothrottle.core.pause import Pause, PauseMode
from autothrottle.v1 import types_pb2
from autothrottle.wire.times import time_from_message, time_to_message

_MODE = {
    PauseMode.KEEP: types_pb2.Pause.MODE_KEEP,
    PauseMode.CLEAR: types_pb2.Pause.MODE_CLEAR,
}


def pause_to_message(pause: Pause) -> types_pb2.Pause:
    """Return a pause as a message."""
    return types_pb2.Pause(
        mode=_MODE[pause.mode],
        author=pause.author,
        time=None if pause.time is None else time_to_message(pause.time),
        reason=pause.reason,
    )


def pause_from_message(message: types_pb2.Pause) -> Pause:
    """Return the pause that a message holds.

    Raises:
        Invalid: when its mode is none that this version knows.
    """
    return Pause(
        mode=pause_mode_from_number(message.mode),
        author=message.author,
        time=time_from_message(message.time) if message.HasField("time") else None,
        reason=message.reason,
    )


def pause_mode_from_number(number: int) -> PauseMode:
    """Return what becomes of our throttles in a pause.

    Raises:
        Invalid: when it is not given, or none that this version knows.
    """
    for mode, known in _MODE.items():
        if known == number:
            return mode
    raise Invalid(
        f"pause mode {number} is neither MODE_KEEP (1: throttles stay as they stand) nor MODE_CLEAR (2: they are "
        "given back); give one of them"
    )
