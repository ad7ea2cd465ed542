"""TLS certificates and token files that are reloaded when they change, without a restart.

The types to know are `tls.Tls` and `reloaded_files.ReloadedFiles`.
"""
