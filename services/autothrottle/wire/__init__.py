"""Conversion between `autothrottle.v1` messages and core's types, used only at the gRPC edges.

One module for each service, named like its .proto, unless `SAME_NAMES` converts all of its types. `common` has what
they share.
"""
