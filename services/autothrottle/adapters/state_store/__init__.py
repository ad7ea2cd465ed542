"""What the state in ZooKeeper and the state in Kafka have in common.

Both are trees of nodes with the same paths and texts. `nodes` says what a store of them provides.
"""
