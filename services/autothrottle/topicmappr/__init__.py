"""`topicmappr` and `metricsfetcher`: plan where replicas go, and store the metrics that plans need.

`command_line` runs topicmappr, `metricsfetcher` the other command. `sources` connects to clusters and metrics systems;
`report` prints the results of `core.placement.operations`.
"""
