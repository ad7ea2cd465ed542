"""The load and the capacity of every broker, and the posting of events, for whoever asks."""
