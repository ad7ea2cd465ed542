"""Policies: ways to say how much of each link replication may take.

`interface` has what every policy sees and answers, `headroom` the original's formula, `static` one rate for all,
`adaptive` the one that measures, forecasts and learns; what it learns from is in `experience`, `margin` and `series`.
What comes before and after a policy (fail-safe, overrides, change threshold, lists) is in `core.plan`.
"""
