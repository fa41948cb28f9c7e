"""The methods of the gRPC services: their paths, what reads their messages, and what answers them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import json_format
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError

from stoker import __version__
from stoker.errors import BodyTooLarge, MalformedBody, NotReady, NotSupported, UnknownService, cut
from stoker.gateway.describing.model_config import describe_tensors, model_config, platform
from stoker.gateway.grpc.calls import BEARER_METADATA, CoroutineCall, Method, RpcCall
from stoker.gateway.grpc.infer import InferCall, InferDispatcher, InferStream
from stoker.gateway.grpc.messages import (
    HEALTH,
    METHODS,
    REFLECTION,
    SERVICE,
    SERVING,
    HealthCheckRequest,
    ModelConfigResponse,
    ModelMetadataResponse,
    ModelReadyResponse,
    ServerLiveResponse,
    ServerMetadataResponse,
    ServerReadyResponse,
    message,
)
from stoker.gateway.grpc.standard_services import Health, ReflectionCall, WatchCall
from stoker.gateway.grpc.tensorflow_serving import ServingDispatcher, ServingMetadata
from stoker.gateway.protocols.access import check_metadata_access
from stoker.gateway.protocols.live_settings import LiveSettings
from stoker.gateway.protocols.oip import supported_extensions
from stoker.gateway.protocols.repository import check_unload_parameters, read_load_parameters, statistics
from stoker.gateway.protocols.shared_memory import (
    CudaMemoryAccess,
    regions_to_change,
    regions_to_list,
    register,
)
from stoker.wire.oip_tensors import DATATYPES

if TYPE_CHECKING:
    from stoker.gateway.administration import Administration
    from stoker.gateway.gateway import Gateway
    from stoker.gateway.regions.regions import Regions

__all__ = [
    "CudaMemoryMethods",
    "InferenceServicer",
    "LiveSettingsMethods",
    "RepositoryMethods",
    "SharedMemoryMethods",
]

_ModelStatisticsResponse = message("ModelStatisticsResponse")
_IndexResponse = message("RepositoryIndexResponse")
_LoadResponse = message("RepositoryModelLoadResponse")
_UnloadResponse = message("RepositoryModelUnloadResponse")


class RepositoryMethods:
    """What the same extensions do over HTTP, with the same errors."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def statistics(self, request: Any, call: RpcCall) -> Any:
        """Answer a `ModelStatisticsRequest`."""
        model = self._gateway.models.get(request.name)
        services = () if model is None else model.services
        check_metadata_access(self._gateway, call.authorization, services, sent_as=BEARER_METADATA)
        entries = statistics(self._gateway, request.name or None, request.version or None)
        return json_format.ParseDict({"model_stats": entries}, _ModelStatisticsResponse())

    async def index(self, request: Any, call: RpcCall) -> Any:
        """Answer a `RepositoryIndexRequest`."""
        check_metadata_access(self._gateway, call.authorization, sent_as=BEARER_METADATA)
        _check_unnamed(request)
        entries = await self._administration().index(ready=request.ready)
        return _IndexResponse(models=entries)

    async def load(self, request: Any, call: RpcCall) -> Any:
        """Answer a `RepositoryModelLoadRequest` when the model is served."""
        administration = self._check_loading(call)
        _check_unnamed(request)
        requested = read_load_parameters(self._gateway, request.model_name, _request_parameters(request))
        await administration.load(
            request.model_name, versions=requested.versions, adjustments=requested.adjustments
        )
        return _LoadResponse()

    async def unload(self, request: Any, call: RpcCall) -> Any:
        """Answer a `RepositoryModelUnloadRequest` when the model's last requests have been answered."""
        administration = self._check_loading(call)
        _check_unnamed(request)
        check_unload_parameters(request.model_name, _request_parameters(request))
        await administration.unload(request.model_name)
        return _UnloadResponse()

    def _check_loading(self, call: RpcCall) -> Administration:
        administration = self._administration()
        administration.access.check_loading(call.authorization, from_page=False, sent_as=BEARER_METADATA)
        return administration

    def _administration(self) -> Administration:
        if self._gateway.administration is None:
            raise NotSupported("model_repository extension is not supported")
        return self._gateway.administration


def _check_unnamed(request: Any) -> None:
    if request.repository_name:
        raise NotSupported("named repositories are not supported: leave the name out")


def _request_parameters(request: Any) -> dict[str, Any]:
    return {
        name: getattr(value, value.WhichOneof("parameter_choice") or "string_param")
        for name, value in request.parameters.items()
    }


_SystemStatusResponse = message("SystemSharedMemoryStatusResponse")
_SystemRegisterResponse = message("SystemSharedMemoryRegisterResponse")
_SystemUnregisterResponse = message("SystemSharedMemoryUnregisterResponse")


class SharedMemoryMethods:
    """What the same extension does over HTTP, with the same errors."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def status(self, request: Any, call: RpcCall) -> Any:
        """Answer a `SystemSharedMemoryStatusRequest`; an empty name means all."""
        regions = regions_to_list(self._gateway, call.authorization, call.address, sent_as=BEARER_METADATA)
        answer = _SystemStatusResponse()
        for entry in regions.status(request.name or None):
            told = answer.regions[entry["name"]]
            told.name, told.key, told.offset, told.byte_size = entry.values()
        return answer

    async def register(self, request: Any, call: RpcCall) -> Any:
        """Answer a `SystemSharedMemoryRegisterRequest`."""
        self._regions(call).register(request.name, request.key, request.offset, request.byte_size)
        return _SystemRegisterResponse()

    async def unregister(self, request: Any, call: RpcCall) -> Any:
        """Answer a `SystemSharedMemoryUnregisterRequest`; an empty name means all."""
        self._regions(call).unregister(request.name or None)
        return _SystemUnregisterResponse()

    def _regions(self, call: RpcCall) -> Regions:
        return regions_to_change(self._gateway, call.authorization, call.address, sent_as=BEARER_METADATA)


# The trace and logging extensions over gRPC.
_TraceResponse = message("TraceSettingResponse")
_LogResponse = message("LogSettingsResponse")


class LiveSettingsMethods:
    """What the same extensions do over HTTP, with the same errors."""

    def __init__(self, gateway: Gateway) -> None:
        self._settings = LiveSettings(gateway, BEARER_METADATA)

    async def traces(self, request: Any, call: RpcCall) -> Any:
        """Answer a `TraceSettingRequest`; a setting without a value is taken back."""
        content = {name: _json_value(list(setting.value)) for name, setting in request.settings.items()}
        told = await self._settings.traces(call.authorization, request.model_name, content)
        answer = _TraceResponse()
        for name, value in told.items():
            answer.settings[name].value.extend([value] if isinstance(value, str) else value)
        return answer

    async def logs(self, request: Any, call: RpcCall) -> Any:
        """Answer a `LogSettingsRequest`."""
        content = {name: _chosen_value(setting) for name, setting in request.settings.items()}
        answer = _LogResponse()
        for name, value in (await self._settings.logs(call.authorization, content)).items():
            setting = answer.settings[name]
            if isinstance(value, bool):
                setting.bool_param = value
            elif isinstance(value, int):
                setting.uint32_param = value
            else:
                setting.string_param = value
        return answer


def _json_value(values: list[str]) -> Any:
    """What JSON would have: a text, several, or nothing."""
    if len(values) == 1:
        return values[0]
    return values or None


def _chosen_value(setting: Any) -> Any:
    chosen = setting.WhichOneof("parameter_choice")
    return None if chosen is None else getattr(setting, chosen)


# The CUDA shared memory extension over gRPC.
_CudaStatusResponse = message("CudaSharedMemoryStatusResponse")
_CudaRegisterResponse = message("CudaSharedMemoryRegisterResponse")
_CudaUnregisterResponse = message("CudaSharedMemoryUnregisterResponse")


class CudaMemoryMethods:
    """What the same extension does over HTTP, with the same errors."""

    def __init__(self, gateway: Gateway) -> None:
        self._memory = CudaMemoryAccess(gateway, BEARER_METADATA)

    async def status(self, request: Any, call: RpcCall) -> Any:
        """Answer a `CudaSharedMemoryStatusRequest`; an empty name means all."""
        answer = _CudaStatusResponse()
        for entry in self._memory.status(call.authorization, call.address, request.name or None):
            told = answer.regions[entry["name"]]
            told.name, told.device_id, told.byte_size = entry.values()
        return answer

    async def register(self, request: Any, call: RpcCall) -> Any:
        """Answer a `CudaSharedMemoryRegisterRequest`."""
        regions = self._memory.to_change(call.authorization, call.address)
        await register(regions, request.name, request.raw_handle, request.device_id, request.byte_size)
        return _CudaRegisterResponse()

    async def unregister(self, request: Any, call: RpcCall) -> Any:
        """Answer a `CudaSharedMemoryUnregisterRequest`; an empty name means all."""
        self._memory.unregister(call.authorization, call.address, request.name or None)
        return _CudaUnregisterResponse()


_PREFIX: Final = f"/{SERVICE}/"
_PREDICTION: Final = f"/{SERVING}.PredictionService/"
_MAX_SHORT_BYTES: Final = 1 << 20
"""The longest message of methods that infer nothing: they are read before anybody is asked for a key."""

_Answer = Callable[[Any, RpcCall], Awaitable[Any]]


class InferenceServicer:
    """Finds the method of each call."""

    def __init__(self, gateway: Gateway, max_message_bytes: int) -> None:
        self._gateway = gateway
        scoring, health, repository = InferDispatcher(gateway), Health(gateway), RepositoryMethods(gateway)
        memory, settings = SharedMemoryMethods(gateway), LiveSettingsMethods(gateway)
        cuda, facts = CudaMemoryMethods(gateway), ServingMetadata(gateway)
        unary: dict[str, _Answer] = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelStatistics": repository.statistics,
            "RepositoryIndex": repository.index,
            "RepositoryModelLoad": repository.load,
            "RepositoryModelUnload": repository.unload,
            "TraceSetting": settings.traces,
            "LogSettings": settings.logs,
            "SystemSharedMemoryStatus": memory.status,
            "SystemSharedMemoryRegister": memory.register,
            "SystemSharedMemoryUnregister": memory.unregister,
            "CudaSharedMemoryStatus": cuda.status,
            "CudaSharedMemoryRegister": cuda.register,
            "CudaSharedMemoryUnregister": cuda.unregister,
        }
        self._methods = {
            _PREFIX + name: _short_method(
                CoroutineCall, _decode_and_answer(message(METHODS[name].input_type.name), answer)
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
            f"/{HEALTH}/Check": _short_method(
                CoroutineCall, _decode_and_answer(HealthCheckRequest, health.check)
            ),
            f"/{HEALTH}/Watch": _short_method(WatchCall, health),
            f"/{REFLECTION}/ServerReflectionInfo": _short_method(ReflectionCall, None),
        }

    def find(self, path: str) -> Method:
        """Return the method that is called by a path.

        Raises:
            NotSupported: There is none.
        """
        method = self._methods.get(path)
        if method is None:
            raise _unknown_method(path)
        return method

    # --- health and metadata ---

    async def _server_live(self, _: Any, __: RpcCall) -> Any:
        return ServerLiveResponse(live=True)

    async def _server_ready(self, _: Any, __: RpcCall) -> Any:
        try:
            self._gateway.check_ready()
        except NotReady:
            return ServerReadyResponse(ready=False)
        return ServerReadyResponse(ready=True)

    async def _model_ready(self, request: Any, _: RpcCall) -> Any:
        try:
            ready = self._gateway.find(request.name, request.version or None).ready
        except NotReady:
            ready = False
        except UnknownService:
            # A version that has been unloaded is known, and not ready.
            versions = self._gateway.model_versions(request.name)
            if not versions or (request.version and request.version not in versions):
                raise
            ready = False
        return ModelReadyResponse(ready=ready)

    async def _server_metadata(self, _: Any, call: RpcCall) -> Any:
        check_metadata_access(self._gateway, call.authorization, sent_as=BEARER_METADATA)
        return ServerMetadataResponse(
            name="stoker", version=__version__, extensions=supported_extensions(self._gateway)
        )

    async def _model_metadata(self, request: Any, call: RpcCall) -> Any:
        service = self._gateway.find(request.name, request.version or None)
        check_metadata_access(self._gateway, call.authorization, (service,), sent_as=BEARER_METADATA)
        versions = self._gateway.models[service.name].served
        answer = ModelMetadataResponse(
            name=service.name, versions=versions, platform=platform(service.facts.framework)
        )
        tensors = describe_tensors(service.signature)
        if tensors is not None:
            for side, infos in ((answer.inputs, tensors.inputs), (answer.outputs, tensors.outputs)):
                for info in infos:
                    side.add(name=info.name, datatype=DATATYPES[info.dtype], shape=info.shape)
        return answer

    async def _model_config(self, request: Any, call: RpcCall) -> Any:
        service = self._gateway.find(request.name, request.version or None)
        check_metadata_access(self._gateway, call.authorization, (service,), sent_as=BEARER_METADATA)
        config = model_config(service, self._gateway.models[service.name].served)
        return ParseDict({"config": config}, ModelConfigResponse())


def _decode_and_answer(kind: Any, answer: _Answer) -> Callable[[bytes, RpcCall], Awaitable[bytes]]:
    async def answer_bytes(content: bytes, call: RpcCall) -> bytes:
        try:
            request = kind.FromString(content)
        except DecodeError as error:
            raise MalformedBody(f"the message cannot be read: {error}") from None
        answered: bytes = (await answer(request, call)).SerializeToString()
        return answered

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
