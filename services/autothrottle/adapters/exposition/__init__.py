"""Exports the metrics of `core.exported_metrics`: `prometheus` renders /metrics, `otlp` sends to a collector.

Both render the current samples each time. A broker that leaves the reassignments has no sample any more, so its series
ends.
"""
