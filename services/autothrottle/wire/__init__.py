"""Conversion between `autothrottle.v1` messages and core's types, used only at the gRPC edges.

One module for each service, named like its .proto; `common` has what they share.
"""
