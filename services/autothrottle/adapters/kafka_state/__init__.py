"""Our own state in one partition of a topic in Kafka, for clusters without a ZooKeeper.

`replica` is the state that every process derives from the records, `topic` reads and appends them, `log` joins the two.
The other modules are the adapters of the ports.
"""
