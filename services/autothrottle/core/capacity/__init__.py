"""Capacity units: the brokers that a workload needs, pools of topics and brokers, and when they are full.

Source: "Kafka Data Placement and Capacity Planning", its chapter on capacity planning.
"""
