"""The Kafka ports for clusters in ZooKeeper mode (Kafka 0.10 to 3.9).

The types to know are `ZooKeeperSnapshots` (`snapshots`), which follows the cluster with watches, and
`ZooKeeperConfigWriter` (`config_writer`), which writes throttles in fenced transactions.
"""
