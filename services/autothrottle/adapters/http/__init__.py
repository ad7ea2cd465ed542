"""HTTP calls that end at their deadline, even if a server sends single bytes; for sources of metrics.

Each exchange runs in a thread of a pool, and its socket is shut down at the deadline. Nothing is retried and no
redirect is followed. The type to know is `HttpClient` (`client`).
"""
