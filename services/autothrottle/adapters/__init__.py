"""Implementations of the ports, one foreign library per module."""
