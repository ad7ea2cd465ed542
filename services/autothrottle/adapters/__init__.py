"""Implementations of the ports; each module wraps at most one external library.

`memory` has an in-memory fake of every port. `concurrency` and `credentials` have what several adapters share.
"""
