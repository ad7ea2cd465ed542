"""The decisions of a cycle: plan, guards, changes, ramps, overrides, pause, catch-ups. The type to know is `Plan`."""
