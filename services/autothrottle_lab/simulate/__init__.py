"""`autothrottle simulate`: play a reassignment in virtual time, hours of it in seconds.

The planner is the product's own; brokers, clients and time are simulated. `scenario_file` reads a scenario,
`virtual_time` plays it, `recording` measures it, and `command` prints the result. `scenario_text`
writes scenario files from a running cluster and from the decision log.
The type to know is `VirtualRecovery`.
"""
