"""Errors of a request that the server cannot answer."""

from __future__ import annotations

from stoker.errors.base import StokerError
from stoker.errors.refusals import Refusal

__all__ = [
    "DeadlineExceeded",
    "DeviceLost",
    "DeviceOutOfMemory",
    "ModelFailed",
    "NonFiniteOutput",
    "NotReady",
    "NotSupported",
    "OutputTooLarge",
    "Overloaded",
    "ScoringTimeout",
    "ServingError",
    "TooManySequences",
    "unforeseen",
]


class ServingError(StokerError):
    """The request is fine; the server cannot answer it."""


class NotSupported(ServingError):
    """A part of a protocol that this server does not have."""

    status, code = 501, "not_supported"


class Overloaded(ServingError):
    """Every row of the model's arena is taken, or there is no memory for the request."""

    status, code = 503, "overloaded"


class TooManySequences(ServingError):
    """The model keeps the state of as many sequences as it may; one more can start when others have ended."""

    status, code = 503, "too_many_sequences"

    def __init__(self) -> None:
        super().__init__(
            "The model keeps the state of as many sequences as it may (max_sequences); try again later.",
            retry_after_s=1,
        )


class NotReady(ServingError):
    """The model is loading, restarting or draining."""

    status, code = 503, "not_ready"


class DeviceLost(ServingError):
    """The device process died while it held the request's rows."""

    status, code = 503, "device_lost"


class DeviceOutOfMemory(ServingError):
    """The device had no memory for the rows, not even alone; the log has more under `error_id`."""

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
    """The entry script raised, or the runtime refused the rows; the log has the reason under `error_id`."""

    status, code = 500, "model_failed"
    run_failed = True

    def __init__(self, *, error_id: str) -> None:
        # The text of the Azure inference server, which clients know.
        super().__init__("An unexpected error occurred in scoring script. Check the logs for more info.")
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
    """The answer has numbers that JSON cannot hold, and `non_finite` says that this is an error."""

    status, code = 500, "non_finite_output"
    run_failed = True

    def __init__(self) -> None:
        super().__init__("The model's answer holds NaN or infinity.")


def unforeseen(error: BaseException) -> StokerError:
    """Return what a caller is told of an error that nobody raised on purpose; the log says more.

    A request that there was no memory for may be answered when others have ended.
    """
    if isinstance(error, MemoryError):
        return Overloaded("There is no memory for this request now.", retry_after_s=1)
    return StokerError("An unexpected internal error occurred. Check the logs for more info.")
