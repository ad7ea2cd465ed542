"""The planner: reads the cluster and its load, decides on throttles, has them written, and reports what it did.

Any number of planners run. The election chooses the leader; the others wait. The type to know is `Planner`.

- `loop` runs the cycles, `triggers` decides when, `dependencies` has the ports.
- `observe` reads a cycle's input, `core.cycle.step` decides, `apply` carries out the decision.
- `cycle_report` makes the report of a cycle, and `narration` has its texts. `report` logs it, posts its events and
  writes the decision log, `traces` describes it in traces, `exposition` has the exported metrics.
- `submissions` has the callers that wait for a reassignment to be submitted.
- `servicer` is the gRPC API, `uninstall` restores everything that was ever written.
"""
