"""Scoring past decisions: a batch job over the decision log, in one process or on Spark.

`command` is its command line. It finds the new part of the log (`scoring`), reads files and splits their rows into
parts (`log`, `parts`), scores the parts (`link_sides`) in threads (`local`) or in tasks of Spark (`spark`), and writes
tables and a page (`files`, `results`, `report`). The types to know are `scoring.ScoreWork`, `parts.ScorePlan` and
`files.Files`.
"""
