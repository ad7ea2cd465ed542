"""Prometheus, or a server with its HTTP API, as the source of loads.

How loads are read:

- Concurrent instant queries for sent and for received bytes. The query of a preset is a range vector: its raw samples
  give a rate over an interval that is known exactly. Another query may be an instant vector: its values are the rates
  of the window before now.
- `kafka_broker_info`, if an exporter reports it, gives the addresses of brokers.
- `node_network_speed_bytes`, if the exporter reports it, gives the capacity of a link. The facts of its netclass
  collector say which devices count.
- Queries are made for a time on the server's clock, which the Date header shows.
- `core/traffic/series_loads` combines the series by broker.

The type to know is `PrometheusMetrics` (`metrics`). `client` sends the queries and parses the responses.
`storage_metrics` reads partition sizes and free storage for metricsfetcher.
"""

from autothrottle.adapters.prometheus.client import PrometheusSettings
from autothrottle.adapters.prometheus.metrics import PrometheusMetrics

__all__ = ["PrometheusMetrics", "PrometheusSettings"]
