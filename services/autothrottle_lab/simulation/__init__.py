"""What moves the bytes of a `MemoryCluster`: links, clients, fetchers and replication throttles, in virtual time.

It has no clock, thread, randomness or IO: equal histories give equal states. The type to know is `Cluster`.
"""
