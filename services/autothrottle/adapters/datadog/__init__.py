"""Datadog as the source of loads and the sink of events, through its official client.

What is asked, and how an answer is read:

- Two queries per reading, `<query>.rollup(avg, <window seconds>)` from now - window to now, at the same time.
  Values are bytes/s. A series belongs to the host in its scope.
- `newest_point` says which point of a series counts and which interval it covers.
- A host's tags give its broker id, instance type and capacity: one list call for all hosts, then one call for
  each host that the list lacks. What has a broker id is remembered for `tag_ttl`; what has none is asked again.
- Data of one broker that cannot be used is that broker's problem; the others are returned.

No call outlives its deadline, not even one to a server that sends a byte now and then: each exchange runs in
a thread of a pool, and its socket is shut when its time is over. Nothing is retried, no redirect is followed.
Keys travel in headers only, and no text that leaves this package holds one.

The type to know is `DatadogMetrics`. It asks (`metrics`) through calls that keep their deadline (`calls`, `client`);
what comes back is read (`series`, `points`, `tags`) and put together broker by broker (`reading`).
"""

from autothrottle.adapters.datadog.metrics import DatadogMetrics
from autothrottle.adapters.datadog.points import newest_point
from autothrottle.adapters.datadog.settings import DatadogSettings

__all__ = ["DatadogMetrics", "DatadogSettings", "newest_point"]
