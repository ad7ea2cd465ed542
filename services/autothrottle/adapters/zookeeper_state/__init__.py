"""autothrottle's own state in ZooKeeper: election, overrides, pause, catch-ups, ledger, members and audit log.

The `ZooKeeper...` classes implement the ports of `ports.state_store`. `ledger` serves the Kafka backend for
the admin API. Every write on behalf of a leader checks the leader's term in the same transaction.
"""
