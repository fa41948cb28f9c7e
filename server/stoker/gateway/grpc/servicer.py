"""The gRPC service: health, metadata, inference of single requests and of streams; the rest is in `repository`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import grpc
import numpy as np

from stoker import __version__
from stoker.echo import cut
from stoker.errors import NotReady, NotSupported, StokerError, UnknownService
from stoker.gateway.gateway import Gateway
from stoker.gateway.grpc.calls import (
    BEARER_METADATA,
    CallsUnderWay,
    RpcCall,
    authorization_of,
    fault,
    parsed,
    reader,
    refusing,
    shown,
)
from stoker.gateway.grpc.messages import (
    METHODS,
    SERVICE,
    ModelInferResponse,
    ModelMetadataResponse,
    ModelReadyResponse,
    ModelStreamInferResponse,
    ServerLiveResponse,
    ServerMetadataResponse,
    ServerReadyResponse,
    message,
)
from stoker.gateway.grpc.repository import RepositoryMethods
from stoker.gateway.grpc.requests import RequestDecoder, RequestMessage
from stoker.gateway.grpc.responses import AnswerWriter, stream_answer
from stoker.gateway.grpc.streams import Streams
from stoker.gateway.http.body_budget import LARGE_BODY_BYTES, Allowance, Caller
from stoker.gateway.http.request_ids import RequestIds
from stoker.gateway.protocols.infer_dialect import tensors_of
from stoker.gateway.protocols.metadata_access import check_metadata_access
from stoker.gateway.protocols.oip import EXTENSIONS, platform
from stoker.gateway.scoring.callers import caller_of
from stoker.gateway.scoring.service import Service
from stoker.tensors import ModelTensors
from stoker.wire.oip_tensors import DATATYPES

__all__ = ["Infer", "InferenceServicer"]

_PREFIX: Final = f"/{SERVICE}/"
_MAX_SHORT_BYTES: Final = 1 << 20
"""The longest message of methods that infer nothing: they are read before anybody is asked for a key."""
_NEED_KEY: Final = (f"{_PREFIX}ModelInfer", f"{_PREFIX}ModelStreamInfer")
_EXTENSIONS: Final = {
    "ModelConfig": "model_configuration",
    "SystemSharedMemory": "system_shared_memory",
    "CudaSharedMemory": "cuda_shared_memory",
    "TraceSetting": "trace",
    "LogSettings": "logging",
}
"""Extensions by how the names of their methods begin, to name those that are not spoken here."""


class Infer(Protocol):
    """How tensors are scored; see `stoker.gateway.scoring.inference.infer`."""

    async def __call__(
        self,
        service: Service,
        inputs: Mapping[str, np.ndarray],
        *,
        ids: RequestIds | None = None,
        timeout_ns: int | None = None,
    ) -> dict[str, np.ndarray]:
        """Return the outputs by name."""


class _Codec(NamedTuple):
    """What reads the requests of a model and writes its answers."""

    tensors: ModelTensors
    decoder: RequestDecoder
    writer: AnswerWriter


class InferenceServicer(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """Finds the handler of each call."""

    def __init__(self, gateway: Gateway, infer: Infer) -> None:
        self._gateway = gateway
        self._infer = infer
        self._under_way = CallsUnderWay()
        self._streams = Streams()
        self._codecs: WeakKeyDictionary[Service, _Codec] = WeakKeyDictionary()
        repository = RepositoryMethods(gateway)
        unary = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelStatistics": repository.statistics,
            "RepositoryIndex": repository.index,
            "RepositoryModelLoad": repository.load,
            "RepositoryModelUnload": repository.unload,
        }
        self._handlers = {
            _PREFIX + name: self._unary(
                name, method, reader(message(METHODS[name].input_type.name).FromString, _MAX_SHORT_BYTES)
            )
            for name, method in unary.items()
        }
        # Their answers are bytes already.
        self._handlers[f"{_PREFIX}ModelInfer"] = grpc.unary_unary_rpc_method_handler(
            self._under_way.handler(self._model_infer), reader(RequestMessage.read)
        )
        self._handlers[f"{_PREFIX}ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            self._under_way.handler(self._model_stream_infer),
            reader(RequestMessage.read),
        )

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler | None:
        """Return the handler of a call, before its message has been read; None if it is for another service."""
        path = handler_call_details.method
        handler = self._handlers.get(path)
        if path in _NEED_KEY:
            error = self._check_key(authorization_of(dict(handler_call_details.invocation_metadata)))
            return handler if error is None else refusing(error)
        if handler is None and path.startswith(_PREFIX):
            return refusing(_unknown_method(path.removeprefix(_PREFIX)))
        return handler

    @property
    def begun(self) -> int:
        """How many calls and streams have begun ever."""
        return self._under_way.begun

    @property
    def long_answers(self) -> set[int]:
        """The peers' ports of the connections on which long answers may be being written."""
        return self._under_way.long_answers

    def close_streams(self) -> None:
        """End each stream behind the last answer of what was read from it; no other begins."""
        self._streams.close()

    async def finish(self, timeout_s: float) -> int:
        """Answer what is under way, and end streams behind that; return how much is left after `timeout_s`."""
        self.close_streams()
        return await self._under_way.finish(timeout_s)

    def _check_key(self, authorization: bytes) -> StokerError | None:
        """The error for a caller whose key is no model's: it need not send its message."""
        # Not the defaults alone: a model may be served only under its labels.
        services = list(self._gateway.all_services)
        for service in services:
            if service.access.allows(authorization):
                return None
        if not services:
            return None
        error = services[0].access.refusal(authorization, BEARER_METADATA)
        if len({service.name for service in services}) == 1:
            services[0].count_refusal(error)
        return error

    def _unary(
        self, name: str, method: Callable[[Any, RpcCall], Awaitable[Any]], read: Callable[[bytes], Any]
    ) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(
            self._under_way.handler(method),
            read,
            message(METHODS[name].output_type.name).SerializeToString,
        )

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
        return ServerMetadataResponse(name="stoker", version=__version__, extensions=EXTENSIONS)

    async def _model_metadata(self, request: Any, call: RpcCall) -> Any:
        service = self._gateway.find(request.name, request.version or None)
        check_metadata_access(self._gateway, call.authorization, (service,), sent_as=BEARER_METADATA)
        versions = self._gateway.models[service.name].served
        answer = ModelMetadataResponse(
            name=service.name, versions=versions, platform=platform(service.facts.framework)
        )
        tensors = None if service.signature is None else service.signature.model_tensors
        if tensors is not None:
            for side, infos in ((answer.inputs, tensors.inputs), (answer.outputs, tensors.outputs)):
                for info in infos:
                    side.add(name=info.name, datatype=DATATYPES[info.dtype], shape=info.shape)
        return answer

    # --- inference ---

    async def _model_infer(self, request: RequestMessage, call: RpcCall) -> bytes:
        """Return a `ModelInferResponse`; a long message is held on the budget of large bodies meanwhile."""
        if request.size_bytes <= LARGE_BODY_BYTES:
            return await self._answer(request, call)

        def find_caller() -> Caller:
            service = self._gateway.find(request.model_name, request.model_version or None)
            return caller_of(service, call.authorization, call.address)

        with Allowance(self._gateway.bodies, find_caller) as allowance:
            return await self._answer(request, call, allowance)

    async def _answer(
        self, request: RequestMessage, call: RpcCall, allowance: Allowance | None = None
    ) -> bytes:
        service = self._gateway.find(request.model_name, request.model_version or None)
        if not request.model_version and self._gateway.split_of(service) is not None:
            service = self._gateway.by_weight(service, call.headers())
        try:
            service.access.check(call.authorization, BEARER_METADATA)
            if allowance is not None:
                allowance.cover(request.size_bytes)
            tensors = tensors_of(service)
            codec = self._codec(service, tensors)
            decoded = codec.decoder.decode(request)
            timeout_ns = call.patience_ns(decoded.timeout_ns)
        except StokerError as error:
            service.count_refusal(error)
            raise
        outputs = await self._infer(service, decoded.inputs, ids=call.ids, timeout_ns=timeout_ns)
        return codec.writer.write(decoded, outputs)

    def _codec(self, service: Service, tensors: ModelTensors) -> _Codec:
        codec = self._codecs.get(service)
        # A model that was loaded again may have other tensors.
        if codec is None or codec.tensors is not tensors:
            codec = self._codecs[service] = _Codec(
                tensors,
                RequestDecoder(service.name, tensors),
                AnswerWriter(service.name, service.version, batched=tensors.batched),
            )
        return codec

    async def _model_stream_infer(self, requests: AsyncIterator[Any], call: RpcCall) -> None:
        async def reply(request: RequestMessage | StokerError) -> bytes:
            try:
                answer = stream_answer(await self._model_infer(parsed(request), call))
                self._under_way.note_answer(answer, call)
                return answer
            except StokerError as error:
                return _failed(request, error)
            except Exception as error:  # noqa: BLE001  # a fault of ours must not cost the stream
                return _failed(request, fault(error, call, getattr(request, "model_name", "")))

        await self._streams.serve(requests, reply, call.write)


def _failed(request: RequestMessage | StokerError, error: StokerError) -> bytes:
    """A `ModelStreamInferResponse` with an error."""
    named = None
    if isinstance(request, RequestMessage):
        named = ModelInferResponse(model_name=cut(request.model_name), id=request.id)
    answer = ModelStreamInferResponse(error_message=shown(error), infer_response=named)
    content: bytes = answer.SerializeToString()
    return content


def _unknown_method(name: str) -> StokerError:
    for beginning, extension in _EXTENSIONS.items():
        if name.startswith(beginning):
            return NotSupported(f"{extension} extension is not supported")
    return NotSupported(f"The service has no method {cut(name)}.")
