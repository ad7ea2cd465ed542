"""Pure decision logic: cluster state, traffic, policies, plans, forecasts and scores.

It uses the standard library only, and has no clock, log or IO.
"""
