"""The gateway: the admin service over HTTP, as the original's text routes, as JSON under /v1, and as a page.

The gateway is stateless: each request becomes one or more calls of the admin service. The annotations of admin.proto
define the routes of /v1. The type to know is `server.GatewayServer`.
"""
