"""The placement service: computes plans, and says how full pools are. It executes nothing.

- `servicer`: the methods of the API.
- `forecaster`: computes every hour when brokers and pools reach their limits.
"""
