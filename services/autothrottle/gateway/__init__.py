"""The gateway: the admin service over HTTP, as the original's text routes, as JSON under /v1, and as a page.

It keeps nothing: every request is one call, or some, of the admin service. The routes of /v1 are those that the
annotations of admin.proto name.
"""
