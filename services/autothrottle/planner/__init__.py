"""The loop that decides: reads the cluster and its load, plans, has the plan carried out, and says what it did.

Any number of planners run; the one that the election chose leads, the others wait. `loop` runs the cycles, `triggers`
says when, `memory` is what one knows of the cycle in hand and of those before, `submissions` holds moves until they are
throttled, `narration` puts into words what a cycle did, `events` posts it, `journal` logs what it decided, `servicer`
answers over gRPC. The type to know is `Planner`.
"""
