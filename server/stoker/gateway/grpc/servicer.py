"""The methods of the gRPC services: their paths, what reads their messages; health and metadata of the protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError

from stoker import __version__
from stoker.echo import cut
from stoker.errors import (
    BodyTooLarge,
    InvalidInput,
    MalformedBody,
    NotReady,
    NotSupported,
    StokerError,
    UnknownService,
)
from stoker.gateway.describing.model_config import described_tensors, model_config, platform
from stoker.gateway.grpc.calls import BEARER_METADATA, Method, RpcCall
from stoker.gateway.grpc.health import Health, WatchCall
from stoker.gateway.grpc.infer import GrpcDialect, InferCall, Scoring
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
from stoker.gateway.grpc.serving_requests import ExamplesMessage, ModelSpec, PredictMessage, spec_of
from stoker.gateway.grpc.shared_memory import SharedMemoryMethods
from stoker.gateway.grpc.streams import InferStream, Streams
from stoker.gateway.grpc.tensor_protos import read_tensor, tensor_bytes
from stoker.gateway.grpc.unary import CoroutineCall
from stoker.gateway.http.body_budget import LARGE_BODY_BYTES, Allowance
from stoker.gateway.protocols.access import check_metadata_access
from stoker.gateway.protocols.infer import signatures_of
from stoker.gateway.protocols.live_settings import LiveSettings
from stoker.gateway.protocols.oip import spoken_extensions
from stoker.gateway.protocols.shared_memory import CudaMemoryAccess, register
from stoker.gateway.protocols.tfs import described_signatures, described_versions, service_of
from stoker.gateway.scoring.askers import asker_of
from stoker.gateway.scoring.callers import caller_of
from stoker.gateway.scoring.tensor_dialect import submit_tensors
from stoker.wire.oip_tensors import DATATYPES
from stoker.wire.protobuf import field
from stoker.wire.tensor_json import check_rows
from stoker.wire.tfs import named_signature
from stoker.wire.tfs_examples import MAX_REPEATED, Verb, results_of, takes_examples

if TYPE_CHECKING:
    from stoker.gateway.gateway import Gateway
    from stoker.gateway.grpc.inquiry import Inquiry
    from stoker.gateway.rows.exchange import Exchange
    from stoker.gateway.scoring.call import Call, Scorer
    from stoker.gateway.scoring.service import Service
    from stoker.keys.callers import CallerTerms
    from stoker.tensors import ModelTensors, NamedSignature
    from stoker.wire.envelope import RequestHead

__all__ = [
    "CudaMemoryMethods",
    "InferenceServicer",
    "LiveSettingsMethods",
    "ServingFacts",
    "ServingScoring",
    "answered_spec",
]


# TensorFlow Serving's PredictionService: Predict, Classify and Regress as dialects of scoring.


_Spec: Final = message("ModelSpec", SERVING)
_Classified: Final = message("ClassificationResponse", SERVING)
_Regressed: Final = message("RegressionResponse", SERVING)
_OUTPUTS, _KEY, _VALUE, _SPEC = 1, 1, 2, 2


class _ServingDialect(GrpcDialect):
    """What the three have in common: `Call.asked` is the message, and `submit` sets `Call.write`."""

    __slots__ = ()

    def read(self, content: bytes) -> PredictMessage | ExamplesMessage:
        """Read a message; raises StokerError if it is none."""
        raise NotImplementedError

    @staticmethod
    def _answer(call: Call, outputs: Mapping[str, np.ndarray]) -> None:
        _, content = call.write(outputs)
        call.answer_bare(content)


class _Predict(_ServingDialect):
    """Tensors in, tensors out."""

    __slots__ = ()

    def read(self, content: bytes) -> PredictMessage:
        return PredictMessage.read(content)

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        """Decode the request and queue its tensors."""
        del body, head
        request: PredictMessage = call.asked
        service = call.service
        signature = _signature(service, request.spec)
        inputs = _inputs(service.name, signature.tensors, request)
        wanted = _wanted(signature, request)
        call.write = partial(_predicted, wanted, answered_spec(service, signature.name).SerializeToString())
        submit_tensors(call, exchange, inputs, signature.name)


class _Examples(_ServingDialect):
    """Serialized examples in, labels with scores or numbers out."""

    __slots__ = ("_verb",)

    def __init__(self, verb: Verb) -> None:
        self._verb = verb

    def read(self, content: bytes) -> ExamplesMessage:
        return ExamplesMessage.read(content)

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        """Queue the examples, each with the features of the context."""
        del body, head
        request: ExamplesMessage = call.asked
        service = call.service
        signature = _signature(service, request.spec)
        if not takes_examples(service.name, self._verb, signature):
            raise InvalidInput(
                f"'{service.name}' cannot {self._verb} over gRPC by its signature {signature.name}: that takes "
                "tensors, call Predict"
            )
        if len(request.context) * len(request.examples) > MAX_REPEATED:
            raise BodyTooLarge(
                f"The context, repeated for each example, has more than {MAX_REPEATED} bytes; send the examples in "
                "parts, or without a context."
            )
        examples = np.empty(len(request.examples), object)
        # The features of an example stand behind those of the context, and the last of one name counts.
        examples[:] = [request.context + example for example in request.examples]
        inputs = {signature.tensors.inputs[0].name: examples}
        check_rows(inputs, signature.tensors)
        call.write = partial(self._results, signature, answered_spec(service, signature.name))
        submit_tensors(call, exchange, inputs, signature.name)

    def _results(
        self, signature: NamedSignature, spec: Any, outputs: Mapping[str, np.ndarray]
    ) -> tuple[bytes, bytes]:
        results = results_of(self._verb, signature, outputs)
        response: Any
        if self._verb == "regress":
            response = _Regressed(model_spec=spec)
            response.result.SetInParent()
            for value in results.tolist():
                response.result.regressions.add(value=value)
        else:
            response = _Classified(model_spec=spec)
            response.result.SetInParent()
            for pairs in results:
                classes = response.result.classifications.add().classes
                for label, score in pairs:
                    classes.add(label=label, score=score)
        return b"", response.SerializeToString()


_DIALECTS: Final[dict[str, _ServingDialect]] = {
    "Predict": _Predict(),
    "Classify": _Examples("classify"),
    "Regress": _Examples("regress"),
}


class ServingScoring:
    """Finds the services that calls of one of the three methods are for.

    Args:
        gateway: The frontend's services.
        scoring: What checks keys and finds services for the other protocol of this port.
        method: Predict, Classify or Regress.
    """

    def __init__(self, gateway: Gateway, scoring: Scoring, method: str) -> None:
        self._gateway, self._scoring = gateway, scoring
        self._dialect = _DIALECTS[method]
        self.check_key = scoring.check_key

    def score(self, inquiry: Inquiry, content: bytes) -> Call:
        """Hand a message to the service that it is for.

        Raises:
            StokerError: It is refused.
        """
        call = inquiry.call
        request = self._dialect.read(content)
        service, caller = self._find(request.spec, call)
        try:
            if len(content) > LARGE_BODY_BYTES:
                whose = partial(caller_of, service, call.authorization, call.address)
                inquiry.cover(Allowance(self._gateway.bodies, whose), len(content))
            deadline_ns = call.deadline_ns()
            asker = asker_of(caller, call.head.metadata)
            if service.script is not None and service.script.yields:
                raise NotSupported(
                    f"'{service.name}' yields its answer piece by piece: call ModelStreamInfer"
                )
        except StokerError as error:
            self._gateway.note_refusal(service, call.headers(), error)
            raise
        scored = service.score_soon(content, call.ids, inquiry, self._dialect)
        scored.asked = request
        if deadline_ns is not None:
            scored.deadline_ns = min(scored.deadline_ns, deadline_ns)
        if asker is not None:
            asker.put_on(scored)
        return scored

    def _find(self, spec: ModelSpec, call: RpcCall) -> tuple[Service, CallerTerms]:
        if not spec.label:
            return self._scoring.plain(spec, call.authorization) or self._scoring.find(spec, call)
        error = self.check_key(call.authorization)
        if error is not None:
            raise error
        service = service_of(self._gateway, spec.model_name, None, spec.label)
        try:
            return service, service.access.check(call.authorization, BEARER_METADATA)
        except StokerError as refused:
            self._gateway.note_refusal(service, call.headers(), refused)
            raise


def answered_spec(service: Scorer, signature_name: str = "") -> Any:
    """Return the `ModelSpec` of an answer: who has given it."""
    spec = _Spec(name=service.name, signature_name=signature_name)
    if service.version.isdecimal():
        spec.version.value = int(service.version)
    return spec


def _signature(service: Scorer, spec: ModelSpec) -> NamedSignature:
    return named_signature(signatures_of(service), {"signature_name": spec.signature_name})


def _inputs(model: str, tensors: ModelTensors, request: PredictMessage) -> dict[str, np.ndarray]:
    names = [info.name for info in tensors.inputs]
    if request.inputs.keys() != set(names):
        missing = [name for name in names if name not in request.inputs]
        wrong = f"missing: {', '.join(missing)}" if missing else "there are others"
        raise InvalidInput(f"input keys do not match the signature, which has {', '.join(names)}; {wrong}")
    arrays = {info.name: read_tensor(model, info, request.inputs[info.name]) for info in tensors.inputs}
    check_rows(arrays, tensors)
    return arrays


def _wanted(signature: NamedSignature, request: PredictMessage) -> tuple[str, ...]:
    names = tuple(info.name for info in signature.tensors.outputs)
    if not request.wanted:
        return names
    if not set(request.wanted) <= set(names) or len(set(request.wanted)) < len(request.wanted):
        raise InvalidInput(f"output_filter has others than the outputs {', '.join(names)}, or one twice")
    return request.wanted


def _predicted(
    wanted: tuple[str, ...], spec: bytes, outputs: Mapping[str, np.ndarray]
) -> tuple[bytes, bytes]:
    """No header lines, and a `PredictResponse`."""
    parts = [
        field(_OUTPUTS, field(_KEY, name.encode()) + field(_VALUE, tensor_bytes(outputs[name])))
        for name in wanted
    ]
    return b"", b"".join((*parts, field(_SPEC, spec)))


# What TensorFlow Serving's services say of models: their signatures, and the states of their versions.


_Metadata: Final = message("GetModelMetadataResponse", SERVING)
_Signatures: Final = message("SignatureDefMap", SERVING)
_Status: Final = message("GetModelStatusResponse", SERVING)
_SIGNATURES: Final = "signature_def"


class ServingFacts:
    """Answers GetModelMetadata and GetModelStatus.

    Args:
        gateway: The frontend's services.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def metadata(self, request: Any, call: RpcCall) -> Any:
        """Answer a `GetModelMetadataRequest`."""
        asked = list(request.metadata_field)
        if not asked:
            raise InvalidInput("GetModelMetadataRequest must specify at least one metadata_field")
        for name in asked:
            if name != _SIGNATURES:
                raise InvalidInput(f"Metadata field {cut(name)} is not supported")
        spec = spec_of(request.model_spec)
        service = service_of(self._gateway, spec.model_name, *_version(spec))
        check_metadata_access(self._gateway, call.authorization, (service,), sent_as=BEARER_METADATA)
        answer = _Metadata(model_spec=answered_spec(service))
        answer.metadata[_SIGNATURES].Pack(ParseDict(described_signatures(service), _Signatures()))
        return answer

    async def status(self, request: Any, call: RpcCall) -> Any:
        """Answer a `GetModelStatusRequest`; as over HTTP, no key is asked for."""
        del call
        spec = spec_of(request.model_spec)
        return ParseDict(described_versions(self._gateway, spec.model_name, *_version(spec)), _Status())


def _version(spec: ModelSpec) -> tuple[str | None, str | None]:
    """The number of the version, and else its label."""
    return spec.model_version or None, spec.label or None


# The trace and logging extensions over gRPC.


_TraceResponse = message("TraceSettingResponse")
_LogResponse = message("LogSettingsResponse")


class LiveSettingsMethods:
    """What the same extensions do over HTTP, with the same errors."""

    def __init__(self, gateway: Gateway) -> None:
        self._settings = LiveSettings(gateway, BEARER_METADATA)

    async def traces(self, request: Any, call: RpcCall) -> Any:
        """Answer a `TraceSettingRequest`; a setting without a value is taken back."""
        content = {name: _of_values(list(setting.value)) for name, setting in request.settings.items()}
        told = await self._settings.traces(call.authorization, request.model_name, content)
        answer = _TraceResponse()
        for name, value in told.items():
            answer.settings[name].value.extend([value] if isinstance(value, str) else value)
        return answer

    async def logs(self, request: Any, call: RpcCall) -> Any:
        """Answer a `LogSettingsRequest`."""
        content = {name: _of_choice(setting) for name, setting in request.settings.items()}
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


def _of_values(values: list[str]) -> Any:
    """What JSON would have: a text, several, or nothing."""
    if len(values) == 1:
        return values[0]
    return values or None


def _of_choice(setting: Any) -> Any:
    chosen = setting.WhichOneof("parameter_choice")
    return None if chosen is None else getattr(setting, chosen)


# The CUDA shared memory extension over gRPC.


_StatusResponse = message("CudaSharedMemoryStatusResponse")
_RegisterResponse = message("CudaSharedMemoryRegisterResponse")
_UnregisterResponse = message("CudaSharedMemoryUnregisterResponse")


class CudaMemoryMethods:
    """What the same extension does over HTTP, with the same errors."""

    def __init__(self, gateway: Gateway) -> None:
        self._memory = CudaMemoryAccess(gateway, BEARER_METADATA)

    async def status(self, request: Any, call: RpcCall) -> Any:
        """Answer a `CudaSharedMemoryStatusRequest`; an empty name means all."""
        answer = _StatusResponse()
        for entry in self._memory.status(call.authorization, call.address, request.name or None):
            told = answer.regions[entry["name"]]
            told.name, told.device_id, told.byte_size = entry.values()
        return answer

    async def register(self, request: Any, call: RpcCall) -> Any:
        """Answer a `CudaSharedMemoryRegisterRequest`."""
        regions = self._memory.to_change(call.authorization, call.address)
        await register(regions, request.name, request.raw_handle, request.device_id, request.byte_size)
        return _RegisterResponse()

    async def unregister(self, request: Any, call: RpcCall) -> Any:
        """Answer a `CudaSharedMemoryUnregisterRequest`; an empty name means all."""
        self._memory.unregister(call.authorization, call.address, request.name or None)
        return _UnregisterResponse()


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
