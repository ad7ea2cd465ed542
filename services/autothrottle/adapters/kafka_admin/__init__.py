"""Kafka through its admin API. Only this package and the lab import kafka-python.

The type to know is `KafkaAdmin` (`client`), through which every adapter of this package reaches Kafka. The adapters:
`snapshots` (reassignments, throttles and brokers), `config_writer` (throttles), `reassignments` (starts and cancels
them), `client_quotas`, `placement` (brokers, partitions, storage and cordons) and `sources` (log sizes,
settings and permissions).

Below `KafkaAdmin`: the requests (`messages`, and `schemas` for those that kafka-python lacks), the meaning of their
answers (`values`, `errors`), the broker that gets each request (`routing`), and connections with
deadlines (`connections`). `client_properties` translates Kafka's client properties into options of kafka-python.
"""
