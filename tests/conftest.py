"""Fixtures of the whole suite; those that start real servers live in tests/system."""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says more of the machine than of the code: timings go to `make bench`.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="also what repeats a test under other conditions: 7 min more")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--whole"):
        return
    repeats = [item for item in items if item.get_closest_marker("whole")]
    config.hook.pytest_deselected(items=repeats)
    items[:] = [item for item in items if item not in repeats]


@pytest.fixture
def no_options_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may have options of their own in the environment."""
    for variable in [v for v in os.environ if v.startswith("AUTOTHROTTLE_")]:
        monkeypatch.delenv(variable)


# A shell that runs the tests in the background has let them ignore SIGINT, and what they start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
