"""A failed gRPC call without a server."""

from __future__ import annotations

import grpc


class FailedCall(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode, details: str, metadata: tuple[tuple[str, str], ...] = ()) -> None:
        self._code, self._details, self._metadata = code, details, metadata

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> tuple[grpc._Metadatum, ...]:
        return tuple(_Datum(key, value) for key, value in self._metadata)  # type: ignore[misc]


class _Datum:
    def __init__(self, key: str, value: str) -> None:
        self.key, self.value = key, value
