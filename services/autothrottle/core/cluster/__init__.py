"""The state of the Kafka cluster: brokers, reassignments, configs and log sizes. The type to know is `Snapshot`."""
