"""Placement of replicas on brokers: partition maps, and plans that move as little data as possible.

    rebuild       fill the slots of brokers that leave, or place everything anew
    rebalance     even out the free storage of the brokers
    scale         the same, with new brokers
    decommission  move all replicas away from brokers

Each returns a `PlacementPlan`. The same input gives the same plan on every machine. Nothing here executes a plan.

Storage is in bytes. A map is a tuple of `PartitionReplicas`; a plan's maps are ordered by topic and partition.
"""
