"""The composition root: the only package that names the concrete adapters of the services.

- `services`: `Composition`, which builds the services.
- `cluster` and `admin_cluster`: the adapters of Kafka, through ZooKeeper and through the Admin API.
- `state` and `kafka_state`: the stores of our own state, in ZooKeeper and in Kafka.
- `store_choice`: the check that a default store leaves no state behind.
- `loads`: the metrics sources.

Adapters whose libraries start slowly (Datadog, Kafka's Admin API: 0.2 s of CPU time each) are imported where they are
built: most services need none of them.
"""
