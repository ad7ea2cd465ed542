"""Fixtures of the whole suite; those that start real servers live in tests/system."""

import signal

from hypothesis import HealthCheck, settings

# How long an example takes says more of the machine than of the code: timings go to `make bench`.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

# A shell that runs the tests in the background has let them ignore SIGINT, and what they start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
