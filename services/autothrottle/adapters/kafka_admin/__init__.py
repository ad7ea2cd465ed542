"""Kafka through its admin API: the only package beside the lab that knows kafka-python.

`KafkaAdmin` (`client`) is what the others of this package, and nobody else, call; each of them is a port's adapter:
`snapshots` tells what moves and what stands, `config_writer` writes throttles, `reassigner` starts moves, `log_sizes`
tells how much is left. Behind the client: Kafka's `messages` and what they say (`answers`, `translation`), who is asked
(`routing`, `controllers`), and how a request travels within its deadline (`connections`). Client properties in Kafka's
own names become options in `properties`.
"""
