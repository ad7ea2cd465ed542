"""autothrottle lets Kafka move partitions as fast as the network allows without hurting clients.

It finds reassignments, reads the load of every broker that takes part, decides how fast each broker may send (leader
side) and receive (follower side), and writes those throttles. It keeps them right while the load changes, and removes
them when the reassignments are done. A tour, from the bottom layer up; each layer imports only from the layers below:

- `core`: pure logic on the standard library. The type to know is `core.cluster.snapshot.Snapshot`.
- `v1`: the code generated from `proto/autothrottle/v1`, shared by the services and their clients.
- `rate_limiters`: limiters of bulk jobs, for the Python client.
- `messages`: converts generated messages to and from dataclasses by the names and types of their fields.
- `ports`: interfaces to the outside, as Protocols in core's types.
- `wire`: converts `v1` messages to and from core's types.
- `adapters`: implements each port with one foreign library; `adapters.memory` has an in-memory twin of every port.
- `runtime`: what every service process needs: configuration, server, signals, logs, traces.
- `discovery`, `metrics`, `planner`, `applier`, `admin`, `placement`, `gateway`: the services. They do not import one
  another.
- `topicmappr`: the commands that plan reassignments. `scorer`: the Spark batch over the decision log.
- `composition`: connects the services with concrete adapters. `check`: the command that inspects a deployment.
  `__main__`: the command line.
"""

import os

# gRPC reads it when it is imported. By default it logs a line for every failed TLS handshake of any caller.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

__version__ = "0.2.0"
