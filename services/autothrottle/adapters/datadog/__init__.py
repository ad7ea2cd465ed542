"""Datadog as the source of loads and the sink of events, through its official client.

How loads are read:

- Two concurrent queries per read: `<query>.rollup(avg, <window seconds>)` from now - window to now. Values are bytes
  per second. A series belongs to the host in its scope.
- `newest_point` selects one point of a series and the interval that it covers.
- A host's tags give its broker id, instance type and capacity. A query that groups by host groups by these tags, too,
  so its series contain them. One call reads the tags of each host whose series have no broker id. Hosts with a broker
  id are then cached for `tag_ttl`; hosts without one are read again each time.
- Unusable data of one broker is a problem of that broker; the loads of the others are returned.

No call outlives its deadline (`adapters/http`). Keys travel only in headers, and no text that leaves this package
contains one.

The type to know is `DatadogMetrics` (`metrics`). `client` makes calls that end at their deadline.
`host_tags` writes the topics and pools of brokers as tags of their hosts, for topicmappr.
`series` parses the responses, and `load_reading` combines them by broker.
"""

from autothrottle.adapters.datadog.client import DatadogSettings, read_key_files
from autothrottle.adapters.datadog.metrics import DatadogMetrics
from autothrottle.adapters.datadog.series import newest_point

__all__ = ["DatadogMetrics", "DatadogSettings", "newest_point", "read_key_files"]
