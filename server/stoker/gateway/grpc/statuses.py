"""Which gRPC status an error has: one table over the error tree."""

from __future__ import annotations

from typing import Final

import grpc

from stoker import errors

__all__ = ["status_of"]

_STATUSES: Final[dict[type[errors.StokerError], grpc.StatusCode]] = {
    errors.StokerError: grpc.StatusCode.INTERNAL,
    errors.RequestError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.Unauthorized: grpc.StatusCode.UNAUTHENTICATED,
    errors.Forbidden: grpc.StatusCode.PERMISSION_DENIED,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.UnknownService: grpc.StatusCode.NOT_FOUND,
    errors.NotSupported: grpc.StatusCode.UNIMPLEMENTED,
    errors.MethodNotAllowed: grpc.StatusCode.UNIMPLEMENTED,
    errors.UnsupportedEncoding: grpc.StatusCode.UNIMPLEMENTED,
    errors.RequestTimeout: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.BodyTooLarge: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.ImageTooLarge: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.NotReady: grpc.StatusCode.UNAVAILABLE,
    errors.DeviceLost: grpc.StatusCode.UNAVAILABLE,
    errors.DeviceOutOfMemory: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.ScoringTimeout: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""By class; a class that is not here has the status of the nearest one above it in the tree."""


_RELAYED: Final = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.ABORTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""By the status for HTTP, of errors that another process had, and whose class is not known here."""


def status_of(error: errors.StokerError) -> grpc.StatusCode:
    """Return the status that a call ends with which raised this error."""
    if error.status != type(error).status:
        return _RELAYED.get(error.status, grpc.StatusCode.INTERNAL)
    return next(_STATUSES[kind] for kind in type(error).__mro__ if kind in _STATUSES)
