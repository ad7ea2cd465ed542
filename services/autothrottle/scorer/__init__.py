"""Was each decision good, and what should change: a batch over the decision log, in Spark."""
