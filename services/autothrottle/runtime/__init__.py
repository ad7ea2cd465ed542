"""Parts of every service process: configuration, server, interceptors, signals, logs and traces.

- `configuration`: the operator's settings. `configuration_reader.parse` returns them, or reports every problem at once.
  `options` is the table of options, `option_kinds` defines their kinds, and `sources` reads command line, environment
  and TOML file.
- `server`: `ServiceServer`, a gRPC server with health, reflection, error mapping and graceful shutdown.
- `connections`: limits of connections and file descriptors.
- `signals`: SIGTERM and SIGINT as an event.
- `logs`: log lines in Go's format or JSON.
- `tracing`: traces, configured by OpenTelemetry's variables.
- `garbage_collection` and `priority`: tuning of Python's garbage collector and of process priority.
- `output`: handling of a closed standard output.
"""
