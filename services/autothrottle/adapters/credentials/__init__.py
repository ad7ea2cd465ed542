"""TLS certificates of this process, reloaded when their files change. The type to know is `tls.Tls`."""
