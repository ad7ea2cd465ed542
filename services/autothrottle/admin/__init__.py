"""Admin service: overrides, pause, catch-ups, reassignments, client quotas and the cluster state, for operators.

Every change starts a cycle; no call waits for that cycle. The types to know are `AdminServicer` and `QuotaServicer`.
"""
