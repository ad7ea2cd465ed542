"""The lab: everything that exercises autothrottle without a production cluster. The product never imports it.

- `simulation`: the links, clients, fetchers and throttles that move the bytes of a `MemoryCluster` (`Cluster`).
- `simulate`: the command `autothrottle simulate`, which plays a reassignment in virtual time (`VirtualRecovery`).
- `emulators`: servers that imitate Datadog and Kafka (`DatadogEmulator`, `SimulatedKafka`).
- `servers`: starters of real ZooKeeper, real Kafka and autothrottle's services (`Process`).
- `observation`: measurements that do not depend on autothrottle's own view (`Timeline`).
- `demo`: the command `autothrottle demo`, which replaces a broker while you watch (`DemoRun`).

Install the extra `lab` to use it. The simulated brokers and the demo need Java 17 or newer for ZooKeeper.
"""
