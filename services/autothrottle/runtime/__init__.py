"""What every service process needs: server, interceptors, signals, configuration and logs.

- `configuration`: `parse` gives one typed `Configuration`, or every problem at once; `options` is the table of
  options, `sources` reads command line, environment and TOML file.
- `server`: `ServiceServer`, a gRPC server with health, reflection, errors as statuses and a graceful end.
- `signals`: SIGTERM and SIGINT as an event.
- `logs`: Go's lines or JSON.
"""
