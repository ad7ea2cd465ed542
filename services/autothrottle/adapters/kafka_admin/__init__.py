"""Kafka through its admin API. Only this package and the lab import kafka-python.

The type to know is `KafkaAdmin` (`client`), through which every adapter of this package reaches Kafka. The adapters:
`snapshots` (reassignments, throttles and brokers), `config_writer` (throttles), `reassignments` (starts and cancels
them), `client_quotas`, `placement` (brokers, partitions, storage and cordons) and `sources` (log sizes,
settings and permissions).

Below `KafkaAdmin`: the requests (`messages`, and `schemas` for those that kafka-python lacks), the meaning of their
answers (`values`, `errors`), the broker that gets each request (`routing`), and connections with
deadlines (`connections`).

`login` holds how to log in, one value for a process. It comes from a file in Java's format (`java_properties`), which
`client_properties` translates into options of kafka-python: TLS (`key_stores`), the mechanism (`sasl`), and the token
of OAUTHBEARER (`bearer_tokens`, from `token_sources`).
"""
