"""The error tree. Each error has an HTTP status and a stable code that clients may match on.

StokerError                     500 internal
├─ RequestError                 the caller can fix it
│  ├─ MalformedBody             400 malformed_body      not JSON, not UTF-8, NaN, an incomplete body
│  ├─ InvalidInput              422 invalid_input       JSON of the wrong shape or type
│  ├─ SequenceRequired          400 sequence_required   the model keeps state, and no sequence was named
│  ├─ UnknownSequence           400 unknown_sequence    it was not started, or has ended
│  ├─ Unauthorized              401 unauthorized
│  ├─ Forbidden                 403 forbidden           refused for every key
│  │  ├─ OutOfScope             403 out_of_scope        the key is not for this model
│  │  └─ HostNotAllowed         403 host_not_allowed    without keys: the Host is not in allowed_hosts
│  ├─ NotFound                  404 not_found           no such path
│  ├─ UnknownService            404 unknown_service
│  ├─ MethodNotAllowed          405 method_not_allowed
│  ├─ RegionTaken               409 region_taken        shared memory: a name twice, or too many
│  ├─ AnswerExpired             410 answer_expired      a request to be answered later, after its time
│  ├─ CallbackRefused           400 callback_refused    a Stoker-Callback that the operator has not allowed
│  ├─ IdempotencyKeyReused      422 idempotency_key_reused  the same Idempotency-Key for another request
│  ├─ RequestTimeout            408 request_timeout     the request did not arrive in time
│  ├─ BodyTooLarge              413 body_too_large
│  ├─ ImageTooLarge             413 image_too_large     too many pixels to decode
│  ├─ RequestOverQuota          413 request_over_quota  more rows than the quota ever allows at once
│  ├─ TargetTooLong             414 target_too_long     path and query
│  ├─ UnsupportedEncoding       415 unsupported_encoding
│  ├─ ExpectationFailed         417 expectation_failed  an Expect other than 100-continue
│  ├─ QuotaExceeded             429 quota_exceeded      the limit of the caller or models; Retry-After
│  └─ HeaderTooLarge            431 header_too_large
├─ ServingError                 the server cannot answer this request
│  ├─ AttemptsUsedUp            500 attempts_used_up    answered later: begun too often without an answer
│  ├─ NotSupported              501 not_supported       a part of a protocol that this server lacks
│  ├─ Overloaded                503 overloaded          no row, or no memory; Retry-After
│  ├─ SpoolFull                 503 spool_full          no room for requests that are answered later; Retry-After
│  ├─ TooManySequences          503 too_many_sequences  the limit is reached; Retry-After
│  ├─ NotReady                  503 not_ready           loading, restarting or draining
│  ├─ ModelTooLarge             503 model_too_large     it never fits into memory_mb
│  ├─ DeviceLost                503 device_lost         the device process died with the request
│  ├─ DeviceOutOfMemory         503 device_out_of_memory  the device had no memory for the rows
│  ├─ DeadlineExceeded          504 deadline_exceeded
│  ├─ ModelFailed               500 model_failed        run() raised or the runtime refused the row
│  ├─ ScoringTimeout            500 scoring_timeout     run() had begun and did not return in time
│  ├─ OutputTooLarge            500 output_too_large    the answer does not fit its row
│  └─ NonFiniteOutput           500 non_finite_output   NaN or infinity, where non_finite is error
└─ OperatorError                the operator can fix it: settings, files, devices; exit code 2
   ├─ InvalidSettings
   ├─ RepositoryError
   │  ├─ UnknownModel
   │  ├─ ModelInUse
   │  └─ CorruptModel
   ├─ DeviceUnavailable
   ├─ EnvironmentUnusable          a model's environment file is unreadable, or its packages cannot be installed
   ├─ BatchFailed               exit code 1: rows scored without a server have no answer
   ├─ ReloadFailed              the new server did not start; the old one continues
   └─ LoadFailed                exit code 3, as the Azure inference server has it
      ├─ LoadTimeout            it took longer than load_timeout_s
      └─ ParityFailed           it did not prove to answer like the version that it would replace
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice, takewhile
from typing import Any, ClassVar, Final, NamedTuple, Self, TypeVar

_MS_NS: Final = 1_000_000


class Refusal(NamedTuple):
    """Why a request was refused, and when it may come back: for its caller, and for the counters.

    Attributes:
        retry_after_ms: After which time a retry makes sense, at least 1.
        expected_ns: How long the answer was expected to take; 0 if unknown.
        rows_ahead: How many rows would have been served before it.
        reason: In a word: `target`, `deadline` or `rows`, or which quota of the caller.
        target_ns: The latency target; 0 without one.
    """

    status: int
    code: str
    retry_after_ms: int
    expected_ns: int = 0
    rows_ahead: int = 0
    reason: str = "rows"
    target_ns: int = 0

    @property
    def retry_after_s(self) -> int:
        """The same in whole seconds, rounded up."""
        return max(1, -(-self.retry_after_ms // 1000))

    @property
    def explained(self) -> str:
        """The value of the header `Stoker-Refused`: the reason, and the known figures."""
        parts = [f"reason={self.reason}"]
        if self.expected_ns:
            parts.append(f"expected-ms={-(-self.expected_ns // _MS_NS)}")
        if self.target_ns:
            parts.append(f"target-ms={self.target_ns // _MS_NS}")
        if self.rows_ahead:
            parts.append(f"rows-ahead={self.rows_ahead}")
        return ", ".join(parts)


class StokerError(Exception):
    """Base of every error that Stoker raises on purpose; `str(error)` is safe to show to the caller."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal"
    run_failed: ClassVar[bool] = False
    """Whether the model or script failed, for the header `x-ms-run-function-failed`."""
    error_id: str | None = None
    """The id under which the log has details, or None."""

    def __init__(
        self, message: str, *, retry_after_s: int | None = None, refusal: Refusal | None = None
    ) -> None:
        super().__init__(message)
        self.refusal = refusal
        """Why the request was refused and when to retry, or None."""
        self.retry_after_s = retry_after_s if refusal is None else refusal.retry_after_s
        """Whole seconds after which a retry makes sense, or None."""

    def within(self, place: str) -> Self:
        """Return the same error with the place in front of its message."""
        copy = type(self).__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy.args = (f"{place}: {self}",)
        return copy

    @property
    def retry_after_ms(self) -> int | None:
        """The same in milliseconds, as precisely as it is known."""
        if self.refusal is not None:
            return self.refusal.retry_after_ms
        return None if self.retry_after_s is None else self.retry_after_s * 1000


class RequestError(StokerError):
    """The caller can fix the request."""

    status, code = 400, "bad_request"


class MalformedBody(RequestError):
    """The body does not fit its content type: no JSON, no UTF-8, NaN, cut short."""

    status, code = 400, "malformed_body"

    @classmethod
    def not_json(cls, reason: object) -> MalformedBody:
        """Return the error of a body that is no valid JSON."""
        return cls(f"Request body is not valid JSON: {reason}")

    @classmethod
    def not_utf8(cls, error: UnicodeDecodeError) -> MalformedBody:
        """Return the error of a text that is no UTF-8, in the words of the Azure inference server."""
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
    """No valid key or token; `challenge` is the value of `WWW-Authenticate`."""

    status, code = 401, "unauthorized"

    def __init__(self, message: str, *, challenge: str = "Bearer") -> None:
        super().__init__(message)
        self.challenge = challenge


class Forbidden(RequestError):
    """This server, as it was started, refuses such requests from everybody."""

    status, code = 403, "forbidden"


class OutOfScope(Forbidden):
    """The caller's key is valid, but not for this model."""

    status, code = 403, "out_of_scope"


class HostNotAllowed(Forbidden):
    """The request names a host that this server does not answer for; perhaps a page of that host sent it."""

    status, code = 403, "host_not_allowed"


class NotFound(RequestError):
    """No route has this path."""

    status, code = 404, "not_found"


class RegionTaken(RequestError):
    """A region of shared memory has this name already, or the limit of regions is reached."""

    status, code = 409, "region_taken"


class AnswerExpired(RequestError):
    """A request to be answered later whose time has passed: its answer is gone, or it was never answered."""

    status, code = 410, "answer_expired"


class CallbackRefused(RequestError):
    """The URL of a callback is invalid, or the operator has not allowed its host."""

    status, code = 400, "callback_refused"


class IdempotencyKeyReused(RequestError):
    """Another request was sent with the same `Idempotency-Key`."""

    status, code = 422, "idempotency_key_reused"


class UnknownService(RequestError):
    """No model is served under this name."""

    status, code = 404, "unknown_service"


class MethodNotAllowed(RequestError):
    """The path exists, but not with this method; `allowed` has its methods."""

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
    """The request has more rows than a quota of its caller or models ever allows at once."""

    status, code = 413, "request_over_quota"


class QuotaExceeded(RequestError):
    """The rows or the device time that its caller or models may have for now are used up."""

    status, code = 429, "quota_exceeded"


class TargetTooLong(RequestError):
    """Path and query of the request are longer than the server reads."""

    status, code = 414, "target_too_long"

    @classmethod
    def over(cls, limit_bytes: int) -> TargetTooLong:
        """Return the error of a longer target than this."""
        return cls(f"Path and query are longer than {limit_bytes} bytes.")


class UnsupportedEncoding(RequestError):
    """The server does not read this content encoding or media type; `accepted` has the encodings that it does."""

    status, code = 415, "unsupported_encoding"

    def __init__(self, message: str, *, accepted: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.accepted = accepted


class ExpectationFailed(RequestError):
    """The header `Expect` is not `100-continue`."""

    status, code = 417, "expectation_failed"


class HeaderTooLarge(RequestError):
    """A header exceeds its limit."""

    status, code = 431, "header_too_large"

    @classmethod
    def over(cls, limit_bytes: int) -> HeaderTooLarge:
        """Return the error of headers that are together longer than this."""
        return cls(f"The request's headers are larger than {limit_bytes} bytes.")


class ServingError(StokerError):
    """The request is fine; the server cannot answer it."""


class AttemptsUsedUp(ServingError):
    """A request that is answered later was begun many times, and each time its process ended or lost it."""

    status, code = 500, "attempts_used_up"


class NotSupported(ServingError):
    """A part of a protocol that this server lacks."""

    status, code = 501, "not_supported"


class Overloaded(ServingError):
    """Every row of the model's arena is taken, or there is no memory for the request: 503, not 429 (decision 8)."""

    status, code = 503, "overloaded"


class SpoolFull(ServingError):
    """The spool has no room for another request that is answered later."""

    status, code = 503, "spool_full"


class TooManySequences(ServingError):
    """The limit of sequences with state is reached; another one can start when others have ended."""

    status, code = 503, "too_many_sequences"

    def __init__(self) -> None:
        super().__init__(
            "The model keeps the state of as many sequences as it may (max_sequences); try again later.",
            retry_after_s=1,
        )


class NotReady(ServingError):
    """The model is loading, restarting or draining."""

    status, code = 503, "not_ready"


class ModelTooLarge(ServingError):
    """The model alone needs more memory than `memory_mb`: to try again is of no use."""

    status, code = 503, "model_too_large"


class DeviceLost(ServingError):
    """The device process died while it held the request's rows."""

    status, code = 503, "device_lost"


class DeviceOutOfMemory(ServingError):
    """The device had no memory for the rows, even alone; the log has details under `error_id`."""

    status, code = 503, "device_out_of_memory"

    def __init__(self, *, error_id: str) -> None:
        super().__init__("The device has no memory for this request now; try again later.", retry_after_s=1)
        self.error_id = error_id


class DeadlineExceeded(ServingError):
    """The request was not answered within `timeout_ms`, or would have missed a target that refuses late answers."""

    status, code = 504, "deadline_exceeded"

    def __init__(
        self,
        message: str = "The request was not answered within its timeout.",
        *,
        refusal: Refusal | None = None,
    ) -> None:
        super().__init__(message, refusal=refusal)


class ModelFailed(ServingError):
    """The model failed on the rows; the log has the reason under `error_id`, unless the message has it."""

    status, code = 500, "model_failed"
    run_failed = True

    def __init__(self, *, error_id: str, message: str = "") -> None:
        # The text of the Azure inference server, which clients know.
        super().__init__(
            message or "An unexpected error occurred in scoring script. Check the logs for more info."
        )
        self.error_id = error_id


class ScoringTimeout(ServingError):
    """`run` began and did not return within `timeout_ms`."""

    status, code = 500, "scoring_timeout"
    run_failed = True

    def __init__(self, timeout_ms: int) -> None:
        # The text of the Azure inference server, as above.
        super().__init__(f"Scoring timeout after {timeout_ms} ms")


class OutputTooLarge(ServingError):
    """The model's answer is larger than the space that its rows have."""

    status, code = 500, "output_too_large"
    run_failed = True


class NonFiniteOutput(ServingError):
    """The answer has numbers that JSON cannot hold, and `non_finite` is `error`."""

    status, code = 500, "non_finite_output"
    run_failed = True

    def __init__(self) -> None:
        super().__init__("The model's answer holds NaN or infinity.")


def unexpected_error(error: BaseException) -> StokerError:
    """Return the caller's error for an exception that was not raised on purpose; the log has the details.

    A request for which there was no memory may be answered when others have ended.
    """
    if isinstance(error, MemoryError):
        return Overloaded("There is no memory for this request now.", retry_after_s=1)
    return StokerError("An unexpected internal error occurred. Check the logs for more info.")


class OperatorError(StokerError):
    """The operator can fix it: settings, files, devices. The command line prints it and exits."""

    exit_code: ClassVar[int] = 2


class InvalidSettings(OperatorError):
    """A setting is unknown, has a bad value, or contradicts another."""

    code = "invalid_settings"


class RepositoryError(OperatorError):
    """The repository of registered models refuses the operation."""

    code = "repository_error"


class UnknownModel(RepositoryError):
    """No registered model has this name and version."""

    code = "unknown_model"

    @classmethod
    def deleted(cls, reference: str) -> UnknownModel:
        """Return the error of a version, `NAME:VERSION`, that was there a moment ago."""
        return cls(f"{reference} is not there any more: it was deleted")


class ModelInUse(RepositoryError):
    """The version is being served."""

    code = "model_in_use"


class CorruptModel(RepositoryError):
    """A registered file is missing or is not the one that was registered."""

    code = "corrupt_model"


class DeviceUnavailable(OperatorError):
    """A configured device cannot be used; the message names the missing library or driver."""

    code = "device_unavailable"


class EnvironmentUnusable(OperatorError):
    """A model's environment file cannot be read, or its environment cannot be built."""

    code = "environment_unusable"


class LoadFailed(OperatorError):
    """A model or entry script could not be loaded."""

    code = "load_failed"
    exit_code = 3

    @classmethod
    def unreadable_sample(cls, error: Exception) -> LoadFailed:
        """Return the error of a sample input whose file cannot be read."""
        return cls(f"the sample input cannot be read: {error}")


class LoadTimeout(LoadFailed):
    """A model or entry script was not loaded within `load_timeout_s`: it hangs, or needs longer."""

    code = "load_timeout"


class ParityFailed(LoadFailed):
    """A version did not prove to answer like the one that it would replace, as `parity` requires."""

    code = "parity_failed"


class BatchFailed(OperatorError):
    """Rows of a batch that is scored without a server have no answer: the model fails on them."""

    code = "batch_failed"
    exit_code = 1


class ReloadFailed(OperatorError):
    """A server could not be replaced by a new one, and continues."""

    code = "reload_failed"


# Texts of callers in messages. A text may be 100 MB long, and a message is copied several times on its way into the
# answer and the log.


_MAX_CHARS: Final = 100
_MORE: Final = "…"


_Error = TypeVar("_Error", bound=BaseException)


def without_frames(error: _Error) -> _Error:
    """Return an error without tracebacks: their frames would keep what has failed, such as a session's memory."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def cut(value: Any) -> str:
    """Return the beginning of a text; for a list or object only its type."""
    match value:
        case str():
            return value if len(value) <= _MAX_CHARS else value[:_MAX_CHARS] + _MORE
        case list():
            return "a list"
        case dict():
            return "an object"
        case _:
            return cut(str(value))


def quoted(value: Any) -> str:
    """Return the beginning of a text, quoted like Python's repr; for other values like `cut`."""
    return repr(cut(value)) if isinstance(value, str) else cut(value)


def quoted_names(names: Iterable[str]) -> str:
    """Return the beginning of a comma-separated list of quoted names."""
    # Each name takes more than three characters, so more are never shown.
    return cut(", ".join(map(quoted, islice(names, _MAX_CHARS))))


def json_beginning(value: Any) -> str:
    """Return the first 100 characters of a value's JSON without encoding the rest."""
    return json.dumps(_beginning(value, [_MAX_CHARS]))[:_MAX_CHARS]


def _beginning(value: Any, room: list[int]) -> Any:
    """A copy of a value truncated to the remaining number of characters of its JSON."""
    room[0] -= 1
    match value:
        case str():
            text = value[: max(0, room[0])]
            room[0] -= len(text)
            return text
        case list():
            return [_beginning(item, room) for item in takewhile(lambda _: room[0] > 0, value)]
        case dict():
            items = takewhile(lambda _: room[0] > 0, value.items())
            return {_beginning(key, room): _beginning(item, room) for key, item in items}
        case _:
            return value
