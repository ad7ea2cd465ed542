"""Servers that imitate external systems, so that the product's adapters run unchanged against them.

- `datadog`: the HTTP routes of Datadog's API that the product calls (`DatadogEmulator`).
- `exporter`: the exporters of brokers, with faults (`ExporterEmulator`).
- `http_server`: the HTTP server of the emulators (`EmulatorServer`).
- `kafka`: a simulated cluster in a real ZooKeeper and in real time (`SimulatedKafka`).
"""
