"""`autothrottle` with a planner that decides nothing while the file in the variable STALL exists.

It hangs, or it fails if the file says so.
"""

import os
import sys
import time
from pathlib import Path

from autothrottle.__main__ import main
from autothrottle.core.cycle.decision import CycleDecision
from autothrottle.core.cycle.input import ControllerState, CycleObservation, PlannerSettings
from autothrottle.core.cycle.step import step
from autothrottle.planner import loop


def _stalling_step(settings: PlannerSettings, state: ControllerState, observation: CycleObservation) -> CycleDecision:
    stall = Path(os.environ["STALL"])
    while stall.exists():
        if stall.read_text() == "fail":
            raise ZeroDivisionError
        time.sleep(0.05)
    return step(settings, state, observation)


loop.step = _stalling_step  # type: ignore[attr-defined]
sys.exit(main())
