"""The planner: reads the cluster and its load, decides on throttles, has them written, and reports what it did.

Any number of planners run. The election chooses the leader; the others wait. The type to know is `Planner`.

- `loop` runs the cycles, `triggers` decides when, `dependencies` has the ports.
- `observe` reads a cycle's input, `core.control.step` decides, `apply` carries out the decision.
- `report` logs the result: `narration` has the texts, `events` posts events, `traces` describes cycles in traces,
  `journal` writes decisions to the decision log, `exposition` has the exported metrics.
- `submissions` has the callers that wait for a reassignment to be submitted.
- `settings_reader` reads the broker and topic settings in the background.
- `servicer` is the gRPC API, `uninstall` restores everything that was ever written.
"""
