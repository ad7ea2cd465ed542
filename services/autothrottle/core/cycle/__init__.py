"""A cycle as pure functions of a state and an observation. The type to know is `CycleDecision`."""
