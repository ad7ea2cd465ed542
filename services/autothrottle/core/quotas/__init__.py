"""Kafka's client quotas: entities, keys, and the precedence of Kafka's eight levels. No IO.

The types to know are `ClientQuotaEntity` and `QuotaKey`.

Sources: KIP-13, KIP-55, KIP-124, KIP-546, KIP-599, KIP-612.
"""
