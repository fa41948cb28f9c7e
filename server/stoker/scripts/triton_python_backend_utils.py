"""The module `triton_python_backend_utils` of Triton's Python backend, for a `model.py` that imports it.

Names, arguments and results are those of Triton's documentation of that backend. All tensors are in host memory. A
part that is not offered raises an exception that names it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np

from stoker.scripts.server_calls import CallFailed, call_model, is_ready
from stoker.wire.datatypes import TRITON_DTYPES

TRITON_STRING_TO_NUMPY: Final[dict[str, Any]] = {
    name: np.object_ if dtype == "string" else np.dtype(dtype).type
    for name, dtype in TRITON_DTYPES.items()
    if dtype != "bfloat16"
}
TRITONSERVER_MEMORY_CPU: Final = 0
TRITONSERVER_MEMORY_GPU: Final = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_START: Final = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END: Final = 2

_NOT_OFFERED: Final = {
    "MetricFamily": "metrics of a model's own: the server counts requests, batches and times at /metrics",
    "load_model": "loading from within a model: use the model repository API",
    "unload_model": "unloading from within a model: use the model repository API",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL": "decoupled answers: a score.py whose run yields answers in pieces",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE": "rescheduling: loop within execute",
}


class TritonModelException(Exception):
    """An error of a model, whose text its callers get."""

    def message(self) -> str:
        """The text."""
        return str(self)


class NotOffered(TritonModelException, AttributeError):
    """A part of Triton's Python backend that is not offered here."""


def __getattr__(name: str) -> NoReturn:
    if name in _NOT_OFFERED:
        raise _not_offered(name, _NOT_OFFERED[name])
    raise AttributeError(f"triton_python_backend_utils has no attribute {name!r} here")


def _not_offered(name: str, feature: str) -> NotOffered:
    return NotOffered(f"pb_utils.{name} is not offered, that is {feature}")


class TritonError:
    """The error of one response, or of one call of a model."""

    UNKNOWN: Final = "UNKNOWN"
    INTERNAL: Final = "INTERNAL"
    NOT_FOUND: Final = "NOT_FOUND"
    INVALID_ARG: Final = "INVALID_ARG"
    UNAVAILABLE: Final = "UNAVAILABLE"
    UNSUPPORTED: Final = "UNSUPPORTED"
    ALREADY_EXISTS: Final = "ALREADY_EXISTS"
    CANCELLED: Final = "CANCELLED"

    def __init__(self, message: str, code: str = INTERNAL) -> None:
        self._message, self._code = message, code

    def __str__(self) -> str:
        return self._message

    def message(self) -> str:
        """The text."""
        return self._message

    def code(self) -> str:
        """One of the codes above."""
        return self._code


class _Capsule:
    """A capsule of DLPack on the CPU as an object that exports it."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class Tensor:
    """A tensor with its name.

    Args:
        numpy_array: Numbers, booleans or, for strings, an `object` array of `bytes` or `str`.
    """

    def __init__(self, name: str, numpy_array: np.ndarray) -> None:
        if not isinstance(numpy_array, np.ndarray):
            raise TritonModelException(
                f"the tensor {name!r} must be a numpy array, not {type(numpy_array).__name__}"
            )
        self._name, self._array = name, numpy_array

    def name(self) -> str:
        """Its name."""
        return self._name

    def as_numpy(self) -> np.ndarray:
        """The array."""
        return self._array

    def shape(self) -> list[int]:
        """Its sizes."""
        return list(self._array.shape)

    def is_cpu(self) -> bool:
        """Whether it is in host memory: always."""
        return True

    def to_dlpack(self) -> Any:
        """Return a capsule of DLPack that shares the array's memory."""
        return self._array.__dlpack__()

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> Tensor:
        """Return a tensor that shares the host memory of a capsule, or of an object that exports one."""
        try:
            return Tensor(name, np.from_dlpack(tensor if hasattr(tensor, "__dlpack__") else _Capsule(tensor)))
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise TritonModelException(
                f"the tensor {name!r} cannot be taken by DLPack ({error}): move it to the CPU first"
            ) from error


class PreferredMemory:
    """The place of the outputs of another model: host memory."""

    def __init__(self, preferred_memory_type: int, preferred_device_id: int = 0) -> None:
        del preferred_device_id
        if preferred_memory_type != TRITONSERVER_MEMORY_CPU:
            raise _not_offered("TRITONSERVER_MEMORY_GPU", "outputs on a GPU: move them there")


class InferenceRequest:
    """A request that a model answers, or a request to another model of the same server."""

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] = (),
        requested_output_names: Sequence[str] = (),
        model_name: str = "",
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: None = None,
        parameters: Mapping[str, Any] | str | None = None,
    ) -> None:
        """Prepare a request.

        Args:
            model_version: The version; -1 for the version of requests that name none.
            timeout: How long to wait in microseconds; 0 for as long as the answered request may take.
        """
        del preferred_memory, trace
        self.model_name, self.model_version = model_name, model_version
        self._id, self._correlation_id = request_id, correlation_id
        self._inputs, self._outputs = list(inputs), list(requested_output_names)
        self._flags, self._timeout_us = flags, timeout
        self._parameters = json.loads(parameters) if isinstance(parameters, str) else dict(parameters or {})

    def inputs(self) -> list[Tensor]:
        """The inputs; optional ones that the caller left out are missing."""
        return self._inputs

    def request_id(self) -> str:
        """The id that the caller gave; empty without one."""
        return self._id

    def correlation_id(self) -> int | str:
        """The id of a sequence; 0 without one."""
        return self._correlation_id

    def requested_output_names(self) -> list[str]:
        """The names of the outputs that the caller asks for."""
        return self._outputs

    def parameters(self) -> str:
        """The caller's own parameters as a JSON object."""
        return json.dumps(self._parameters)

    def flags(self) -> int:
        """Flags of a sequence."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Set the flags of a sequence."""
        self._flags = flags

    def timeout(self) -> int:
        """The timeout in microseconds; 0 without one."""
        return self._timeout_us

    def is_cancelled(self) -> bool:
        """Whether the caller has gone: not known here."""
        return False

    def trace(self) -> None:
        """No trace."""

    def get_response_sender(self) -> NoReturn:
        """Refuse decoupled answers."""
        raise _not_offered(
            "InferenceRequest.get_response_sender", _NOT_OFFERED["TRITONSERVER_RESPONSE_COMPLETE_FINAL"]
        )

    def set_release_flags(self, flags: int) -> NoReturn:
        """Refuse to answer the request in a later batch."""
        del flags
        raise _not_offered(
            "InferenceRequest.set_release_flags", _NOT_OFFERED["TRITONSERVER_REQUEST_RELEASE_RESCHEDULE"]
        )

    def exec(self, decoupled: bool = False) -> InferenceResponse:
        """Call the other model, and wait for its answer; errors are in the response."""
        if decoupled:
            raise _not_offered("InferenceRequest.exec(decoupled=True)", "answers in pieces of other models")
        if not self.model_name:
            raise TritonModelException("a request to another model needs its model_name")
        sequence = {
            "sequence_id": self._correlation_id,
            "sequence_start": bool(self._flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_START),
            "sequence_end": bool(self._flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_END),
        }
        try:
            outputs = call_model(
                self.model_name,
                None if self.model_version < 0 else self.model_version,
                {one.name(): with_bytes(one.as_numpy()) for one in self._inputs},
                self._outputs,
                request_id=self._id,
                timeout_us=self._timeout_us,
                parameters={**self._parameters, **(sequence if self._correlation_id else {})},
            )
        except CallFailed as error:
            return InferenceResponse(error=TritonError(str(error), _CODES.get(error.status, "INTERNAL")))
        return InferenceResponse([Tensor(name, array) for name, array in outputs.items()])

    async def async_exec(self, decoupled: bool = False) -> InferenceResponse:
        """Do the same without blocking the event loop."""
        return await asyncio.to_thread(self.exec, decoupled)


_CODES: Final = {
    0: "UNAVAILABLE",
    400: "INVALID_ARG",
    404: "NOT_FOUND",
    501: "UNSUPPORTED",
    503: "UNAVAILABLE",
}


class InferenceResponse:
    """The answer to one request: its outputs, or an error."""

    def __init__(self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None) -> None:
        self._outputs, self._error = list(output_tensors), error

    def output_tensors(self) -> list[Tensor]:
        """The outputs."""
        return self._outputs

    def has_error(self) -> bool:
        """Whether it is an error."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """The error, or None."""
        return self._error


_OF_TENSORS: Final = ("name", "data_type", "dims")


class ModelConfig:
    """The configuration that `auto_complete_config` completes."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config

    def as_dict(self) -> dict[str, Any]:
        """The configuration."""
        return self._config

    def add_input(self, properties: Mapping[str, Any]) -> None:
        """Add an input; it may not contradict the configuration."""
        self._add("input", properties)

    def add_output(self, properties: Mapping[str, Any]) -> None:
        """Add an output; it may not contradict the configuration."""
        self._add("output", properties)

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set the most rows of a batch; 0 for none. It may not contradict the configuration."""
        written = self._config["max_batch_size"]
        if written not in (0, max_batch_size):
            raise TritonModelException(
                f"max_batch_size is {written} in config.pbtxt, and {max_batch_size} in auto_complete_config: correct "
                "one of both"
            )
        self._config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Let several requests share a call of `execute`."""
        self._config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, policy: Mapping[str, Any]) -> None:
        """Refuse decoupled answers."""
        if policy.get("decoupled"):
            raise _not_offered(
                "ModelConfig.set_model_transaction_policy",
                "decoupled: a score.py whose run yields has pieces",
            )

    def _add(self, side: str, properties: Mapping[str, Any]) -> None:
        allowed = (*_OF_TENSORS, "optional") if side == "input" else _OF_TENSORS
        for name in properties:
            if name not in allowed:
                raise TritonModelException(
                    f"auto_complete_config gives the {side} {properties.get('name')!r} the property {name!r}; there "
                    f"are: {', '.join(allowed)}"
                )
        for name in _OF_TENSORS:
            if name not in properties:
                raise TritonModelException(
                    f"auto_complete_config adds an {side} without {name}: {dict(properties)}"
                )
        for known in self._config[side]:
            if known["name"] == properties["name"]:
                for name, added in properties.items():
                    if known.setdefault(name, added) != added:
                        raise TritonModelException(
                            f"the {side} {known['name']!r} has the {name} {known[name]} in config.pbtxt, and "
                            f"{added} in auto_complete_config: correct one of both"
                        )
                return
        self._config[side].append(dict(properties))


class Logger:
    """Writes into the server's log."""

    ERROR: Final = logging.ERROR
    WARNING: Final = logging.WARNING
    INFO: Final = logging.INFO
    VERBOSE: Final = logging.DEBUG

    @staticmethod
    def log(message: str, level: int = INFO) -> None:
        """Log with one of the levels above."""
        _write(level, message)

    @staticmethod
    def log_info(message: str) -> None:
        """Log."""
        _write(logging.INFO, message)

    @staticmethod
    def log_warn(message: str) -> None:
        """Log a warning."""
        _write(logging.WARNING, message)

    @staticmethod
    def log_error(message: str) -> None:
        """Log an error."""
        _write(logging.ERROR, message)

    @staticmethod
    def log_verbose(message: str) -> None:
        """Log where the log is verbose."""
        _write(logging.DEBUG, message)


def _write(level: int, message: str) -> None:
    logger = logging.getLogger("model")
    if logger.isEnabledFor(level):
        caller = sys._getframe(2)  # noqa: SLF001  # the whole stack, by inspect, would take a millisecond
        logger.log(level, "%s:%d: %s", Path(caller.f_code.co_filename).name, caller.f_lineno, message)


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """Return an input of a request, or None."""
    return next((one for one in inference_request.inputs() if one.name() == name), None)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """Return an output of a response, or None."""
    return next((one for one in inference_response.output_tensors() if one.name() == name), None)


def get_input_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return the configuration of an input, or None."""
    return next((one for one in model_config.get("input", ()) if one["name"] == name), None)


def get_output_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return the configuration of an output, or None."""
    return next((one for one in model_config.get("output", ()) if one["name"] == name), None)


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """Return the numpy type of a `TYPE_…`."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def using_decoupled_model_transaction_policy(model_config: Mapping[str, Any]) -> bool:
    """Whether a configuration asks for decoupled answers."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled"))


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Whether another model of this server answers requests."""
    return is_ready(model_name, model_version)


def with_bytes(array: np.ndarray) -> np.ndarray:
    """Return an array in the types of the protocol: strings are `bytes` in an `object` array."""
    if array.dtype.kind not in "OSU":
        return array
    texts = np.empty(array.size, object)
    texts[:] = [
        one if isinstance(one, bytes) else str(one).encode() for one in array.ravel().astype(object).tolist()
    ]
    return texts.reshape(array.shape)
