"""Starters of real servers: ZooKeeper, Kafka (ZooKeeper mode and KRaft), Prometheus, and autothrottle's services.

Every server is a `Process`, the type to know: it ends with the process that started it, even after SIGKILL.
`jars` finds or downloads what Java needs.
"""
