"""The services' interfaces to the outside: Protocols in terms of core's types.

`kafka` reads and changes the Kafka cluster. `state_store` keeps autothrottle's own state. `telemetry` reads loads and
writes events, traces and the decision log. `services` calls the other services, and reads clusters and their storage
for placements. `adapters/memory` has a fake of each port.
"""
