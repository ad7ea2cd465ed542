"""The exporters of the brokers as the source of loads, read directly every few seconds.

How loads are read:

- A background thread requests the exporter of each registered broker once per `interval`, all at the same time. A
  target that hangs delays no other.
- A `Target` keeps its samples for one window. A rate is the growth of its counters over the newest window.
- A target without a fresh sample is a problem of its broker.

The type to know is `ScrapedMetrics` (`metrics`).
"""

from autothrottle.adapters.scrape.metrics import ScrapedMetrics, ScrapeSettings

__all__ = ["ScrapeSettings", "ScrapedMetrics"]
