"""Fixtures of the whole suite; those that start real servers live in tests/system."""
