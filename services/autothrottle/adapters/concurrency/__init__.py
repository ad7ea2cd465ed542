"""Deadlines and thread-safe callback registries that several adapters share."""
