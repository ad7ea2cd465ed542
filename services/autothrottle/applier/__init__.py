"""Carries out config changes on behalf of the leading planner; knows no reason for any of them."""
