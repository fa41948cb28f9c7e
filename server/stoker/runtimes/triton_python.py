"""Models of Triton's Python backend: the `TritonPythonModel` of a `model.py`, which takes lists of requests.

With `dynamic_batching`, `execute` gets the requests of several callers at once, each with its own tensors. It answers
each by itself, so an error of one is told to its caller alone; if `execute` raises, halves of the list run again.

See decision 56.
"""

from __future__ import annotations

import atexit
import copy
import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec import Struct

from stoker.deployment import Deployment, Device
from stoker.errors import InvalidInput, LoadFailed, ScoringTimeout
from stoker.row_isolation import RowIsolation
from stoker.runtimes.base import ErrorForCaller, Outputs, RowFailure
from stoker.runtimes.packed import Feeds, packed_signature, split_by_rows
from stoker.samples.sample import find_sample_feeds
from stoker.scripts import triton_python_backend_utils as pb_utils
from stoker.scripts.call_watchdog import Watchdog
from stoker.scripts.coroutines import finish
from stoker.scripts.entry_script import call_while_loading, execute_script
from stoker.scripts.exits import contain
from stoker.scripts.imports import PROVIDED_FOR_TRITON
from stoker.scripts.server_calls import CALLERS, on_behalf_of
from stoker.system.logs import SELF_CHECK, requests_in_log
from stoker.tensors import ModelTensors, TensorInfo
from stoker.wire.datatypes import TRITON_DTYPES
from stoker.wire.packed import FACTS, pack, unpack

logger = logging.getLogger(__name__)

_COMPLETED: Final = ("max_batch_size", "input", "output", "dynamic_batching", "model_transaction_policy")
"""The fields of a configuration that `auto_complete_config` may set, as in Triton."""


def load_triton_model(deployment: Deployment, device: Device, watchdog: Watchdog) -> TritonPythonRuntime:
    """Execute a `model.py`, complete its configuration, and initialise its model.

    `finalize` is called when the process ends.

    Raises:
        LoadFailed: It breaks its contract, raises, or fails on its sample.
    """
    path, folder = deployment.path, deployment.model_dir
    if deployment.batching not in ("auto", "none"):
        raise LoadFailed(
            f"{deployment.name} is a model of Triton's Python backend: batching is auto or none, not "
            f"{deployment.batching}"
        )
    base = _base_folder(path)
    sys.path.extend(each for each in [str(base)] if each not in sys.path)
    sys.modules[PROVIDED_FOR_TRITON] = pb_utils
    kind = getattr(execute_script(path, folder), "TritonPythonModel", None)
    if not callable(getattr(kind, "execute", None)):
        raise LoadFailed(f"{path} does not define a class TritonPythonModel with the method execute")
    config = _complete(kind, deployment)
    tensors = _tensors(config, deployment)

    def make() -> Any:
        model = kind()  # type: ignore[misc]  # it has execute
        if hasattr(model, "initialize"):
            model.initialize(_arguments(config, deployment, device, base))
        return model

    model = call_while_loading(make, f"initialize() of {path} raised", folder)
    if hasattr(model, "finalize"):
        atexit.register(model.finalize)
    isolation = _isolation(config, deployment)
    runtime = TritonPythonRuntime(model, tensors, deployment, watchdog, isolation, config["max_batch_size"])
    _try_sample(runtime, deployment)
    return runtime


def _base_folder(path: Path) -> Path:
    """Return the folder of the model, which contains its versions."""
    return path.parent.parent if path.parent.name.isdecimal() else path.parent


def _complete(kind: Any, deployment: Deployment) -> dict[str, Any]:
    """Return the configuration as `auto_complete_config` leaves it."""
    empty: dict[str, Any] = {"max_batch_size": 0, "input": [], "output": [], "parameters": {}}
    config: dict[str, Any] = empty | json.loads(deployment.model_config) | {"name": deployment.name}
    if not hasattr(kind, "auto_complete_config"):
        return config
    passed, written = pb_utils.ModelConfig(config), copy.deepcopy(config)
    failure = f"auto_complete_config() of {deployment.path} raised"
    completed: object = call_while_loading(
        lambda: kind.auto_complete_config(passed), failure, deployment.model_dir
    )
    result = (completed if isinstance(completed, pb_utils.ModelConfig) else passed).as_dict()
    for field, value in result.items():
        if field not in _COMPLETED and value != written.get(field):
            raise LoadFailed(
                f"auto_complete_config() of {deployment.path} sets {field}, which has no effect there: write it into "
                "config.pbtxt"
            )
    if not isinstance(result["max_batch_size"], int) or result["max_batch_size"] < 0:
        raise LoadFailed(
            f"auto_complete_config() of {deployment.path} sets max_batch_size to no number of rows"
        )
    if result.get("model_transaction_policy", {}).get("decoupled"):
        raise LoadFailed(f"{deployment.name} answers decoupled: have a score.py whose run yields pieces")
    return result


def _tensors(config: Mapping[str, Any], deployment: Deployment) -> ModelTensors:
    batched = config["max_batch_size"] > 0
    for side in ("input", "output"):
        if not config[side]:
            raise LoadFailed(
                f"{deployment.name} declares no {side}: its config.pbtxt, beside the folder of the version, or its "
                "auto_complete_config must"
            )
    inputs, outputs = (
        tuple(_tensor(side, one, batched=batched) for one in config[side]) for side in ("input", "output")
    )
    return ModelTensors(inputs, outputs, batched, takes_facts=True)


def _tensor(side: str, properties: Mapping[str, Any], *, batched: bool) -> TensorInfo:
    try:
        dtype = TRITON_DTYPES[properties["data_type"]]
        shape = tuple(map(int, properties["dims"]))
        return TensorInfo(
            str(properties["name"]),
            dtype,
            (-1, *shape) if batched else shape,
            optional=side == "input" and bool(properties.get("optional")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise LoadFailed(
            f"auto_complete_config declares the {side} {dict(properties)}: it needs a name, a data_type such as "
            f"TYPE_FP32 and dims ({error!r})"
        ) from error


def _isolation(config: Mapping[str, Any], deployment: Deployment) -> RowIsolation:
    if deployment.batching == "none":
        return RowIsolation(False, "said", "the setting batching is none")
    if config["max_batch_size"] > 0 and "dynamic_batching" in config:
        return RowIsolation(True, "declared", "its configuration has dynamic_batching")
    return RowIsolation(False, "declared", "its configuration has no dynamic_batching, or max_batch_size 0")


def _arguments(
    config: Mapping[str, Any], deployment: Deployment, device: Device, base: Path
) -> dict[str, str]:
    """Return the arguments of `initialize`. The only GPU that the process sees has the number 0."""
    return {
        "model_config": json.dumps(config),
        "model_instance_kind": "CPU" if device.kind == "cpu" else "GPU",
        "model_instance_name": deployment.name,
        "model_instance_device_id": "0",
        "model_repository": str(base.absolute()),
        "model_version": str(deployment.version),
        "model_name": deployment.name,
    }


def _try_sample(runtime: TritonPythonRuntime, deployment: Deployment) -> None:
    """Run the request that the model is known to answer, if there is one."""
    sample = find_sample_feeds(deployment, runtime.tensors.inputs)
    if sample is None:
        return
    with requests_in_log(SELF_CHECK):
        ((answer,),) = runtime.run([[pack(sample.feeds)]])
    if isinstance(answer, RowFailure):
        raise LoadFailed(f"{deployment.name} fails on {sample.source}: {answer.error}") from answer.error


class _Request(Struct, frozen=True):
    """A packed request, unpacked.

    Attributes:
        rows: Its rows; 1 for a model without a batch axis.
        callers: The models that wait for its answer.
        outputs: The names of the outputs that its caller asks for; all if it names none.
    """

    feeds: Feeds
    rows: int
    facts: Mapping[str, Any]
    callers: tuple[str, ...]
    outputs: tuple[str, ...]

    def for_model(self) -> pb_utils.InferenceRequest:
        """Return the object that the model gets, a new one for each call."""
        return pb_utils.InferenceRequest(
            request_id=self.facts.get("id", ""),
            inputs=[pb_utils.Tensor(name, array) for name, array in self.feeds.items()],
            requested_output_names=self.outputs,
            parameters=self.facts.get("parameters", {}),
        )


class TritonPythonRuntime:
    """A `TritonPythonModel`.

    Attributes:
        signature: Its inputs and outputs.
        tensors: Its inputs and outputs as its configuration declares them.
    """

    def __init__(
        self,
        model: Any,
        tensors: ModelTensors,
        deployment: Deployment,
        watchdog: Watchdog,
        isolation: RowIsolation,
        max_batch_size: int,
    ) -> None:
        self.tensors, self._max_batch_size = tensors, max_batch_size
        self.signature = packed_signature(tensors, deployment, isolation)
        self._model, self._watchdog = model, watchdog
        self._name = f"{deployment.name}:{deployment.version}"
        self._most_rows = min(deployment.max_batch_rows, max_batch_size) if isolation.batched else 1
        self._outputs = {info.name: info for info in tensors.outputs}

    def run(self, inputs: Sequence[np.ndarray | Sequence[bytes]]) -> Outputs:
        """Answer packed requests. A request that fails does not affect the others."""
        requests = [self._unpack(packed) for packed in inputs[0]]
        answers: list[bytes | RowFailure] = [b""] * len(requests)
        accepted = []
        for place, request in enumerate(requests):
            if self.tensors.batched and request.rows > self._max_batch_size:
                text = f"The request has {request.rows} rows, and the model takes at most {self._max_batch_size}."
                answers[place] = RowFailure(InvalidInput(text))
            else:
                accepted.append(place)
        for places in self._batches(requests, accepted):
            results = self._answers([requests[place] for place in places])
            for place, answer in zip(places, results, strict=True):
                answers[place] = answer
        return [answers]

    def _unpack(self, packed: Any) -> _Request:
        # Models may change their inputs in place.
        feeds = unpack(bytearray(packed))
        facts = json.loads(feeds.pop(FACTS)[0]) if FACTS in feeds else {}
        chain = str(facts.get("parameters", {}).pop(CALLERS, ""))
        callers = tuple(filter(None, chain.split("/")))
        rows = len(next(iter(feeds.values()))) if self.tensors.batched else 1
        return _Request(feeds, rows, facts, callers, tuple(facts.get("outputs", self._outputs)))

    def _batches(self, requests: Sequence[_Request], accepted: Sequence[int]) -> Iterator[list[int]]:
        """Yield places of requests that share a call: inputs agree in all but the rows, and the same models wait.

        Args:
            accepted: The places of the requests to run.
        """
        alike: dict[Any, list[int]] = {}
        for place in accepted:
            request = requests[place]
            sizes = tuple((name, array.shape[1:]) for name, array in request.feeds.items())
            alike.setdefault((request.callers, sizes), []).append(place)
        for places in alike.values():
            yield from split_by_rows(places, [requests[place].rows for place in places], self._most_rows)

    def _answers(self, requests: Sequence[_Request]) -> list[bytes | RowFailure]:
        try:
            responses = self._execute(requests)
        except ScoringTimeout as error:
            # Halves would take as long, and the callers' deadline has passed.
            return [RowFailure(error)] * len(requests)
        except BaseException as error:  # noqa: BLE001  # the caller gets any error of the model
            if len(requests) == 1:
                is_for_caller = isinstance(error, pb_utils.TritonModelException)
                return [RowFailure(ErrorForCaller(str(error)) if is_for_caller else error)]
            half = len(requests) // 2
            return self._answers(requests[:half]) + self._answers(requests[half:])
        return [self._pack(*pair) for pair in zip(requests, responses, strict=True)]

    def _execute(self, requests: Sequence[_Request]) -> Sequence[Any]:
        inputs = [request.for_model() for request in requests]
        with on_behalf_of([*requests[0].callers, self._name], self._watchdog.timeout_ms):
            responses = contain(
                lambda: self._watchdog.guard(lambda: finish(self._model.execute(inputs))), "execute()"
            )
        if not isinstance(responses, Sequence) or len(responses) != len(requests):
            count = len(responses) if isinstance(responses, Sequence) else type(responses).__name__
            raise ValueError(f"execute() returned {count} responses for {len(requests)} requests")
        return responses

    def _pack(self, request: _Request, response: Any) -> bytes | RowFailure:
        if not isinstance(response, pb_utils.InferenceResponse):
            kind = type(response).__name__
            return RowFailure(TypeError(f"execute() returned {kind} in place of an InferenceResponse"))
        try:
            if (error := response.error()) is not None:
                refused = isinstance(error, pb_utils.TritonError) and error.code() == error.INVALID_ARG
                return RowFailure((InvalidInput if refused else ErrorForCaller)(str(error)))
            arrays = {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}
            return pack({name: self._output(name, arrays, request) for name in request.outputs})
        except Exception as error:  # noqa: BLE001  # a model may return any object
            return RowFailure(error)

    def _output(self, name: str, arrays: Mapping[str, np.ndarray], request: _Request) -> np.ndarray:
        info = self._outputs[name]
        if name not in arrays:
            raise ValueError(f"execute() gave no output {name!r}, but {', '.join(arrays) or 'none'}")
        array = pb_utils.with_bytes(arrays[name])
        dtype = "string" if array.dtype == object else array.dtype.name
        rows = array.shape[:1] == (request.rows,) or not self.tensors.batched
        if dtype != info.dtype or not info.fits(array.shape) or not rows:
            raise ValueError(
                f"execute() gave the output {TensorInfo(name, dtype, array.shape)} to a request of {request.rows} "
                f"rows, and its configuration declares {info}"
            )
        return array
