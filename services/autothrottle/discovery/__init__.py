"""What moves in the cluster and what throttles stand, for whoever asks; stateless but for a cache of one cluster."""
