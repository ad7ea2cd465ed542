"""Code that both Kafka backends share: reading log sizes and comparing snapshots."""
