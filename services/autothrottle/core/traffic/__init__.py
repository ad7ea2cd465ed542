"""Traffic on the brokers' links: load, capacity, throttle history, measured replication and log growth."""
