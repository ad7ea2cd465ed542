"""Scores of past decisions against the best possible recovery. The type to know is `DecisionRecord`."""
