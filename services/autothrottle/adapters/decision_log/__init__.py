"""The decision log: writer, reader and schema of its Parquet files. The type to know is `writer.DecisionLog`."""
