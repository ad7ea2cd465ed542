"""Forecasts: progress, ETA, stalls, and estimates of planned reassignments. The type to know is `ProgressHistory`."""
