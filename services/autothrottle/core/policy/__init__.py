"""Policies: how much of each link replication may take. The type to know is `interface.Policy`.

`interface` defines the input and output of a policy. `headroom` is the original's formula, `static` one rate for every
link side, and `adaptive` measures, forecasts and learns; its measurements are in `measurements`.
`core.throttles.plan` does the rest: fail-safe, overrides, change threshold and replica lists.
"""
