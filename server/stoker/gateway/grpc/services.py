"""The methods of the gRPC services: their paths, their messages and their answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError

from stoker.errors import BodyTooLarge, MalformedBody, NotReady, NotSupported, UnknownService, cut
from stoker.gateway.describing.model_config import model_config
from stoker.gateway.grpc.calls import BEARER_METADATA, CoroutineCall, Method, RpcCall
from stoker.gateway.grpc.infer import InferCall, InferDispatcher, InferStream
from stoker.gateway.grpc.messages import (
    HEALTH,
    INFERENCE_APIS,
    METHODS,
    REFLECTION,
    SERVICE,
    SERVING,
    HealthCheckRequest,
    message,
)
from stoker.gateway.grpc.standard_services import Health, ReflectionCall, WatchCall
from stoker.gateway.grpc.tensorflow_serving import ServingDispatcher, ServingMetadata
from stoker.gateway.grpc.torchserve import PredictionCall, Predictor, other_methods
from stoker.gateway.http.requests import Requester
from stoker.gateway.protocols.access import administration_of, check_metadata_access
from stoker.gateway.protocols.live_settings import change_logs, change_traces
from stoker.gateway.protocols.oip import model_metadata, server_metadata
from stoker.gateway.protocols.repository import (
    REPOSITORY,
    check_unload_parameters,
    list_index,
    read_load_parameters,
    statistics,
)
from stoker.gateway.protocols.shared_memory import (
    CUDA_SHARED_MEMORY,
    cuda_status,
    regions_to_change,
    regions_to_list,
    register,
    unregister_cuda,
)

if TYPE_CHECKING:
    from stoker.gateway.administration import Administration
    from stoker.gateway.gateway import Gateway
    from stoker.gateway.scoring.service import Service
    from stoker.keys.callers import CallerTerms

_PREFIX: Final = f"/{SERVICE}/"
_PREDICTION: Final = f"/{SERVING}.PredictionService/"
_MAX_SHORT_BYTES: Final = 1 << 20
"""The longest message of methods that infer nothing: messages are read before a key is checked."""

_LOG_FIELDS: Final = {bool: "bool_param", int: "uint32_param", str: "string_param"}

_Answer = Callable[[Any, RpcCall], Awaitable[Any]]


class InferenceServicer:
    """Finds the method of each call; answers those that infer nothing with the same errors as over HTTP."""

    def __init__(self, gateway: Gateway, max_message_bytes: int) -> None:
        self._gateway = gateway
        scoring = InferDispatcher(gateway)
        health = Health(gateway)
        facts = ServingMetadata(gateway)
        unary: dict[str, _Answer] = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._statistics,
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
            "TraceSetting": self._trace_settings,
            "LogSettings": self._log_settings,
            "SystemSharedMemoryStatus": self._system_status,
            "SystemSharedMemoryRegister": self._system_register,
            "SystemSharedMemoryUnregister": self._system_unregister,
            "CudaSharedMemoryStatus": self._cuda_status,
            "CudaSharedMemoryRegister": self._cuda_register,
            "CudaSharedMemoryUnregister": self._cuda_unregister,
        }
        self._methods = {
            _PREFIX + name: _short_method(
                CoroutineCall,
                _decode_and_answer(
                    message(METHODS[name].input_type.name), answer, message(METHODS[name].output_type.name)
                ),
            )
            for name, answer in unary.items()
        }
        self._methods |= {
            f"{_PREFIX}ModelInfer": Method(InferCall, max_message_bytes, _above_limit, scoring),
            f"{_PREFIX}ModelStreamInfer": Method(InferStream, max_message_bytes, _above_limit, scoring),
            **{
                f"{_PREDICTION}{name}": Method(
                    InferCall, max_message_bytes, _above_limit, ServingDispatcher(gateway, scoring, name)
                )
                for name in ("Predict", "Classify", "Regress")
            },
            f"{_PREDICTION}GetModelMetadata": _short_method(
                CoroutineCall, _decode_and_answer(message("GetModelMetadataRequest", SERVING), facts.metadata)
            ),
            f"/{SERVING}.ModelService/GetModelStatus": _short_method(
                CoroutineCall, _decode_and_answer(message("GetModelStatusRequest", SERVING), facts.status)
            ),
            **_torchserve_methods(gateway, scoring, max_message_bytes),
            f"/{HEALTH}/Check": _short_method(
                CoroutineCall, _decode_and_answer(HealthCheckRequest, health.check)
            ),
            f"/{HEALTH}/Watch": _short_method(WatchCall, health),
            f"/{REFLECTION}/ServerReflectionInfo": _short_method(ReflectionCall, None),
        }

    def find(self, path: str) -> Method:
        """Return the method of a path."""
        method = self._methods.get(path)
        if method is None:
            raise _unknown_method(path)
        return method

    def _check_metadata(self, call: RpcCall, services: Iterable[Service] = ()) -> CallerTerms:
        return check_metadata_access(self._gateway, _requester(call), services)

    async def _server_live(self, _: Any, __: RpcCall) -> Any:
        return {"live": True}

    async def _server_ready(self, _: Any, __: RpcCall) -> Any:
        try:
            self._gateway.check_ready()
        except NotReady:
            return {"ready": False}
        return {"ready": True}

    async def _model_ready(self, request: Any, _: RpcCall) -> Any:
        try:
            ready = self._gateway.directory.find(request.name, request.version or None).ready
        except NotReady:
            ready = False
        except UnknownService:
            # A version that has been unloaded is known, and not ready.
            versions = self._gateway.directory.model_versions(request.name)
            if not versions or (request.version and request.version not in versions):
                raise
            ready = False
        return {"ready": ready}

    async def _server_metadata(self, _: Any, call: RpcCall) -> Any:
        self._check_metadata(call)
        return server_metadata(self._gateway)

    async def _model_metadata(self, request: Any, call: RpcCall) -> Any:
        service = self._gateway.directory.find(request.name, request.version or None)
        self._check_metadata(call, (service,))
        await service.learn_signature()
        metadata = model_metadata(self._gateway, service)
        # The message has no field for them.
        metadata.pop("parameters", None)
        return metadata

    async def _model_config(self, request: Any, call: RpcCall) -> Any:
        service = self._gateway.directory.find(request.name, request.version or None)
        self._check_metadata(call, (service,))
        await service.learn_signature()
        return {"config": model_config(service, self._gateway.directory.models[service.name].served)}

    async def _statistics(self, request: Any, call: RpcCall) -> Any:
        model = self._gateway.directory.models.get(request.name)
        caller = self._check_metadata(call, () if model is None else model.services)
        found = statistics(self._gateway, request.name or None, request.version or None, caller=caller)
        return {"model_stats": found}

    async def _index(self, request: Any, call: RpcCall) -> Any:
        caller = self._check_metadata(call)
        _check_unnamed(request)
        return {"models": await list_index(self._gateway, caller, ready=request.ready)}

    async def _load(self, request: Any, call: RpcCall) -> Any:
        administration = self._administration_for(call)
        _check_unnamed(request)
        name = request.model_name
        requested = read_load_parameters(self._gateway, name, _request_parameters(request))
        await administration.load(name, versions=requested.versions, adjustments=requested.adjustments)
        return {}

    async def _unload(self, request: Any, call: RpcCall) -> Any:
        administration = self._administration_for(call)
        _check_unnamed(request)
        check_unload_parameters(request.model_name, _request_parameters(request))
        await administration.unload(request.model_name)
        return {}

    def _administration_for(self, call: RpcCall) -> Administration:
        administration = administration_of(self._gateway, REPOSITORY)
        administration.access.check_loading(_requester(call))
        return administration

    async def _trace_settings(self, request: Any, call: RpcCall) -> Any:
        content: dict[str, Any] = {}
        for name, setting in request.settings.items():
            values = list(setting.value)
            # As JSON has it: a text, several, or None, which resets the setting.
            content[name] = values[0] if len(values) == 1 else values or None
        settings = await change_traces(self._gateway, _requester(call), request.model_name, content)
        return {
            "settings": {
                name: {"value": [value] if isinstance(value, str) else value}
                for name, value in settings.items()
            }
        }

    async def _log_settings(self, request: Any, call: RpcCall) -> Any:
        content: dict[str, Any] = {}
        for name, setting in request.settings.items():
            chosen = setting.WhichOneof("parameter_choice")
            content[name] = None if chosen is None else getattr(setting, chosen)
        settings = await change_logs(self._gateway, _requester(call), content)
        return {"settings": {name: {_LOG_FIELDS[type(value)]: value} for name, value in settings.items()}}

    async def _system_status(self, request: Any, call: RpcCall) -> Any:
        entries = regions_to_list(self._gateway, _requester(call)).status(request.name or None)
        return {"regions": {entry["name"]: entry for entry in entries}}

    async def _system_register(self, request: Any, call: RpcCall) -> Any:
        regions = regions_to_change(self._gateway, _requester(call))
        regions.register(request.name, request.key, request.offset, request.byte_size)
        return {}

    async def _system_unregister(self, request: Any, call: RpcCall) -> Any:
        regions_to_change(self._gateway, _requester(call)).unregister(request.name or None)
        return {}

    async def _cuda_status(self, request: Any, call: RpcCall) -> Any:
        entries = cuda_status(self._gateway, _requester(call), request.name or None)
        return {"regions": {entry["name"]: entry for entry in entries}}

    async def _cuda_register(self, request: Any, call: RpcCall) -> Any:
        regions = regions_to_change(self._gateway, _requester(call), CUDA_SHARED_MEMORY)
        await register(regions, request.name, request.raw_handle, request.device_id, request.byte_size)
        return {}

    async def _cuda_unregister(self, request: Any, call: RpcCall) -> Any:
        unregister_cuda(self._gateway, _requester(call), request.name or None)
        return {}


def _torchserve_methods(
    gateway: Gateway, scoring: InferDispatcher, max_message_bytes: int
) -> dict[str, Method]:
    methods = {
        path: _short_method(CoroutineCall, _decode_and_answer(kind, answer))
        for path, (kind, answer) in other_methods(gateway).items()
    }
    for name in ("Predictions", "StreamPredictions"):
        predictor = Predictor(gateway, scoring, streams=name == "StreamPredictions")
        methods[f"/{INFERENCE_APIS}/{name}"] = Method(
            PredictionCall, max_message_bytes, _above_limit, predictor
        )
    return methods


def _requester(call: RpcCall) -> Requester:
    return Requester(call.authorization, call.address, sent_as=BEARER_METADATA)


def _check_unnamed(request: Any) -> None:
    if request.repository_name:
        raise NotSupported("named repositories are not supported: leave the name out")


def _request_parameters(request: Any) -> dict[str, Any]:
    return {
        name: getattr(value, value.WhichOneof("parameter_choice") or "string_param")
        for name, value in request.parameters.items()
    }


def _decode_and_answer(
    request_kind: Any, answer: _Answer, answer_kind: Any = None
) -> Callable[[bytes, RpcCall], Awaitable[bytes]]:
    """`answer` returns a message; if `answer_kind` is given, its content as JSON has it."""

    async def answer_bytes(content: bytes, call: RpcCall) -> bytes:
        try:
            request = request_kind.FromString(content)
        except DecodeError as error:
            raise MalformedBody(f"the message cannot be read: {error}") from None
        answered = await answer(request, call)
        if answer_kind is not None:
            answered = ParseDict(answered, answer_kind())
        serialized: bytes = answered.SerializeToString()
        return serialized

    return answer_bytes


def _short_method(begin: Callable[..., RpcCall], answer: Any) -> Method:
    """A method that infers nothing."""
    return Method(begin, _MAX_SHORT_BYTES, _above_short_limit, answer)


def _above_limit(size_bytes: int, max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"Received message larger than max ({size_bytes} vs. {max_bytes})")


def _above_short_limit(size_bytes: int, max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"the message has {size_bytes} bytes; this method reads {max_bytes}")


def _unknown_method(path: str) -> NotSupported:
    if not path.startswith(_PREFIX):
        return NotSupported(f"There is no method {cut(path)}.")
    name = path.removeprefix(_PREFIX)
    return NotSupported(f"The service has no method {cut(name)}.")
