"""The planner: reads the cluster and its load, decides on throttles, has them written, and reports what it did.

Any number of planners run. The election chooses the leader; the others wait. The type to know is `Planner`.

- `loop` runs the cycles, `triggers` decides when, `settings` has the configuration and the ports.
- `reading` reads a cycle's input. `telling` reports the result: `narration` has the texts, `events` posts events.
- `guards` applies the safety rules to a plan; `settings_reader` reads the broker and topic settings for them.
- `ramps` raises rates step by step between cycles.
- `submissions` throttles reassignments before it submits them; `catching_up` treats bootstrapping brokers like
  reassignments.
- `memory` holds the state of the current cycle and of the term.
- `journal` writes decisions to the decision log, `traces` describes cycles in traces.
- `servicer` is the gRPC API, `uninstall` restores everything that was ever written.
"""
