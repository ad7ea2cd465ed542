"""The client of a running autothrottle: it speaks `autothrottle.v1` over gRPC and needs nothing else."""
