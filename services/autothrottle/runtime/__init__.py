"""What every service process needs: server, interceptors, signals, configuration and logs."""
