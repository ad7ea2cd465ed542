"""`autothrottle demo`: replace a broker under throttle on a simulated or a real cluster, and report what happened.

`command` has the command line and the sequence of events (`DemoRun`). A `Stage` provides everything that runs:
`simulated_stage` with the simulated brokers of `scenario`, `kafka_stage` with real ones. The type to know is `Stage`.
"""
