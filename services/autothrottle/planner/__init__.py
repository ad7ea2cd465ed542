"""The planner: reads the cluster and its load, decides on throttles, has them written, and reports what it did.

Any number of planners run. The election chooses the leader; the others wait. The type to know is `Planner`.

- `loop` decides when a cycle runs, and runs it.
- `calls` has the ports: it reads a cycle's input, and carries out what `core.cycle.step` has decided.
- `cycle_report` makes the report of a cycle, with its texts. `report` writes it to the log, the events, the trace, the
  exported metrics and the decision log.
- `servicer` is the gRPC API, `uninstall` restores everything that was ever written.
"""
