"""Admin service: overrides, pause, catch-ups, reassignments and the cluster state, for operators.

Every change starts a cycle; no call waits for that cycle. The type to know is `AdminServicer`.
"""
