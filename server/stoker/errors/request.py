"""Errors that the caller of a request can mend."""

from __future__ import annotations

from collections.abc import Iterable

from stoker.errors.base import StokerError

__all__ = [
    "BodyTooLarge",
    "ExpectationFailed",
    "Forbidden",
    "HeaderTooLarge",
    "HostNotAllowed",
    "ImageTooLarge",
    "InvalidInput",
    "MalformedBody",
    "MethodNotAllowed",
    "NotFound",
    "OutOfScope",
    "QuotaExceeded",
    "RegionTaken",
    "RequestError",
    "RequestOverQuota",
    "RequestTimeout",
    "SequenceRequired",
    "TargetTooLong",
    "Unauthorized",
    "UnknownSequence",
    "UnknownService",
    "UnsupportedEncoding",
]


class RequestError(StokerError):
    """The caller can mend the request."""

    status, code = 400, "bad_request"


class MalformedBody(RequestError):
    """The body is not what its content type says: not JSON, not UTF-8, NaN, cut short."""

    status, code = 400, "malformed_body"

    @classmethod
    def not_json(cls, reason: object) -> MalformedBody:
        """Return the error of a body that is to be JSON and is none."""
        return cls(f"Request body is not valid JSON: {reason}")

    @classmethod
    def not_utf8(cls, error: UnicodeDecodeError) -> MalformedBody:
        """Return the error of a body that is to be text and is none, in the words of the Azure inference server."""
        return cls(f"Input cannot be decoded as UTF-8: {error}")


class InvalidInput(RequestError):
    """The body is well formed, but its content does not fit the model's signature."""

    status, code = 422, "invalid_input"

    @classmethod
    def refused_by_model(cls, reason: str) -> InvalidInput:
        """Return the error of tensors that the runtime refuses, for the reason that it gives."""
        return cls(f"The model cannot take these tensors: {reason}")

    @classmethod
    def different_rows(cls, counts: Iterable[tuple[str, int]]) -> InvalidInput:
        """Return the error of inputs, by name, that do not have the same number of rows."""
        listed = ", ".join(f"{name} {count}" for name, count in counts)
        return cls(f"All inputs must have the same number of rows, got: {listed}.")


class SequenceRequired(RequestError):
    """The model keeps state, and the request does not say of which sequence it is."""

    status, code = 400, "sequence_required"

    def __init__(self) -> None:
        super().__init__(
            "This model keeps state: say of which sequence the request is, with sequence_id, and with sequence_start "
            "in its first one; at a scoring URI with the header 'Stoker-Sequence: ID; start'."
        )


class UnknownSequence(RequestError):
    """The request does not begin its sequence, and there is none: it has ended, was idle, or its replica was lost."""

    status, code = 400, "unknown_sequence"

    def __init__(self) -> None:
        super().__init__(
            "There is no such sequence: it was not started, has ended, was idle for too long, or was lost with its "
            "device process. Start it, with sequence_start, or 'Stoker-Sequence: ID; start', in its first request."
        )


class Unauthorized(RequestError):
    """No key or token, or not a valid one; `challenge` is what `WWW-Authenticate` says."""

    status, code = 401, "unauthorized"

    def __init__(self, message: str, *, challenge: str = "Bearer") -> None:
        super().__init__(message)
        self.challenge = challenge


class Forbidden(RequestError):
    """This server, as it was started, does not do that for anybody who asks in this way."""

    status, code = 403, "forbidden"


class OutOfScope(Forbidden):
    """The caller's key is valid, but not for this model."""

    status, code = 403, "out_of_scope"


class HostNotAllowed(Forbidden):
    """The request was sent to a host that this server does not answer for, perhaps by a page of that host."""

    status, code = 403, "host_not_allowed"


class NotFound(RequestError):
    """No route has this path."""

    status, code = 404, "not_found"


class RegionTaken(RequestError):
    """A region of shared memory has this name already, or there are as many as there may be."""

    status, code = 409, "region_taken"


class UnknownService(RequestError):
    """No model is served under this name."""

    status, code = 404, "unknown_service"


class MethodNotAllowed(RequestError):
    """The path exists, but not with this method; `allowed` are the methods that it has."""

    status, code = 405, "method_not_allowed"

    def __init__(self, message: str, *, allowed: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.allowed = allowed


class RequestTimeout(RequestError):
    """The request did not arrive in time."""

    status, code = 408, "request_timeout"


class BodyTooLarge(RequestError):
    """The body is larger than `max_body_mb`, or than a row once it is in the model's datatypes."""

    status, code = 413, "body_too_large"


class ImageTooLarge(RequestError):
    """Decoding the image would take too much memory or time: too many pixels, scans or parts."""

    status, code = 413, "image_too_large"


class RequestOverQuota(RequestError):
    """The request has more rows than its caller may ever send at once."""

    status, code = 413, "request_over_quota"


class QuotaExceeded(RequestError):
    """The caller has had as many rows, or as much device time, as their key allows for now."""

    status, code = 429, "quota_exceeded"


class TargetTooLong(RequestError):
    """Path and query of the request are longer than the server reads."""

    status, code = 414, "target_too_long"

    @classmethod
    def over(cls, limit_bytes: int) -> TargetTooLong:
        """Return the error of a longer target than this."""
        return cls(f"Path and query are longer than {limit_bytes} bytes.")


class UnsupportedEncoding(RequestError):
    """The content encoding or media type is not one that the server reads; `accepted` are the encodings it does."""

    status, code = 415, "unsupported_encoding"

    def __init__(self, message: str, *, accepted: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.accepted = accepted


class ExpectationFailed(RequestError):
    """The header `Expect` asks for something else than `100-continue`."""

    status, code = 417, "expectation_failed"


class HeaderTooLarge(RequestError):
    """A header exceeds its limit."""

    status, code = 431, "header_too_large"

    @classmethod
    def over(cls, limit_bytes: int) -> HeaderTooLarge:
        """Return the error of headers that are together longer than this."""
        return cls(f"The request's headers are larger than {limit_bytes} bytes.")
