"""Scoring past decisions: a Spark batch job over the decision log.

`scoring.score` runs the job; `command` is its command line. The type to know is `scoring.ScoreSettings`.
"""
