"""Fixtures of the whole suite; those that start real servers live in tests/system."""

from hypothesis import HealthCheck, settings

# How long an example takes says more of the machine than of the code: timings go to `make bench`.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")
