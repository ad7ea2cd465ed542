"""The throttles of a cycle: plan, guards, changes to Kafka, ownership, ramps. The type to know is `Plan`."""
