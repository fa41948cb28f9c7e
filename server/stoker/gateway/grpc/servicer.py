"""The methods of the gRPC services: their paths, what reads their messages; health and metadata of the protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError

from stoker import __version__
from stoker.echo import cut
from stoker.errors import BodyTooLarge, MalformedBody, NotReady, NotSupported, UnknownService
from stoker.gateway.describing.model_config import described_tensors, model_config, platform
from stoker.gateway.grpc.calls import BEARER_METADATA, Method, RpcCall
from stoker.gateway.grpc.cuda_memory import CudaMemoryMethods
from stoker.gateway.grpc.health import Health, WatchCall
from stoker.gateway.grpc.infer import InferCall, Scoring
from stoker.gateway.grpc.live_settings import LiveSettingsMethods
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
from stoker.gateway.grpc.reflection import ReflectionCall
from stoker.gateway.grpc.repository import RepositoryMethods
from stoker.gateway.grpc.serving import ServingScoring
from stoker.gateway.grpc.serving_facts import ServingFacts
from stoker.gateway.grpc.shared_memory import SharedMemoryMethods
from stoker.gateway.grpc.streams import InferStream, Streams
from stoker.gateway.grpc.unary import CoroutineCall
from stoker.gateway.protocols.metadata_access import check_metadata_access
from stoker.gateway.protocols.oip import spoken_extensions
from stoker.wire.oip_tensors import DATATYPES

if TYPE_CHECKING:
    from stoker.gateway.gateway import Gateway

__all__ = ["InferenceServicer"]

_PREFIX: Final = f"/{SERVICE}/"
_PREDICTION: Final = f"/{SERVING}.PredictionService/"
_MAX_SHORT_BYTES: Final = 1 << 20
"""The longest message of methods that infer nothing: they are read before anybody is asked for a key."""

_Answer = Callable[[Any, RpcCall], Awaitable[Any]]


class InferenceServicer:
    """Finds the method of each call.

    Args:
        gateway: The frontend's services.
        max_message_bytes: The longest infer request.
    """

    def __init__(self, gateway: Gateway, max_message_bytes: int) -> None:
        self._gateway = gateway
        scoring, health, repository = Scoring(gateway), Health(gateway), RepositoryMethods(gateway)
        memory, settings = SharedMemoryMethods(gateway), LiveSettingsMethods(gateway)
        cuda, facts = CudaMemoryMethods(gateway), ServingFacts(gateway)
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
            _PREFIX + name: _short(CoroutineCall, _answering(message(METHODS[name].input_type.name), answer))
            for name, answer in unary.items()
        }
        self._methods |= {
            f"{_PREFIX}ModelInfer": Method(InferCall, max_message_bytes, _above_limit, scoring),
            f"{_PREFIX}ModelStreamInfer": Method(
                InferStream, max_message_bytes, _above_limit, Streams(scoring)
            ),
            **{
                f"{_PREDICTION}{name}": Method(
                    InferCall, max_message_bytes, _above_limit, ServingScoring(gateway, scoring, name)
                )
                for name in ("Predict", "Classify", "Regress")
            },
            f"{_PREDICTION}GetModelMetadata": _short(
                CoroutineCall, _answering(message("GetModelMetadataRequest", SERVING), facts.metadata)
            ),
            f"/{SERVING}.ModelService/GetModelStatus": _short(
                CoroutineCall, _answering(message("GetModelStatusRequest", SERVING), facts.status)
            ),
            f"/{HEALTH}/Check": _short(CoroutineCall, _answering(HealthCheckRequest, health.check)),
            f"/{HEALTH}/Watch": _short(WatchCall, health),
            f"/{REFLECTION}/ServerReflectionInfo": _short(ReflectionCall, None),
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
            name="stoker", version=__version__, extensions=spoken_extensions(self._gateway)
        )

    async def _model_metadata(self, request: Any, call: RpcCall) -> Any:
        service = self._gateway.find(request.name, request.version or None)
        check_metadata_access(self._gateway, call.authorization, (service,), sent_as=BEARER_METADATA)
        versions = self._gateway.models[service.name].served
        answer = ModelMetadataResponse(
            name=service.name, versions=versions, platform=platform(service.facts.framework)
        )
        tensors = described_tensors(service.signature)
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


def _answering(kind: Any, answer: _Answer) -> Callable[[bytes, RpcCall], Awaitable[bytes]]:
    """What answers a message of a kind, as bytes."""

    async def answer_bytes(content: bytes, call: RpcCall) -> bytes:
        try:
            request = kind.FromString(content)
        except DecodeError as error:
            raise MalformedBody(f"the message cannot be read: {error}") from None
        answered: bytes = (await answer(request, call)).SerializeToString()
        return answered

    return answer_bytes


def _short(begin: Callable[..., RpcCall], answer: Any) -> Method:
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
