"""What the services see of the outside: Protocols in core's types, each with a shipped in-memory twin."""
