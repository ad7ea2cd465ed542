"""The decision log: its Parquet files, and what writes them. The type to know is `writer.DecisionLog`."""
