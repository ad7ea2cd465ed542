"""Translation between `autothrottle.v1` messages and core's types, used at the gRPC edges only."""
