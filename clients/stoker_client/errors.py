"""The client's error tree.

    StokerClientError
    ├─ InvalidRows              refused before anything was sent: NaN, or no JSON form (also a ValueError)
    ├─ ConnectionFailed         the server cannot be reached, or the connection was lost      retried
    ├─ TimedOut                 the client's own `timeout_s` or `deadline_ms` has passed
    ├─ UnexpectedAnswer         the answer is not one of a Stoker server
    └─ ErrorAnswer              the server answered with an error
       ├─ RequestRefused        4xx: the caller can fix it
       │  ├─ MalformedBody      400 malformed_body
       │  ├─ SequenceRequired   400 sequence_required     the model keeps state: no sequence was named
       │  ├─ UnknownSequence    400 unknown_sequence      none was started, or it has ended
       │  ├─ Unauthorized       401 unauthorized          no key, or a wrong one
       │  ├─ Forbidden          403 forbidden             refused for every key
       │  │  └─ OutOfScope      403 out_of_scope          the key is not for this model
       │  ├─ NotFound           404 not_found
       │  │  └─ UnknownService  404 unknown_service
       │  ├─ MethodNotAllowed   405 method_not_allowed
       │  ├─ RequestTimeout     408 request_timeout       the body did not arrive in time
       │  ├─ AnswerExpired      410 answer_expired        see `Client.fetch`
       │  ├─ CallbackRefused    400 callback_refused
       │  ├─ IdempotencyKeyReused 422 idempotency_key_reused
       │  ├─ RegionTaken        409 region_taken          a region of shared memory of that name
       │  ├─ BodyTooLarge       413 body_too_large
       │  ├─ ImageTooLarge      413 image_too_large       too many pixels to decode
       │  ├─ RequestOverQuota   413 request_over_quota    more rows than the quota ever allows at once
       │  ├─ TargetTooLong      414 target_too_long       path and query
       │  ├─ UnsupportedEncoding 415 unsupported_encoding
       │  ├─ ExpectationFailed  417 expectation_failed
       │  ├─ InvalidInput       422 invalid_input         rows of the wrong shape or type; 400 from `infer`
       │  ├─ HeaderTooLarge     431 header_too_large
       │  └─ NotSupported       501 not_supported         a part of a protocol that the server does not have
       └─ ServiceFailed         5xx: the server could not answer
          ├─ Unavailable        429, 503                                                      retried
          │  ├─ Overloaded      429, 503 overloaded
          │  │  └─ QuotaExceeded 429 quota_exceeded       the caller's own limit
          │  ├─ TooManySequences 503 too_many_sequences   the limit is reached
          │  ├─ SpoolFull       503 spool_full            no room for answers later
          │  ├─ NotReady        503 not_ready             loading, restarting or draining
          │  ├─ DeviceLost      503 device_lost
          │  └─ DeviceOutOfMemory 503 device_out_of_memory
          ├─ DeadlineExceeded   504 deadline_exceeded     the server's own time limit has passed
          ├─ ModelTooLarge      503 model_too_large       it never fits into the server's memory: not retried
          ├─ AttemptsUsedUp     500 attempts_used_up      an answer later that never came
          ├─ ModelFailed        500 model_failed          the message holds an error id for the server's log
          ├─ ScoringTimeout     500 scoring_timeout       the entry script took longer than the server's limit
          ├─ OutputTooLarge     500 output_too_large
          └─ NonFiniteOutput    500 non_finite_output     NaN or infinity, which the server refuses

The class follows from the answer's `code`, and from its status where the code is absent or unknown, so
answers of a proxy in front of the server are classified too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

__all__ = [
    "AnswerExpired",
    "AttemptsUsedUp",
    "BodyTooLarge",
    "CallbackRefused",
    "ConnectionFailed",
    "DeadlineExceeded",
    "DeviceLost",
    "DeviceOutOfMemory",
    "ErrorAnswer",
    "ExpectationFailed",
    "Forbidden",
    "HeaderTooLarge",
    "IdempotencyKeyReused",
    "ImageTooLarge",
    "InvalidInput",
    "InvalidRows",
    "MalformedBody",
    "MethodNotAllowed",
    "ModelFailed",
    "ModelTooLarge",
    "NonFiniteOutput",
    "NotFound",
    "NotReady",
    "NotSupported",
    "OutOfScope",
    "OutputTooLarge",
    "Overloaded",
    "QuotaExceeded",
    "RegionTaken",
    "RequestOverQuota",
    "RequestRefused",
    "RequestTimeout",
    "ScoringTimeout",
    "SequenceRequired",
    "ServiceFailed",
    "SpoolFull",
    "StokerClientError",
    "TargetTooLong",
    "TimedOut",
    "TooManySequences",
    "Unauthorized",
    "Unavailable",
    "UnexpectedAnswer",
    "UnknownSequence",
    "UnknownService",
    "UnsupportedEncoding",
]


class StokerClientError(Exception):
    """Base of every error that the client raises on purpose.

    Attributes:
        message: What went wrong, in the server's words if it answered.
        status: HTTP status of the answer; None without one.
        code: The server's stable error code; None without one.
        request_id: The answer's `x-ms-request-id`, under which the server logged the request.
        retry_after_s: The server's Retry-After in seconds, to the millisecond if it was that precise.
        attempts: How often the request was sent.
    """

    retried: ClassVar[bool] = False
    """Whether a second attempt can do better than the first."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        request_id: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.request_id = request_id
        self.retry_after_s = retry_after_s
        self.attempts = 1

    def __str__(self) -> str:
        details = []
        if self.status is not None:
            details.append(f"{self.status} {self.code}" if self.code else f"{self.status}")
        if self.request_id:
            details.append(f"request id {self.request_id}")
        if self.attempts > 1:
            details.append(f"after {self.attempts} attempts")
        return f"{self.message} ({', '.join(details)})" if details else self.message


class InvalidRows(StokerClientError, ValueError):
    """The rows have no JSON form; nothing was sent."""


class ConnectionFailed(StokerClientError):
    """The server cannot be reached, or the connection was lost before the answer was complete."""

    retried = True


class TimedOut(StokerClientError):
    """The client's own time limit has passed, `timeout_s` or `deadline_ms`."""


class UnexpectedAnswer(StokerClientError):
    """The answer is not one of a Stoker server, such as a proxy's page or a redirect."""


class ErrorAnswer(StokerClientError):
    """The server answered with an error."""


class RequestRefused(ErrorAnswer):
    """The caller can fix the request (status 4xx)."""


class MalformedBody(RequestRefused):
    """The server could not read the body."""


class SequenceRequired(RequestRefused):
    """The model keeps state: name the request's sequence with `sequence_id`."""


class UnknownSequence(RequestRefused):
    """The request does not start its sequence, and there is none: it has ended, was idle, or was lost."""


class Unauthorized(RequestRefused):
    """No key was sent, or one that is not valid for the service."""


class Forbidden(RequestRefused):
    """The server does not do that for anybody, as it was started."""


class OutOfScope(Forbidden):
    """The key is valid, but not for this model."""


class NotFound(RequestRefused):
    """The server has no such path."""


class UnknownService(NotFound):
    """The server serves no model under this name."""


class MethodNotAllowed(RequestRefused):
    """The path is none that rows can be posted to."""


class RequestTimeout(RequestRefused):
    """The request did not arrive within the time that the server allows for it."""


class AnswerExpired(RequestRefused):
    """The time for fetching an answer is over, or its file was damaged."""


class CallbackRefused(RequestRefused):
    """The callback is no URL, or the server may not tell its host."""


class IdempotencyKeyReused(RequestRefused):
    """Another request was sent with this idempotency key."""


class RegionTaken(RequestRefused):
    """A region of shared memory has this name already, or the limit of regions is reached."""


class BodyTooLarge(RequestRefused):
    """The body is larger than the server's `max_body_mb`: send fewer rows a request."""


class ImageTooLarge(RequestRefused):
    """An image has more pixels than the server decodes."""


class RequestOverQuota(RequestRefused):
    """The request has more rows than its key may ever send at once: send fewer rows a request."""


class TargetTooLong(RequestRefused):
    """Path and query of the request are longer than the server reads."""


class UnsupportedEncoding(RequestRefused):
    """The server does not read this content encoding or media type."""


class ExpectationFailed(RequestRefused):
    """The header `Expect` asked for something that the server does not know."""


class InvalidInput(RequestRefused):
    """The rows do not fit the model's signature; the message has the expected and the actual form."""


class HeaderTooLarge(RequestRefused):
    """A header is larger than the server allows."""


class NotSupported(RequestRefused):
    """A part of a protocol that the server does not have."""


class ServiceFailed(ErrorAnswer):
    """The request may be fine, but the server could not answer it."""


class Unavailable(ServiceFailed):
    """The server cannot answer now, but may later (status 429 or 503)."""

    retried = True


class Overloaded(Unavailable):
    """The server holds as many rows as it can."""


class QuotaExceeded(Overloaded):
    """The key has used up its rows or its device time for now (status 429)."""


class TooManySequences(Unavailable):
    """The server's limit of sequences with state is reached."""


class SpoolFull(Unavailable):
    """The server keeps as many requests to be answered later as it may."""


class NotReady(Unavailable):
    """The model is loading, restarting or draining."""


class DeviceLost(Unavailable):
    """The server's device process died while it held the rows; a new one is being started."""


class DeviceOutOfMemory(Unavailable):
    """The server's device had no memory for the rows, even alone; the message holds an error id."""


class DeadlineExceeded(ServiceFailed):
    """The server did not answer within its `timeout_ms`."""


class ModelTooLarge(ServiceFailed):
    """The model alone needs more memory than the server may give to models."""


class AttemptsUsedUp(ServiceFailed):
    """The server has begun a request that is answered later too often without an answer."""


class ModelFailed(ServiceFailed):
    """The model refused the rows or its entry script raised; the message holds an error id."""


class ScoringTimeout(ServiceFailed):
    """The entry script did not return within the server's `timeout_ms`."""


class OutputTooLarge(ServiceFailed):
    """The model's answer is larger than the space that its rows have."""


class NonFiniteOutput(ServiceFailed):
    """The answer holds NaN or infinity, and the server's setting `non_finite` is `error`."""


def _code_of(kind: type[ErrorAnswer]) -> str:
    """Return the server's code of a class, which is its name: `invalid_input` for `InvalidInput`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()


def _subclasses(kind: type[ErrorAnswer]) -> Iterator[type[ErrorAnswer]]:
    for child in kind.__subclasses__():
        yield child
        yield from _subclasses(child)


_BY_CODE: dict[str, type[ErrorAnswer]] = {_code_of(kind): kind for kind in _subclasses(ErrorAnswer)}

_BY_STATUS: dict[int, type[ErrorAnswer]] = {
    401: Unauthorized,
    404: NotFound,
    405: MethodNotAllowed,
    408: RequestTimeout,
    413: BodyTooLarge,
    415: UnsupportedEncoding,
    422: InvalidInput,
    431: HeaderTooLarge,
    429: Overloaded,
    503: Unavailable,
    504: DeadlineExceeded,
}


def error_class(status: int, code: str | None) -> type[ErrorAnswer]:
    """Return the class of an answer with this status (400 to 599) and code."""
    if code in _BY_CODE:
        return _BY_CODE[code]
    return _BY_STATUS.get(status, RequestRefused if status < 500 else ServiceFailed)
