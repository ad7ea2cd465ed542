"""Measurements of a recovery that do not depend on autothrottle's own view.

They come from ZooKeeper's transaction log, from KRaft's metadata log, from the brokers' log sizes, and from clients.
The type to know is `Timeline`: when a reassignment started, when it was throttled, when it ended.
"""
