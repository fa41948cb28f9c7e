"""Which gRPC status an error has: one table over the error tree."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from stoker import errors

__all__ = ["Status", "status_of"]


class Status(IntEnum):
    """How a call ends."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


_STATUSES: Final[dict[type[errors.StokerError], Status]] = {
    errors.StokerError: Status.INTERNAL,
    errors.RequestError: Status.INVALID_ARGUMENT,
    errors.UnknownSequence: Status.FAILED_PRECONDITION,
    errors.Unauthorized: Status.UNAUTHENTICATED,
    errors.Forbidden: Status.PERMISSION_DENIED,
    errors.NotFound: Status.NOT_FOUND,
    errors.RegionTaken: Status.ALREADY_EXISTS,
    errors.UnknownService: Status.NOT_FOUND,
    errors.NotSupported: Status.UNIMPLEMENTED,
    errors.MethodNotAllowed: Status.UNIMPLEMENTED,
    errors.UnsupportedEncoding: Status.UNIMPLEMENTED,
    errors.RequestTimeout: Status.DEADLINE_EXCEEDED,
    errors.BodyTooLarge: Status.RESOURCE_EXHAUSTED,
    errors.ImageTooLarge: Status.RESOURCE_EXHAUSTED,
    errors.QuotaExceeded: Status.RESOURCE_EXHAUSTED,
    errors.RequestOverQuota: Status.RESOURCE_EXHAUSTED,
    errors.Overloaded: Status.UNAVAILABLE,
    errors.TooManySequences: Status.RESOURCE_EXHAUSTED,
    errors.NotReady: Status.UNAVAILABLE,
    errors.DeviceLost: Status.UNAVAILABLE,
    errors.DeviceOutOfMemory: Status.RESOURCE_EXHAUSTED,
    errors.DeadlineExceeded: Status.DEADLINE_EXCEEDED,
    errors.ScoringTimeout: Status.DEADLINE_EXCEEDED,
}
"""By class; a class that is not here has the status of the nearest one above it in the tree."""


_RELAYED: Final = {
    400: Status.INVALID_ARGUMENT,
    401: Status.UNAUTHENTICATED,
    403: Status.PERMISSION_DENIED,
    404: Status.NOT_FOUND,
    409: Status.ABORTED,
    501: Status.UNIMPLEMENTED,
    503: Status.UNAVAILABLE,
    504: Status.DEADLINE_EXCEEDED,
}
"""By the status for HTTP, of errors that another process had, and whose class is not known here."""


def status_of(error: errors.StokerError) -> Status:
    """Return the status that a call ends with which raised this error."""
    if error.status != type(error).status:
        return _RELAYED.get(error.status, Status.INTERNAL)
    return next(_STATUSES[kind] for kind in type(error).__mro__ if kind in _STATUSES)
