"""Lab holds the demo, the simulated cluster and the starters of real ZooKeeper and Kafka."""
