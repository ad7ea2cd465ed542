"""What every service process needs: configuration, server, interceptors, signals, logs and traces.

- `configuration`: the values that an operator wants; `configuration_reader.parse` gives them, or every problem at once.
  `options` is the table of options, `option_kinds` what each kind of them may be, `sources` reads command line,
  environment and TOML file.
- `server`: `ServiceServer`, a gRPC server with health, reflection, errors as statuses and a graceful end.
- `signals`: SIGTERM and SIGINT as an event.
- `logs`: Go's lines or JSON.
- `tracing`: traces, as OpenTelemetry's variables ask for them.
- `collector` and `priority`: how often Python looks for garbage, and who waits on a busy host.
"""
