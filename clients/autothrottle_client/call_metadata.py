"""Interceptor that adds metadata to every call of a channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import grpc


class _Details(NamedTuple):
    method: str
    timeout: float | None
    metadata: Any
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: grpc.Compression | None


class AddedMetadata(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """Adds metadata to calls; our services have no client streaming."""

    def __init__(self, *metadata: tuple[str, str]) -> None:
        self._metadata = metadata

    def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: grpc.ClientCallDetails, request: Any
    ) -> Any:
        """Make the call with the metadata."""
        unchanged = {name: getattr(client_call_details, name) for name in _Details._fields}
        metadata = (*(client_call_details.metadata or ()), *self._metadata)
        return continuation(_Details(**{**unchanged, "metadata": metadata}), request)

    def intercept_unary_stream(
        self, continuation: Callable[..., Any], client_call_details: grpc.ClientCallDetails, request: Any
    ) -> Any:
        """Make the call with the metadata."""
        return AddedMetadata.intercept_unary_unary(self, continuation, client_call_details, request)
