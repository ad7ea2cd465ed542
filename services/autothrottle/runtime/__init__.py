"""Parts of every service process: configuration, server, interceptors, signals, logs and traces.

- `configuration`: the operator's settings. `configuration_reader.parse` returns them, or reports every problem at once.
  `option_kinds` defines the kinds of options, and `sources` reads command line, environment and TOML file.
- `pools_file`: the pools of topics and brokers, and `FollowedPools`, which reads their file again when it has changed.
- `server`: `ServiceServer`, a gRPC server with health, reflection, error mapping and graceful shutdown.
- `connections`: limits of connections and file descriptors.
- `shutdown`: the stop of a process, on SIGTERM, SIGINT or a failure.
- `logs`: log lines in Go's format or JSON.
- `tracing`: traces, configured by OpenTelemetry's variables.
- `tuning`: process priority, and Python's garbage collector.
- `extras`: the programs, the extras that they need, and their closed standard output.
"""
