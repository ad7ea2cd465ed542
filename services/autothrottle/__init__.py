"""autothrottle lets Kafka move partitions as fast as the network allows without hurting clients.

It finds reassignments, reads the load of every broker that takes part, decides how fast each may send (leader
side) and receive (follower side), writes those throttles, keeps them right while load changes, and leaves the
cluster as it found it. A tour, from the ground up; every floor imports only from the floors below it:

- `core`: pure thought on the standard library. `core.topology` has the one type to know, `Snapshot`.
- `v1`: the generated words of `proto/autothrottle/v1`, which the services and their clients speak.
- `ports`: what the services need from the outside, as Protocols in core's types.
- `wire`: `v1` messages to and from core's types.
- `adapters`: one foreign library each behind a port; `adapters.memory` is the in-memory twin of every port.
- `runtime`: what every service process needs: configuration, server, signals, logs, traces.
- `discovery`, `metrics`, `planner`, `applier`, `admin`, `gateway`: the services, strangers to one another.
- `scorer`: the batch over the decision log.
- `lab`: demo, simulated cluster and starters of real ones.
- `composition`: the composition root, the only place that names concrete adapters; `__main__`: the command line.
"""

__version__ = "0.1.0"
