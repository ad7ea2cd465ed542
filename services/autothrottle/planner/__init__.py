"""The loop that decides: reads the cluster and its load, plans, has the plan carried out, and says what it did.

Any number of planners run; the one that the election chose leads, the others wait. `loop` runs the cycles, `triggers`
says when; `settings` is what a planner is given. A cycle begins with `reading` and ends with `telling`, which
`narration` puts into words and `events` posts; `ramps` raises rates between cycles, `guards` watches over the plan with
what `settings_reader` knows of brokers and topics, `submissions` holds moves until they are throttled, `catching_up`
treats bootstrapping brokers as moves, `journal` logs decisions, `traces` describes cycles in traces, `memory` is what
one knows of the cycle in hand and of those before, `servicer` answers over gRPC, `uninstall` takes everything back. The
type to know is `Planner`.
"""
