"""Kafka in ZooKeeper mode, and autothrottle's own state: everything that talks to ZooKeeper, through kazoo."""
